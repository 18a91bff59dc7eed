"""Under a real MPI: stages exchange what the serial run computes, in the messages that were predicted."""

import json
import os
import sys
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from plans import STEPS, TEXT, difference, train

from pscale.config import Data, Launch, Model, Plan, Timing, to_dict
from pscale.launch import local, machine, mpi
from pscale.launch.command import command
from pscale.parallel.strategies import calls
from pscale.results.store import read_table

CASE = replace(
    TEXT,
    model=Model(layers=8, width=16, heads=2, sequence=8, vocabulary=19, dtype="float64"),
    data=Data(kind="synthetic"),
    train=replace(TEXT.train, epsilon=1e-6, micro_batches=4),
    timing=Timing(gemm_peak=False, overhead_steps=0),
    launch=Launch(oversubscribe=True, bind="none"),
)
PLANS = [
    Plan(pp=4, schedule="1f1b"),
    Plan(pp=4, schedule="interleaved", virtual_stages=2),
    Plan(pp=2, schedule="interleaved", virtual_stages=2, dp=2),
    Plan(pp=4, schedule="zero-bubble"),
]


def launch(case, folder):
    """Run a case as a job of its own; return where its results lie."""
    data = folder / "data"
    data.mkdir()
    order = {"case": to_dict(case), "repeat": 0, "data": str(data), "launched_unix_s": time.time()}
    (folder / "case.json").write_text(json.dumps({"format": 1, **order}))
    argv = [sys.executable, "-m", "pscale.worker", str(folder)]
    root = os.geteuid() == 0
    job = command(case, mpi.find(), argv, machine.inspect(), environ=os.environ, root=root)
    outcome = local.launch(job, folder, time_limit_s=120)
    assert outcome.status == "ok", outcome.reason
    return data


@pytest.fixture(scope="module")
def serial_losses(tmp_path_factory):
    return train(CASE, Plan(), tmp_path_factory.mktemp("serial"))[0]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_pipeline_trains_as_one_process_does_with_the_messages_that_were_predicted(
    plan, tmp_path, serial_losses
):
    case = replace(CASE, ranks=plan.ranks, plan=plan)
    data = launch(case, tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "ok", result["reason"]
    assert difference(np.array(result["columns"]["losses"]), serial_losses) < 1e-12
    counted, predicted = Counter(), Counter()
    for row in read_table(data, "calls").to_pylist():
        counted[row["rank"], row["axis"], row["verb"]] += np.array([row["count"], row["bytes"]])
    for rank in range(case.ranks):
        for call in calls(case, rank):
            predicted[rank, call.axis, call.verb] += STEPS * np.array([call.count, call.step_bytes])
    assert {key: tuple(value) for key, value in counted.items()} == {
        key: tuple(value) for key, value in predicted.items()
    }
    phases = {(row["verb"], row["phase"]) for row in read_table(data, "calls").to_pylist()}
    assert {
        ("send", "forward"),
        ("receive", "forward"),
        ("send", "backward"),
        ("receive", "backward"),
    } <= phases
