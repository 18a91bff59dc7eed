"""Tensor and sequence parallel runs are the serial run, and make and keep what is predicted."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from plans import (
    BLOCK,
    TEXT,
    assert_is_serial,
    counted_calls,
    each_rank,
    error_of,
    multiplied,
    name,
)

from pscale.config import Plan
from pscale.nn import counts

TRAIN = replace(TEXT.train, micro_batches=2)
CASES = {
    "gpt": replace(TEXT, model=replace(TEXT.model, vocabulary=257), train=TRAIN),
    "three heads": replace(
        TEXT, model=replace(TEXT.model, vocabulary=257, width=18, heads=3, sequence=15), train=TRAIN
    ),
    "single sequences": replace(TEXT, train=replace(TRAIN, micro_batches=8)),
    "block": replace(BLOCK, model=replace(BLOCK.model, heads=4), train=replace(BLOCK.train, micro_batches=2)),
}
COMMON = [
    Plan(tp=2),
    Plan(tp=4),
    Plan(tp=2, sp=True),
    Plan(tp=4, sp=True),
    Plan(dp=2, tp=2, bucket_bytes=20_000),
    Plan(dp=2, tp=2, sp=True, bucket_bytes=20_000),
    Plan(dp=2, tp=4, sp=True, reduction="gather-broadcast"),
]
RUNS = [
    *(("gpt", plan) for plan in COMMON),
    *(("block", plan) for plan in (Plan(tp=4), Plan(dp=2, tp=2), Plan(dp=2, tp=4, sp=True))),
    ("gpt", Plan(tp=4, embedding="column")),
    ("gpt", Plan(dp=2, tp=2, sp=True, embedding="column", reduction="all-reduce")),
    ("single sequences", Plan(dp=2, tp=2, sp=True)),
    ("three heads", Plan(tp=3)),
    ("three heads", Plan(dp=2, tp=3, sp=True)),
]


@pytest.mark.parametrize(("case", "plan"), RUNS, ids=name)
def test_every_run_is_the_serial_one_and_holds_and_calls_what_is_predicted(case, plan, folder):
    assert_is_serial(CASES[case], plan, folder)


@pytest.mark.parametrize("embedding", ["row", "column"])
@pytest.mark.parametrize("sp", [False, True])
def test_a_step_makes_the_calls_of_the_literature(sp, embedding, folder):
    case, t, m = replace(CASES["gpt"], train=replace(TRAIN, clip=None)), 2, TRAIN.micro_batches
    b, s, h, L = 16 // m, case.model.sequence, case.model.width, case.model.layers
    n0, tokens, rows = b * s * h * 8, b * s * 8, embedding == "row"
    expected = Counter({("tp", "all_reduce", tokens): 3 * m})
    if sp:  # with inputs that are gathered again backward, and the sum of gradients of norms and row biases
        expected["tp", "all_gather", n0 // t] = m * (6 * L + 2 + rows)
        expected["tp", "reduce_scatter", n0] = m * (4 * L + 1 + rows)
        expected["tp", "all_reduce", (6 * h * L + 2 * h + s * h) * 8] = 1
        expected["tp", "all_to_all", n0 // t] = 2 * m * (not rows)
    else:
        expected["tp", "all_reduce", n0] = m * (4 * L + 1 + rows)
        expected["tp", "all_gather", n0 // t] = m * (not rows)
    for counted in counted_calls(case, Plan(tp=t, sp=sp, embedding=embedding), folder):
        assert counted == +expected


@pytest.mark.parametrize("plan", [Plan(tp=4), Plan(dp=2, tp=2, sp=True)], ids=name)
def test_the_ranks_together_multiply_what_the_serial_run_does(plan, folder):
    expected = counts.executed_flops(CASES["gpt"].model, TRAIN.batch)
    assert multiplied(CASES["gpt"], plan, folder) == expected


@pytest.mark.parametrize("plan", [Plan(tp=2), Plan(tp=2, sp=True)], ids=name)
@pytest.mark.parametrize("embedding", ["row", "column"])
def test_a_steady_step_takes_no_new_memory_and_gives_all_back(plan, embedding, folder):
    def steps(trainer, _):
        pool = trainer.stage.buffers
        trainer.step(0)
        first = pool.total_bytes
        trainer.step(1)
        return first, pool.total_bytes, pool.held_bytes

    for first, second, held in each_rank(CASES["gpt"], replace(plan, embedding=embedding), folder, steps):
        assert first == second
        assert held == 0


@pytest.mark.parametrize("plan", [Plan(dp=2, tp=2), Plan(tp=4, sp=True)], ids=name)
def test_what_no_rank_cuts_is_the_same_on_all(plan, folder):
    def steps(trainer, _):
        for index in range(3):
            trainer.step(index)
        return {
            (param.layer, param.name): value.copy()
            for param, value in trainer.replicas.weights()
            if param.cut is None
        }

    first, *others = each_rank(CASES["gpt"], plan, folder, steps)
    assert len(first) == 6 * 2 + 3
    for other in others:
        for key, value in first.items():
            np.testing.assert_array_equal(other[key], value)


def test_tensor_ranks_that_disagree_on_what_none_cuts_are_noticed(folder):
    def disagree(trainer):
        for param, value in trainer.replicas.weights():
            if param.name == "norm.gain":
                value[0] += 1e-6 * trainer.stage.loss.loss.axis.rank
        return trainer

    assert error_of(CASES["gpt"], Plan(tp=2), folder, disagree)[1] > 1e-7
