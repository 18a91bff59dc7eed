"""This machine is calibrated once a day for a kind of case."""

import json
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pscale.config import Case, Model, Train
from pscale.launch import blas, isolated_process
from pscale.predict.profile import calibrated
from pscale.worker import calibration as measured

CASE = Case(suite="a", label="a", model=Model(kind="gpt", dtype="float64"), train=Train(optimizer="sgd"))
PHASES = [{"forward": 1.0, "backward": 2.0, "update": 0.5}] * len(measured.shapes(CASE))


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The cases that a process was asked to measure."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cases = []

    def ask(*_, stdin, **__):
        cases.append(json.loads(stdin))
        return SimpleNamespace(code=0, out=json.dumps(PHASES))

    monkeypatch.setattr(isolated_process, "ask", ask)
    return cases


def test_it_is_measured_once_for_cases_that_compute_alike_and_again_after_a_day(asked, tmp_path):
    alike = replace(CASE, label="b", ranks=1)
    assert blas.calibrate(measured.shapes(CASE), {}) == blas.calibrate(measured.shapes(alike), {}) == PHASES
    assert len(asked) == 1
    blas.calibrate(measured.shapes(replace(CASE, threads=2)), {})
    assert len(asked) == 2
    for path in tmp_path.rglob("calibration-*.json"):
        os.utime(path, (time.time() - 2 * 24 * 3600,) * 2)
    blas.calibrate(measured.shapes(CASE), {})
    assert len(asked) == 3
    for path in tmp_path.rglob("calibration-*.json"):
        path.write_text('{"forward": [1]}')
    assert blas.calibrate(measured.shapes(CASE), {}) == PHASES


def test_a_machine_that_cannot_be_measured_is_not_known(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    failed = isolated_process.Answer(code=1, out="", err="no memory")
    monkeypatch.setattr(isolated_process, "ask", lambda *_, **__: failed)
    assert blas.calibrate(measured.shapes(CASE), {}) == []
    assert list(tmp_path.rglob("calibration-*")) == []


def test_small_models_compute_as_the_case_does_and_every_phase_is_timed():
    small = measured.shapes(CASE)
    assert {(each.model.dtype, each.train.optimizer, each.ranks) for each in small} == {("float64", "sgd", 1)}
    phases_s = measured.phases_s(small[0])
    assert phases_s.keys() >= {"forward", "backward", "update"}
    assert all(seconds > 0 for seconds in phases_s.values())


def test_work_of_small_models_has_its_seconds():
    found = calibrated(measured.shapes(CASE), PHASES)
    assert {each.seconds for each in found} == {1.0, 2.0, 0.5}
    assert len({each.shape for each in found}) == len(PHASES)
    assert all(each.amounts["segments"] == 1 for each in found)
