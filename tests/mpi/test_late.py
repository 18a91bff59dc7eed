"""In real time: what makes a rank late shows as wait of the others, and the report names the rank.

Ranks share the cores of a small machine here, so a rank that burns may be kept off its core, and all come and
go by as much as the scheduler likes: milliseconds. Hence delays of 200 ms, of which that is little, compared
with what was burnt in truth, which the record has, by medians over steps; every other step has a delay.
"""

import contextlib
import threading

import numpy as np
import psutil
from whole_runs import start, wait_for, workers

from pscale.analysis.frames import load
from pscale.analysis.summary import summarise

DELAY_S, PATIENCE_S = 0.2, 120
LATE = """
name: late
scaling: strong
ranks: 4
model: {kind: linear}
data: {kind: linear, samples: 400}
train: {batch: 8, steps: 16, warmup: 2}
plan: {dp: ranks, reduction: all-reduce}
inject: {rank: 1, delay: 200ms, every: 2}
repeat: 1
timing: {gemm_peak: false, overhead_steps: 0}
launch: {oversubscribe: true, time_limit: 2m}
"""
PIPELINE = """
name: late
scaling: strong
ranks: 4
model: {kind: gpt, layers: 4, width: 8, heads: 2, sequence: 8}
data: {kind: synthetic}
train: {batch: 4, micro_batches: 2, steps: 16, warmup: 2}
plan: {pp: ranks}
inject: {rank: 1, phase: forward, delay: 200ms, every: 2}
repeat: 1
timing: {gemm_peak: false, overhead_steps: 0}
launch: {oversubscribe: true, time_limit: 2m}
"""

COMPUTING = """
name: stopped
scaling: strong
ranks: 2
model: {kind: gpt, layers: 2, width: 64, heads: 4, sequence: 64}
data: {kind: synthetic}
train: {batch: 8, steps: 200, warmup: 2}
plan: {dp: ranks}
repeat: 1
timing: {gemm_peak: false, overhead_steps: 0}
launch: {oversubscribe: true, time_limit: 2m}
"""


def of_steps(rows, value):
    """Return sums by rank (rows) and step (columns)."""
    steps = range(1 + max(row["step"] for row in rows))
    table = np.zeros((1 + max(row["rank"] for row in rows), len(steps)))
    for row in rows:
        table[row["rank"], row["step"]] += row[value]
    return table


def beyond(waits, burnt):
    """Return, by rank, the median of what it waits beyond what was burnt, over the steps with a delay."""
    return np.median(waits[:, ::2] - burnt[::2], axis=1)


def test_a_late_rank_is_waited_for_by_the_others_as_long_and_named(cli):
    results = cli.run(cli.suite(LATE), report=True)
    steps = results.rows("steps")
    waits, burnt = of_steps(steps, "wait_s"), of_steps(steps, "injected_s")
    assert np.median(burnt[1, ::2]) >= DELAY_S
    assert not burnt[[0, 2, 3]].any()
    assert not burnt[:, 1::2].any()
    assert np.abs(beyond(waits, burnt[1])[[0, 2, 3]]).max() <= 0.05 * DELAY_S
    assert np.median(waits[1, ::2]) <= 0.05 * DELAY_S
    summary = summarise(load(results.folder))
    (late,) = summary.late
    assert (late.rank, late.phase) == (1, "backward")
    assert "rank 1" in summary.verdicts[0].loss
    assert "most of it in backward" in summary.verdicts[0].loss
    assert "injected 200 ms in backward of rank 1" in results.output


def test_a_late_stage_is_waited_for_by_those_that_receive_from_it(cli):
    results = cli.run(cli.suite(PIPELINE))
    received = [row for row in results.rows("calls") if (row["verb"], row["phase"]) == ("receive", "forward")]
    burnt = of_steps(results.rows("steps"), "injected_s")[1]
    assert np.abs(beyond(of_steps(received, "wait_s"), burnt)[2:]).max() <= 0.05 * DELAY_S
    (late,) = summarise(load(results.folder)).late
    assert (late.rank, late.phase) == (1, "forward")


def rank_of(process):
    environment = process.environ()
    return environment.get("PMI_RANK", environment.get("OMPI_COMM_WORLD_RANK"))


def stop_now_and_then(process, done):
    """Stop a process for 200 ms at random times."""
    random = np.random.default_rng(7)
    with contextlib.suppress(psutil.NoSuchProcess):  # its work is done
        while not done.wait(random.uniform(0.2, 0.6)):
            process.suspend()
            done.wait(0.2)
            process.resume()


def test_a_rank_that_is_stopped_from_outside_is_named(cli):
    suite = cli.suite(COMPUTING)
    process, done = start(cli, suite), threading.Event()
    ranks = wait_for(lambda: len(found := workers(process)) >= 2 and found)
    (stopped,) = [rank for rank in ranks if rank_of(rank) == "1"]
    stopping = threading.Thread(target=stop_now_and_then, args=(stopped, done))
    stopping.start()
    output, _ = process.communicate(timeout=PATIENCE_S)
    done.set()
    stopping.join()
    assert process.returncode == 0, output
    summary = summarise(load(cli.newest().folder))
    (late,) = summary.late
    assert late.rank == 1
    assert late.late_steps >= 2
    assert "rank 1" in summary.verdicts[0].loss
    assert "The others wait for rank 1" in " ".join(output.split())
