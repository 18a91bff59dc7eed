"""Real runs whose machine's pace is measured between the steps, by work that takes a quarter of an hour."""

import json
import os

import pytest
from whole_runs import Cli

from pscale.runs.schema import PHASES

pytestmark = pytest.mark.slow

STEPS, QUANTUM_S = 3, 900.0
SUITE = f"""
name: paced
scaling: strong
model: {{kind: gpt, layers: 2, width: 32, heads: 4, sequence: 32, vocabulary: 256}}
data: {{kind: synthetic}}
train: {{batch: 8, steps: {STEPS}, warmup: 1, micro_batches: 2}}
sweep:
  ranks: [2]
  cases: [{{dp: 2}}, {{pp: 2}}, {{tp: 2}}, {{zero: 3}}]
  timing.pace: [false, true]
repeat: 1
timing: {{gemm_peak: false, overhead_steps: 0}}
launch: {{oversubscribe: true, time_limit: 10m}}
"""
# The time that the work takes passes on the clock of the recorder alone.
LONG = f"""
import time
from pscale.worker.recorder import Recorder
from pscale.worker.measure import Quantum
done_ns = 0
def work(self):
    global done_ns
    done_ns += {QUANTUM_S * 1e9:.0f}
Quantum.__init__, Quantum.__call__ = lambda self: None, work
Recorder.__init__.__kwdefaults__["now"] = lambda: time.perf_counter_ns() + done_ns
"""
# Computing is sleep for the most part, so that cores that others use too change little.
SLEEPING = """
import time
import pscale.nn.loss as loss
compute = loss.CrossEntropy.forward
def slow_to_compute(self, logits, *arguments):
    time.sleep(0.1)
    return compute(self, logits, *arguments)
loss.CrossEntropy.forward = slow_to_compute
"""
TIMES = ("compute_s", "wait_s", "transfer_s", "copy_s", "offload_s")


@pytest.fixture(scope="module")
def paced(tmp_path_factory):
    cli = Cli(tmp_path_factory.mktemp("paced"))
    (cli.folder / "sitecustomize.py").write_text(LONG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(cli.folder), prepend=os.pathsep)
        return cli.run(cli.suite(SUITE))


def by_pace(paced, table):
    """Return the rows with a pace and those without, by plan."""
    chosen = {case.id: (case.plan, case.timing.pace) for case in paced.planned()}
    rows = {True: {}, False: {}}
    for row in paced.rows(table):
        plan, pace = chosen[row["case"]]
        rows[pace].setdefault(plan, []).append(row)
    return rows[True], rows[False]


def test_the_work_between_the_steps_is_in_no_time_of_a_step(paced):
    with_pace, _ = by_pace(paced, "cases")
    for (case,) in with_pace.values():
        assert len(case["work_quantum_s"]) == STEPS
        assert min(case["work_quantum_s"]) >= QUANTUM_S
    steps, _ = by_pace(paced, "steps")  # it lies between phases, so that it could be nothing but unaccounted
    assert max(row["unaccounted_s"] for rows in steps.values() for row in rows) < QUANTUM_S


def test_accounts_close_to_the_nanosecond_with_the_work_between_the_steps(paced):
    steps, _ = by_pace(paced, "steps")
    for rows in steps.values():
        for rank in (0, 1):
            own = [row for row in rows if row["rank"] == rank]
            before_s = 0.0
            for step in range(STEPS):
                phases = [row for row in own if row["step"] == step]
                assert len(phases) == len(PHASES)
                spent_s = sum(row[name] for row in phases for name in TIMES) + phases[0]["unaccounted_s"]
                assert spent_s == pytest.approx(phases[0]["end_s"] - before_s, abs=1e-9)
                assert phases[0]["unaccounted_s"] >= 0
                before_s = phases[0]["end_s"]


def test_losses_are_bit_for_bit_those_of_steps_without_it(paced):
    with_pace, without = by_pace(paced, "cases")
    assert {plan: case["losses"] for plan, (case,) in with_pace.items()} == {
        plan: case["losses"] for plan, (case,) in without.items()
    }
    assert {case["work_quantum_s"] for (case,) in without.values()} == {None}


def test_a_rank_that_is_early_at_the_end_of_a_step_waits_in_that_step(paced):
    calls, without = by_pace(paced, "calls")
    for plan, rows in calls.items():
        assert sum(row["count"] for row in rows if row["verb"] == "barrier") == 2 * STEPS
        assert not [row for row in without[plan] if row["verb"] == "barrier"]


def test_a_delay_of_every_step_is_found_by_setting_launches_of_the_same_pace_side_by_side(cli, sitecustomize):
    sitecustomize(SLEEPING)
    swept = ("--set", "sweep={ranks: [2], inject.delay: [0, 0.2]}", "--set", "repeat=7")
    run = cli.run(cli.suite(SUITE), *swept, "--set", "timing.pace=true", "--set", "train.micro_batches=1")
    (case,) = json.loads(cli.call("compare", run.folder, "--format", "json").stdout)["cases"]
    assert case["answer"] == "slower", case["text"]
    assert case["scatter_at_pace"] is not None
