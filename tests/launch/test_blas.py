import os
from dataclasses import replace

import pytest

from pscale.config import Case, Launch, Omp, Require
from pscale.errors import PlanError
from pscale.launch.blas import absent, check_requirements

CASE = Case(suite="s", label="the case")


def test_a_blas_that_numpy_does_not_have_is_told_before_anything_starts():
    with pytest.raises(PlanError, match=r"^the case: the suite requires blas: blis, but NumPy here uses"):
        check_requirements([CASE, replace(CASE, require=Require(blas="blis"))], os.environ)


def test_every_kind_of_need_is_asked_about_once_and_no_need_costs_nothing():
    asked = []
    omp = replace(CASE, label="omp", launch=Launch(omp=Omp(proc_bind="close")))
    more = replace(omp, label="omp with more threads", threads=2)
    other = replace(omp, label="omp elsewhere", launch=replace(omp.launch, env={"LD_LIBRARY_PATH": "/opt"}))
    check_requirements([CASE, omp, more, other], os.environ, lambda case, _: asked.append(case.label) or "")
    assert asked == ["omp", "omp elsewhere"]


def test_a_numpy_that_does_not_work_is_left_for_the_launch_to_tell(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise ImportError('broken here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check_requirements([replace(CASE, require=Require(blas="blis"))], os.environ)


def test_cases_whose_blas_is_not_here_are_named_with_the_reason_and_none_at_all_is_an_error():
    other = replace(CASE, label="other", launch=Launch(blas="/none/libblas.so"))
    assert absent([CASE, other], os.environ) == {other.id: "there is no /none/libblas.so"}
    with pytest.raises(PlanError, match=r"^other: launch.blas: there is no /none/libblas.so$"):
        absent([other], os.environ)
