"""Sharded runs are the serial run, make the calls that are predicted, and hold what is predicted."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from plans import (
    BLOCK,
    LINEAR,
    TEXT,
    counted_calls,
    difference,
    each_rank,
    largest_difference,
    predicted_calls,
    train,
)
from thread_mesh import ThreadAxis

from pscale.config import Model, Plan
from pscale.nn import counts
from pscale.parallel import zero_plan
from pscale.parallel.predict import predict
from pscale.parallel.weights import WholeWeights

# The bias of the keys has no gradient but rounding, which a small epsilon would blow up to a weight.
TRAIN = replace(TEXT.train, batch=48, epsilon=1e-6)
SIZES = Model(layers=3, width=18, heads=3, sequence=15, vocabulary=257, dtype="float64")
MOMENTUM = {"optimizer": "sgd", "momentum": 0.9, "lr": 0.1}
CASES = {
    "gpt": replace(TEXT, model=SIZES, train=TRAIN),
    "gpt sgd": replace(TEXT, model=SIZES, train=replace(TRAIN, **MOMENTUM)),
    "block": replace(BLOCK, train=replace(BLOCK.train, batch=48)),
    "linear": replace(LINEAR, train=replace(LINEAR.train, batch=48, momentum=0.5, clip=0.1)),
}
KEPT = {"zero": 3, "reshard_after_forward": False}
STAGES = ({"zero": 1}, {"zero": 2}, {"zero": 3}, KEPT)
RUNS = [
    *(("gpt", Plan(dp=dp, **stage), 2 if dp in (3, 8) else 1) for stage in STAGES for dp in (2, 3, 4, 8)),
    *((kind, Plan(dp=3, **stage), 2) for stage in STAGES for kind in ("gpt sgd", "block")),
    *(("block", Plan(dp=8, **stage), 1) for stage in STAGES),
    *(("linear", Plan(dp=8, **stage), 1) for stage in STAGES),  # 5 weights on 8 ranks
    *(("gpt", Plan(dp=8, shard=shard, zero=zero), 2) for zero, shard in ((1, 2), (2, 4), (3, 2))),
    *(("gpt", Plan(dp=2, tp=3, sp=True, zero=zero), 2) for zero in (1, 2, 3)),
    ("gpt", Plan(dp=4, shard=2, tp=3, sp=True, zero=3), 1),
    ("gpt", Plan(tp=3, sp=True, zero=3), 2),
    ("block", Plan(tp=2, zero=3), 1),
    ("gpt", Plan(zero=3), 2),
]  # fmt: skip


def name(value):
    if not isinstance(value, Plan):
        return str(value)
    changed = {key: each for key, each in vars(value).items() if each != getattr(Plan(), key)}
    return " ".join(f"{key}={each}" for key, each in changed.items())


def case_of(kind, micro_batches):
    case = CASES[kind]
    return replace(case, train=replace(case.train, micro_batches=micro_batches))


@cache
def serial(kind, folder):
    return train(CASES[kind], Plan(), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.mark.parametrize(("kind", "plan", "micro_batches"), RUNS, ids=name)
def test_losses_and_weights_are_those_of_the_serial_run(kind, plan, micro_batches, folder):
    serial_losses, serial_weights, _ = serial(kind, folder)
    losses, weights, spread = train(case_of(kind, micro_batches), plan, folder)
    assert difference(losses, serial_losses) < 1e-12
    assert largest_difference(weights, serial_weights) < 1e-12
    assert spread == 0


@pytest.mark.parametrize(("kind", "plan", "micro_batches"), RUNS, ids=name)
def test_every_rank_makes_the_calls_that_are_predicted(kind, plan, micro_batches, folder):
    case = case_of(kind, micro_batches)
    assert counted_calls(case, plan, folder) == predicted_calls(case, plan)


@pytest.mark.parametrize(("kind", "plan", "micro_batches"), RUNS, ids=name)
def test_every_rank_holds_what_is_predicted_and_no_more_with_every_step(kind, plan, micro_batches, folder):
    case = replace(case_of(kind, micro_batches), ranks=plan.ranks, plan=plan)

    def steps(trainer):
        held = []
        for index in range(3):
            trainer.step(index)
            held.append(trainer.replicas.memory_bytes())
        return held

    for rank, (_, second, third) in enumerate(each_rank(case, plan, folder, steps)):
        kinds = ("parameters", "gradients", "optimizer")
        predicted = {kind: predict(case, rank).memory_bytes[kind] for kind in kinds}
        assert second == third == {**predicted, "exchange": zero_plan.buffer_bytes(case, rank)}


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_a_step_sends_what_the_literature_says(stage, micro_batches, folder):
    model = replace(SIZES, width=24, sequence=16)  # every unit divides by 4
    case = replace(CASES["gpt"], model=model, train=replace(TRAIN, micro_batches=micro_batches, clip=None))
    whole = counts.parameters(model) * 8
    sums, gathers = {
        1: (1, 1),
        2: (micro_batches, 1),
        3: (micro_batches, micro_batches * (2 if stage != KEPT else 1)),
    }[stage["zero"]]
    expected = {"reduce_scatter": sums * whole, "all_gather": gathers * whole // 4}
    for counted in counted_calls(case, Plan(dp=4, **stage), folder):
        sent = Counter()
        for (_, verb, size), count in counted.items():
            sent[verb] += size * count
        assert sent == expected


@pytest.mark.parametrize(
    ("stage", "parts"),
    [(1, (1, 1, 4)), (2, (1, 4, 4)), (3, (4, 4, 4))],  # of parameters, gradients, optimizer: cut in how many
)
def test_model_state_is_that_of_the_literature(stage, parts, folder):
    model = replace(SIZES, width=24, sequence=16)
    case = replace(CASES["gpt"], model=model)
    whole = counts.parameters(model) * 8
    held = each_rank(case, Plan(dp=4, zero=stage), folder, lambda trainer: trainer.replicas.memory_bytes())
    for each in held:
        found = [each[kind] for kind in ("parameters", "gradients", "optimizer")]
        assert found == [whole * copies // part for part, copies in zip(parts, (1, 1, 2), strict=True)]


def keep_own_part(axis, x, out):
    def act():
        out[...] = np.split(x, axis.size)[axis.rank]
        axis._board.gate.wait()

    return axis._start("reduce_scatter", x.nbytes, act)


@pytest.mark.parametrize("stage", STAGES[:3], ids=str)
def test_a_missing_sum_of_gradients_is_caught(stage, folder, monkeypatch):
    monkeypatch.setattr(ThreadAxis, "start_reduce_scatter", keep_own_part)
    _, weights, _ = train(CASES["gpt"], Plan(dp=2, **stage), folder)
    assert largest_difference(weights, serial("gpt", folder)[1]) > 1e-6


def test_a_missing_sum_over_the_sets_of_shards_is_caught(folder, monkeypatch):
    monkeypatch.setattr(
        ThreadAxis, "start_all_reduce", lambda axis, x: axis._start("all_reduce", x.nbytes, lambda: None)
    )
    _, weights, spread = train(CASES["gpt"], Plan(dp=4, shard=2, zero=2), folder)
    assert largest_difference(weights, serial("gpt", folder)[1]) > 1e-6
    assert spread > 1e-6


def test_weights_that_are_not_published_are_caught(folder, monkeypatch):
    monkeypatch.setattr(WholeWeights, "publish", lambda _: None)
    _, weights, spread = train(CASES["gpt"], Plan(dp=2, zero=1), folder)
    assert largest_difference(weights, serial("gpt", folder)[1]) > 1e-6
    assert spread > 1e-6
