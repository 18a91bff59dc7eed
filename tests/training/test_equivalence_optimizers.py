"""Optimizers that look at whole tensors are the serial ones however tensors are cut, shared and dealt out."""

from dataclasses import replace

import numpy as np
import pytest
from plans import LINEAR, TEXT, assert_is_serial, error_of, name, on_plan, serial

from pscale.config import Data, Matrix, Model, Plan, Train
from pscale.nn import counts
from pscale.nn.optimizers.base import ProcessGroups
from pscale.parallel import zero
from pscale.training.prediction import memory_bytes

# The bias of the keys has no gradient but rounding, which a small epsilon would blow up to a weight.
TRAIN = Train(batch=8, steps=2, warmup=0, lr=1e-2, clip=0.5, epsilon=1e-4)
GPT = replace(
    TEXT,
    model=Model(layers=3, width=12, heads=4, sequence=24, vocabulary=67, dtype="float64"),
    data=Data(kind="synthetic"),
    train=TRAIN,
)
MIXED = {"kind": "moe", "experts": 4, "top_k": 2, "every": 2, "balance_weight": 0.1}
MOE = replace(GPT, model=replace(GPT.model, **MIXED))
EVEN = replace(GPT, model=replace(GPT.model, vocabulary=64))  # divides by a grid
SP = {"sp": True}
PLANS = [
    ("adafactor", GPT, 2, Plan(dp=2)),
    ("lamb", GPT, 1, Plan(dp=4, zero=1)),
    ("adafactor", GPT, 2, Plan(dp=4, shard=2, zero=2)),
    ("adafactor", GPT, 2, Plan(dp=2, zero=3)),
    ("lamb", GPT, 1, Plan(tp=2, embedding="column")),
    ("adafactor", GPT, 1, Plan(tp=2, embedding="column")),
    ("adafactor", GPT, 1, Plan(tp=4, **SP)),
    ("lamb", GPT, 1, Plan(cp=2)),
    ("lamb", GPT, 4, Plan(pp=2, schedule="zero-bubble")),
    ("lamb", MOE, 1, Plan(ep=2)),
    ("adafactor", MOE, 1, Plan(ep=4)),
    ("adafactor", GPT, 1, Plan(dp=2, tp=2, zero=1, **SP)),
    ("lamb", GPT, 1, Plan(tp=2, cp=2, zero=3)),
    ("adafactor", GPT, 4, Plan(pp=2, dp=2, zero=3)),
    ("adafactor", MOE, 2, Plan(ep=2, tp=2, zero=2, **SP)),
    ("adafactor", LINEAR, 1, Plan(dp=4, zero=3)),  # the last rank has nothing
    ("lamb", EVEN, 1, Plan(dp=2, matrix=Matrix(tx=2, ty=2), zero=1)),
    ("adafactor", EVEN, 1, Plan(dp=2, matrix=Matrix(tx=2, ty=2, algorithm="summa"), zero=1)),
    ("adafactor", EVEN, 1, Plan(matrix=Matrix(tx=2, ty=2, tz=2, algorithm="agarwal"))),
    ("adafactor", EVEN, 1, Plan(pp=3, matrix=Matrix(ty=2, tz=2))),
    ("lion", GPT, 2, Plan(dp=2, zero=3)),
    ("lion", GPT, 1, Plan(tp=2, cp=2, zero=1)),
    ("lion", MOE, 2, Plan(pp=2, ep=2)),
    ("lion", EVEN, 1, Plan(matrix=Matrix(tx=2, ty=2))),
    ("muon", GPT, 2, Plan(dp=2, reduction="all-reduce")),
    ("muon", GPT, 2, Plan(dp=4, zero=1)),
    ("muon", GPT, 2, Plan(dp=4, shard=2, zero=2)),
    ("muon", GPT, 2, Plan(dp=2, zero=3)),
    ("muon", GPT, 1, Plan(tp=2)),
    ("muon", GPT, 1, Plan(tp=4, embedding="column", **SP)),
    ("muon", GPT, 1, Plan(cp=2, zero=1)),
    ("muon", GPT, 4, Plan(pp=2, dp=2, zero=3)),
    ("muon", MOE, 1, Plan(ep=4)),
    ("muon", MOE, 2, Plan(ep=2, tp=2, zero=2, **SP)),
    ("muon", GPT, 1, Plan(tp=2, cp=2, dp=2, zero=3)),
    ("muon", EVEN, 1, Plan(dp=2, matrix=Matrix(tx=2, ty=2), zero=1)),
    ("muon", EVEN, 1, Plan(matrix=Matrix(tx=2, ty=2, algorithm="summa"))),
    ("muon", EVEN, 1, Plan(dp=2, matrix=Matrix(tx=2, ty=2, tz=2, algorithm="agarwal"), zero=3)),
    ("muon", EVEN, 1, Plan(pp=3, matrix=Matrix(ty=2, tz=2))),
]


