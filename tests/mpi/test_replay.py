"""Under a real MPI: the replay of random programs, and of real ones under every kind of plan."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from whole_runs import LIMIT_S

from pscale.config import Case, Launch, Plan
from pscale.launch import machine, mpi
from pscale.launch.command import command

SUITE = """
name: plans
scaling: strong
model: {kind: gpt, layers: 4, width: 32, heads: 4, sequence: 32, vocabulary: 257}
data: {kind: synthetic}
train: {batch: 8, micro_batches: 2, steps: 4, warmup: 1}
ranks: 4
repeat: 1
timing: {gemm_peak: false, overhead_steps: 0}
launch: {oversubscribe: true, time_limit: 2m}
sweep:
  cases:
  - {reduction: gather-broadcast}
  - {dp: 2, tp: 2, sp: true, zero: 3}
  - {cp: 4}
  - {pp: 4, schedule: zero-bubble, micro_batches: 4}
  - {pp: 2, schedule: interleaved, virtual_stages: 2, dp: 2, zero: 1}
"""


def test_random_programs_take_as_long_as_their_longest_path():
    case = Case(suite="s", label="l", ranks=4, plan=Plan(dp=4), launch=Launch(oversubscribe=True))
    tests = Path(__file__).parents[1]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])}
    argv = (sys.executable, str(tests / "mpi" / "replay_programs.py"))
    root = os.geteuid() == 0
    order = command(case, mpi.find(), argv, machine.inspect(), environ=environ, root=root)
    done = subprocess.run(
        order.argv, env=order.env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.rpartition("largest error")[2]) < 1e-12


def test_every_moment_of_every_step_is_accounted_for_and_no_step_is_faster_than_the_ideal_one(cli):
    results = cli.run(cli.suite(SUITE))
    steps = pd.DataFrame(results.rows("steps"))
    assert {row["status"] for row in results.cases.values()} == {"ok"}
    keys = ["case", "rank", "step"]
    kinds = ["compute_s", "transfer_s", "wait_s", "copy_s", "ideal_wait_s"]
    assert (steps[[*kinds, "unaccounted_s"]] > -1e-9).all(axis=None)
    whole = steps.groupby(keys)[kinds].sum().join(steps.groupby(keys)[["unaccounted_s", "end_s"]].first())
    walls = whole.groupby(["case", "rank"])["end_s"].diff().fillna(whole["end_s"])
    accounted = whole[["compute_s", "transfer_s", "wait_s", "copy_s", "unaccounted_s"]].sum(axis=1)
    assert (accounted - walls).abs().max() < 1e-9
    ends = steps.groupby(["case", "step"])[["end_s", "ideal_end_s"]].max()
    assert (ends["ideal_end_s"] <= ends["end_s"] + 1e-9).all()
    ideal = steps.groupby(["case", "rank"])["ideal_end_s"].max()
    stated = pd.DataFrame(results.rows("ranks")).set_index(["case", "rank"])["t_ideal_s"]
    assert stated.to_dict() == pytest.approx(ideal.to_dict())
    local = whole["compute_s"] + whole["copy_s"] + whole["unaccounted_s"] + whole["ideal_wait_s"]
    assert local.groupby(["case", "rank"]).sum().to_dict() == pytest.approx(ideal.to_dict(), abs=1e-9)
    calls = pd.DataFrame(results.rows("calls")).groupby(keys)[["wait_s", "ideal_wait_s"]].sum()
    assert (calls - whole[["wait_s", "ideal_wait_s"]]).abs().max(axis=None) < 1e-9
