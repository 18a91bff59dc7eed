"""In real time: what makes a rank late shows as wait of the others, and the report names the rank.

Ranks share the cores of a small machine here, so that they come and go by as much as the scheduler likes.
Hence steps with a delay and steps without, in turns and many, of which medians are taken, and more than one
attempt. `tests/worker/test_delay_injection.py` proves the same exactly, on clocks that are simulated.
"""

import contextlib
import os
import threading

import numpy as np
import psutil
import pytest
from attempts import in_one_of_several
from patience import LIMIT_S, wait_for
from whole_runs import start, workers

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.runs.schema import PHASES

pytestmark = pytest.mark.slow

STOPPED_S, DELAY_S = 0.2, 0.1
LATE_STEPS = slice(None, None, 2)
SUITE = """
name: late
scaling: strong
model: {kind: gpt, layers: 4, width: 8, heads: 2, sequence: 8}
data: {kind: synthetic}
train: {batch: 8, warmup: 2}
repeat: 1
timing: {gemm_peak: false, overhead_steps: 0}
launch: {oversubscribe: true, time_limit: 10m}
"""
LATE = """
train.steps=40
ranks=4
inject={rank: 1, delay: 100ms, every: 2}
sweep={cases: [{dp: 4, reduction: all-reduce, inject.phase: backward}, {pp: 4, inject.phase: forward}]}
"""
STOPPED = """
model={kind: gpt, layers: 2, width: 64, heads: 4, sequence: 64}
train.steps=100
plan={dp: ranks}
ranks=2
"""
# However fast the machine, there is time enough to be stopped more than once.
LASTS = """
import time
import pscale.nn.loss as loss
compute = loss.CrossEntropy.forward
def slow_to_compute(self, *arguments):
    time.sleep(0.01)
    return compute(self, *arguments)
loss.CrossEntropy.forward = slow_to_compute
"""


def settings(text):
    return [word for line in text.split("\n") if line for word in ("--set", line)]


def table(rows, value, phases=PHASES):
    """Return a value by rank (rows) and step (columns), added up over phases."""
    found = np.zeros((4, 1 + max(row["step"] for row in rows)))
    for row in rows:
        found[row["rank"], row["step"]] += row[value] * (row["phase"] in phases)
    return found


def begins(steps):
    """Return when each rank begins a step."""
    ends = table(steps, "end_s", ["data"])  # of the whole step
    return np.concatenate([np.zeros((4, 1)), ends[:, :-1]], axis=1)


def ready(steps):
    """Return when each rank has done its own work of a step and comes to meet the others."""
    return begins(steps) + table(steps, "compute_s", ["data", "forward", "backward"])


def test_as_long_as_a_rank_is_late_the_others_wait_and_the_rank_is_named_with_its_phase(cli):
    in_one_of_several(late_ranks_are_waited_for, cli)


def late_ranks_are_waited_for(cli):
    results = cli.run(cli.suite(SUITE), *settings(LATE), report=True)
    data, stages = (case.id for case in results.planned())
    of_case = {case: [row for row in results.rows("steps") if row["case"] == case] for case in (data, stages)}
    all_others_wait(of_case[data])
    those_downstream_wait(
        of_case[stages],
        [
            row
            for row in results.rows("calls")
            if (row["case"], row["verb"], row["phase"]) == (stages, "receive", "forward")
        ],
    )
    summary = Findings(load(results.folder))
    named = {found.case: (found.rank, found.phase) for found in summary.rows("stragglers")}
    assert named == {data: (1, "backward"), stages: (1, "forward")}
    (verdict,) = (verdict for verdict in summary.rows("verdicts") if verdict.case == data)
    assert "rank 1" in verdict.meaning.lower()
    assert "mostly in backward" in verdict.meaning
    assert "injected 100 ms in backward of rank 1" in results.output


def all_others_wait(steps):
    burnt, others = table(steps, "injected_delay_s"), [0, 2, 3]
    assert DELAY_S <= burnt[1, LATE_STEPS].min() <= 1.01 * DELAY_S
    assert not burnt[others].any()
    assert not burnt[:, 1::2].any()
    waits, come = table(steps, "wait_s"), ready(steps)
    anyway = come[1] - DELAY_S - come  # by how much the rank would have arrived later than each of the others
    seen = np.median((waits - anyway)[others, LATE_STEPS], axis=1)
    assert np.abs(seen - DELAY_S).max() <= 0.05 * DELAY_S
    assert np.median(waits[1, LATE_STEPS]) <= 0.05 * DELAY_S


def those_downstream_wait(steps, received):
    """A stage waits for the one before it until that has sent, and no longer."""
    downstream = [2, 3]
    waits, burnt = table(received, "wait_s"), table(steps, "injected_delay_s")[1]
    sent, here = begins(steps) + table(steps, "wall_s", ["data", "forward"]), begins(steps)
    kept = np.array([sent[rank - 1] - here[rank] for rank in downstream])
    assert np.median(waits[downstream, LATE_STEPS] - burnt[LATE_STEPS], axis=1).min() >= -0.05 * DELAY_S
    off = np.median(waits[downstream, LATE_STEPS] - kept[:, LATE_STEPS], axis=1)
    assert np.abs(off).max() <= 0.05 * DELAY_S


def rank_of(process):
    with contextlib.suppress(psutil.Error):
        environment = process.environ()
        return environment.get("PMI_RANK", environment.get("OMPI_COMM_WORLD_RANK"))


def stop_again_and_again(process, done):
    """Stop a process at random times, and for twice as long as it runs, so that nothing else is as late."""
    random = np.random.default_rng(int.from_bytes(os.urandom(8)))
    with contextlib.suppress(psutil.NoSuchProcess):  # its work is done
        while not done.wait(random.uniform(0.05, 0.15)):
            process.suspend()
            done.wait(STOPPED_S)
            process.resume()


def test_a_rank_that_is_stopped_from_outside_is_named(cli, monkeypatch):
    (cli.folder / "sitecustomize.py").write_text(LASTS)
    monkeypatch.setenv("PYTHONPATH", str(cli.folder), prepend=os.pathsep)
    in_one_of_several(who_is_stopped_is_named, cli)


def who_is_stopped_is_named(cli):
    process, done = start(cli, cli.suite(SUITE), *settings(STOPPED)), threading.Event()
    stopped = wait_for(lambda: next((one for one in workers(process) if rank_of(one) == "1"), None))
    stopping = threading.Thread(target=stop_again_and_again, args=(stopped, done))
    stopping.start()
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    finally:
        done.set()
        stopping.join()
    assert process.returncode == 0, output
    summary = Findings(load(cli.newest().folder))
    assert [late.rank for late in summary.rows("stragglers")] == [1]
    assert summary.rows("stragglers")[0].late_steps >= 2
    (verdict,) = summary.rows("verdicts")
    assert (
        verdict.interference or "rank 1" in verdict.meaning.lower()
    )  # what others do to the cores is said instead
    assert "Ranks that the others wait for" in (cli.newest().folder / "report.md").read_text()
