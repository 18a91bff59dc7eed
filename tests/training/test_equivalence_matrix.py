"""Runs on grids that share every product are the serial run, and call and hold what is predicted."""

from dataclasses import replace

import numpy as np
import pytest
from kept_activations import kept_bytes
from plans import (
    BLOCK,
    TEXT,
    assert_is_serial,
    each_rank,
    most_kept,
    multiplied,
    name,
    on_plan,
    train,
)
from training.test_memory import held

from pscale.config import Data, Matrix, Model, Plan
from pscale.parallel.recompute import executed_flops
from pscale.training.prediction import fullest_rank, memory_bytes

pytestmark = pytest.mark.slow

GPT = replace(
    TEXT,
    model=Model(layers=1, width=24, heads=6, sequence=6, vocabulary=18, dtype="float64"),
    data=Data(kind="synthetic"),
    train=replace(TEXT.train, batch=12),
)
TWO = replace(GPT, model=replace(GPT.model, layers=2), train=replace(GPT.train, batch=24, steps=4))
ONE = replace(BLOCK, train=replace(BLOCK.train, steps=4))


def grid(tx, ty, tz, algorithm, **plan):
    return Plan(matrix=Matrix(tx=tx, ty=ty, tz=tz, algorithm=algorithm), **plan)


CUBE, TESSERACT = grid(2, 2, 2, "agarwal"), grid(2, 2, 2, "axonn")
ALONE = [
    *(grid(q, q, 1, algorithm) for algorithm in ("cannon", "summa") for q in (2, 3)),
    grid(2, 3, 1, "summa"),
    *(grid(*sides, "agarwal") for sides in ((2, 2, 2), (2, 2, 3), (1, 2, 2))),
    *(grid(*sides, "axonn") for sides in ((2, 2, 2), (2, 2, 3), (1, 3, 1), (1, 1, 3))),
]
PRODUCTS = [
    (TWO, 2, grid(2, 2, 1, "cannon", pp=2)),
    (TWO, 3, grid(2, 2, 1, "summa", dp=2, zero=1)),
    (TWO, 1, grid(2, 1, 2, "agarwal", dp=2, zero=3)),
    (TWO, 3, grid(1, 2, 2, "axonn", dp=2, zero=2, bucket_bytes=4096)),
    (TWO, 1, grid(1, 1, 2, "axonn", dp=4, shard=2, zero=3)),
    (TWO, 3, grid(2, 1, 1, "axonn", pp=2, dp=2, schedule="gpipe", reduction="gather-broadcast")),
    (ONE, 2, grid(2, 2, 1, "cannon")),
    (ONE, 2, grid(2, 2, 2, "agarwal")),
    (ONE, 2, grid(2, 2, 2, "axonn")),
]


@pytest.mark.parametrize("plan", ALONE, ids=name)
def test_every_grid_is_the_serial_run_after_ten_steps(plan, folder):
    assert_is_serial(GPT, plan, folder)


@pytest.mark.parametrize(("case", "micro_batches", "plan"), PRODUCTS, ids=name)
def test_grids_go_with_replicas_shards_and_stages(case, micro_batches, plan, folder):
    assert_is_serial(on_plan(case, plan, micro_batches), plan, folder)


def test_an_output_alone_is_tensor_parallelism_bit_for_bit(folder):
    grid_run, tensor_run = (train(GPT, plan, folder) for plan in (grid(1, 3, 1, "axonn"), Plan(tp=3)))
    np.testing.assert_array_equal(grid_run.losses, tensor_run.losses)
    for key, tensor in tensor_run.tensors.items():
        np.testing.assert_array_equal(grid_run.tensors[key], tensor, err_msg=str(key))


def held_by_kind(trainer, mesh):
    """Return what is held by kind after three steps, and what is still under way."""
    return held(trainer, mesh), trainer.stage.buffers.held_bytes


HELD = [
    (GPT, grid(3, 3, 1, "cannon")),
    (GPT, grid(2, 2, 1, "summa")),
    (GPT, grid(3, 2, 1, "summa")),
    (GPT, grid(2, 2, 2, "agarwal")),
    (GPT, grid(1, 2, 2, "agarwal")),
    (GPT, grid(2, 2, 2, "axonn")),
    (ONE, grid(2, 2, 1, "cannon")),
]


@pytest.mark.parametrize(("case", "plan"), HELD, ids=name)
def test_every_rank_holds_what_is_predicted(case, plan, folder):
    case = on_plan(replace(case, train=replace(case.train, batch=24)), plan, 2)
    ranks = range(plan.ranks)
    predicted = [memory_bytes(case, rank) for rank in ranks]
    assert each_rank(case, plan, folder, held_by_kind) == [(kinds, 0) for kinds in predicted]
    totals = [sum(kinds.values()) for kinds in predicted]
    assert totals[fullest_rank(case)] == max(totals)
    whole = on_plan(case, plan, 1)
    assert most_kept(whole, plan, folder) == [kept_bytes(whole, rank) for rank in ranks]


@pytest.mark.parametrize("plan", [ALONE[0], ALONE[2], CUBE, TESSERACT], ids=name)
def test_the_ranks_together_multiply_what_is_predicted(plan, folder):
    case = on_plan(GPT, plan)
    assert multiplied(case, plan, folder) == executed_flops(case)
