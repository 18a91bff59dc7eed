"""Under a real MPI: sharded jobs are the serial job, and make the calls that were predicted."""

import json
import os
import sys
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from pscale.config import Case, Launch, Model, Plan, Timing, Train, to_dict
from pscale.launch.command import command
from pscale.launch.local import launch
from pscale.launch.machine import inspect
from pscale.launch.mpi import find
from pscale.launch.outcome import STDERR
from pscale.parallel.strategies import calls
from pscale.results.store import read_table

PATIENCE_S = 120
SERIAL = Case(
    suite="s",
    label="l",
    model=Model(layers=3, width=36, heads=3, sequence=15, vocabulary=257, dtype="float64"),
    # The bias of the keys has no gradient but rounding, which a small epsilon would blow up to a weight.
    train=Train(batch=16, micro_batches=2, steps=10, warmup=0, lr=1e-2, clip=0.5, epsilon=1e-6),
    timing=Timing(gemm_peak=False, overhead_steps=0),
    launch=Launch(oversubscribe=True),
)
PLANS = [
    Plan(dp=4, zero=1),
    Plan(dp=4, zero=2),
    Plan(dp=4, zero=3),
    Plan(dp=4, zero=3, reshard_after_forward=False),
    Plan(dp=4, zero=2, shard=2),
    Plan(dp=2, tp=3, sp=True, zero=3),
]


def launched(case, folder):
    """Run a job and return what it left: its result, and the rows of its calls."""
    folder.mkdir()
    order = {"case": to_dict(case), "repeat": 0, "data": str(folder), "launched_unix_s": time.time()}
    (folder / "case.json").write_text(json.dumps(order))
    argv = (sys.executable, "-m", "pscale.worker", str(folder))
    job = command(case, find(), argv, inspect(), environ=os.environ, root=os.getuid() == 0)
    outcome = launch(job, folder, PATIENCE_S)
    assert outcome.status == "ok", (outcome.reason, (folder / STDERR).read_text())
    columns = json.loads((folder / "result.json").read_text())["columns"]
    return columns, read_table(folder, "calls").to_pylist()


@pytest.fixture(scope="module")
def serial_losses(tmp_path_factory):
    columns, _ = launched(SERIAL, tmp_path_factory.mktemp("serial") / "run")
    return np.array(columns["losses"])


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"dp {plan.dp} tp {plan.tp} zero {plan.zero}")
def test_a_sharded_job_is_the_serial_one_and_makes_the_calls_that_were_predicted(
    plan, serial_losses, tmp_path
):
    case = replace(SERIAL, ranks=plan.ranks, plan=plan)
    columns, rows = launched(case, tmp_path / "run")
    difference = np.abs(np.subtract(columns["losses"], serial_losses)).max()
    assert difference < 1e-12 * np.abs(serial_losses).max()
    counted, predicted = Counter(), Counter()
    for row in rows:
        if row["verb"] == "copy":
            continue
        key = (row["rank"], row["step"], row["axis"], row["verb"])
        counted[key, "calls"] += row["count"]
        counted[key, "bytes"] += row["bytes"]
    for rank in range(case.ranks):
        for call in calls(case, rank):
            for step in range(case.train.steps):
                key = (rank, step, call.axis, call.verb)
                predicted[key, "calls"] += call.count
                predicted[key, "bytes"] += call.step_bytes
    assert +counted == +predicted
