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
from whole_runs import LIMIT_S, start, wait_for, workers

from pscale.analysis.frames import load
from pscale.analysis.summary import summarise
from pscale.results.events import PHASES

pytestmark = pytest.mark.slow

STOPPED_S = 0.2
SUITE = """
name: late
scaling: strong
ranks: 4
model: {kind: linear}
data: {kind: linear, samples: 400}
train: {batch: 8, warmup: 2}
repeat: 1
timing: {gemm_peak: false, overhead_steps: 0}
launch: {oversubscribe: true, time_limit: 10m}
"""
LATE = """
train.steps=300
plan={dp: ranks, reduction: all-reduce}
inject={rank: 1, delay: 10ms, every: 2}
"""
LATE_STAGE = """
model={kind: gpt, layers: 4, width: 8, heads: 2, sequence: 8}
data={kind: synthetic}
train={steps: 40}
plan={pp: ranks}
inject={rank: 1, phase: forward, delay: 100ms, every: 2}
"""
STOPPED = """
model={kind: gpt, layers: 2, width: 64, heads: 4, sequence: 64}
data={kind: synthetic}
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


def test_ten_milliseconds_of_a_rank_are_ten_of_wait_on_the_others_and_the_rank_is_named(cli):
    in_one_of_several(ten_milliseconds_are_waited_for, cli)


def ten_milliseconds_are_waited_for(cli):
    delay_s, late, others = 0.01, slice(None, None, 2), [0, 2, 3]
    results = cli.run(cli.suite(SUITE), *settings(LATE), report=True)
    steps = results.rows("steps")
    burnt = table(steps, "injected_delay_s")
    assert delay_s <= burnt[1, late].min() <= 1.01 * delay_s
    assert not burnt[others].any()
    assert not burnt[:, 1::2].any()
    waits, come = table(steps, "wait_s"), ready(steps)
    anyway = come[1] - delay_s - come  # by how much the rank would have arrived later than each of the others
    assert np.abs(np.median((waits - anyway)[others, late], axis=1) - delay_s).max() <= 0.05 * delay_s
    assert np.median(waits[1, late]) <= 0.05 * delay_s
    summary = summarise(load(results.folder))
    assert [(found.rank, found.phase) for found in summary.stragglers] == [(1, "backward")]
    assert "rank 1" in summary.verdicts[0].loss
    assert "most of it in backward" in summary.verdicts[0].loss
    assert "injected 10 ms in backward of rank 1" in results.output


def test_a_late_stage_is_waited_for_by_those_that_receive_from_it_and_for_no_longer(cli):
    in_one_of_several(a_late_stage_is_waited_for, cli)


def a_late_stage_is_waited_for(cli):
    delay_s, late, downstream = 0.1, slice(None, None, 2), [2, 3]
    results = cli.run(cli.suite(SUITE), *settings(LATE_STAGE))
    steps = results.rows("steps")
    received = [row for row in results.rows("calls") if (row["verb"], row["phase"]) == ("receive", "forward")]
    waits, burnt = table(received, "wait_s"), table(steps, "injected_delay_s")[1]
    sent, here = begins(steps) + table(steps, "wall_s", ["data", "forward"]), begins(steps)
    kept = np.array([sent[rank - 1] - here[rank] for rank in downstream])  # until the stage before has sent
    assert np.median(waits[downstream, late] - burnt[late], axis=1).min() >= -0.05 * delay_s
    assert np.abs(np.median(waits[downstream, late] - kept[:, late], axis=1)).max() <= 0.05 * delay_s
    found = summarise(load(results.folder)).stragglers
    assert [(each.rank, each.phase) for each in found] == [(1, "forward")]


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
    summary = summarise(load(cli.newest().folder))
    assert [late.rank for late in summary.stragglers] == [1]
    assert summary.stragglers[0].late_steps >= 2
    (verdict,) = summary.verdicts
    assert verdict.interference or "rank 1" in verdict.loss  # what others do to the cores is said instead
    assert "Ranks that the others wait for" in (cli.newest().folder / "report.md").read_text()