LION = {"epsilon": 1e-12}  # below the gradients, and above their rounding


def with_optimizer(case, optimizer, **more):
    more = LION | more if optimizer == "lion" else more
    return replace(case, train=replace(case.train, optimizer=optimizer, **more))


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "case", "micro_batches", "plan"), PLANS, ids=name)
def test_tensors_are_whole_under_every_plan(optimizer, case, micro_batches, plan, folder):
    assert_is_serial(on_plan(with_optimizer(case, optimizer), plan, micro_batches), plan, folder)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rates_follow_the_batch_and_the_step_under_every_plan(optimizer, folder):
    rates = {"lr_scaling": "linear", "lr_schedule": "cosine", "lr_warmup": 1, "momentum": 0.9}
    case, plan = with_optimizer(GPT, optimizer, **rates), Plan(dp=2, tp=2, zero=2)
    assert_is_serial(on_plan(case, plan), plan, folder)
    steady = serial(with_optimizer(GPT, optimizer, momentum=0.9), folder)
    assert np.abs(serial(on_plan(case, plan), folder).losses[1] - steady.losses[1]) > 1e-6


MISSING = [
    (Plan(dp=2, zero=1), "shards"),
    (Plan(tp=2), "cuts"),
    (Plan(tp=2, dp=2, zero=3), "cuts"),
    (Plan(matrix=Matrix(tx=2, ty=2)), "cuts"),
]


@pytest.mark.parametrize("optimizer", ["lamb", "adafactor"])
@pytest.mark.parametrize("without", MISSING, ids=["shards", "cuts", "cuts of shards", "cuts of a grid"])
def test_a_sum_that_is_left_out_is_caught(optimizer, without, folder, monkeypatch):
    plan, missing = without

    def incomplete(**sums):
        return ProcessGroups(**{name: add for name, add in sums.items() if name != missing})

    case = on_plan(with_optimizer(EVEN, optimizer), plan)
    serial(case, folder)
    monkeypatch.setattr(zero, "ProcessGroups", incomplete)
    error, _ = error_of(case, plan, folder)
    assert error > 1e-6


class Deaf:
    """An axis that gathers what this rank sends, as if all others had sent the same; or in a wrong order."""

    def __init__(self, axis, *, hears):
        self.size, self.rank, self._axis, self._hears = axis.size, axis.rank, axis, hears

    def all_gather(self, x, out):
        self._axis.all_gather(x, out)
        parts = out.reshape(self.size, -1)
        parts[...] = parts[::-1].copy() if self._hears else x.ravel()


@pytest.mark.parametrize("hears", [False, True], ids=["own part", "wrong order"])
@pytest.mark.parametrize("without", MISSING, ids=["shards", "cuts", "cuts of shards", "cuts of a grid"])
def test_a_matrix_that_is_gathered_wrongly_is_caught(hears, without, folder, monkeypatch):
    plan, missing = without

    def wrong(**axes):
        return ProcessGroups(**axes | {missing: Deaf(axes[missing], hears=hears)})

    case = on_plan(with_optimizer(EVEN, "muon"), plan)
    serial(case, folder)
    monkeypatch.setattr(zero, "ProcessGroups", wrong)
    error, _ = error_of(case, plan, folder)
    assert error > 1e-6


def test_adafactor_keeps_a_row_and_a_column_of_a_matrix_and_the_others_two_of_all():
    model = replace(GPT.model, width=64, dtype="float32")

    def state(optimizer, **plan):
        case = on_plan(with_optimizer(replace(GPT, model=model), optimizer), Plan(**plan))
        return memory_bytes(case, 0)["optimizer"]

    parameters = counts.parameters(model)
    assert state("adamw") == state("adam") == state("lamb") == 2 * 4 * parameters
    assert state("adafactor") < state("adamw") / 20
    assert state("lion") == state("adamw") / 2
    assert state("lamb", dp=4, zero=1) == pytest.approx(2 * parameters, rel=0.01)
