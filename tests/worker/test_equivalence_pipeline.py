"""A pipeline is the serial run: every schedule, any number of stages, alone and with replicas of stages."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from plans import BLOCK, TEXT, counted_calls, difference, each_rank, largest_difference, predicted_calls, train

from pscale.config import Model, Plan
from pscale.errors import PlanError
from pscale.parallel import check
from pscale.parallel.predict import activation_bytes
from pscale.parallel.replicas import TOKENS

# The bias of the keys has no gradient but rounding, which a small epsilon would blow up to a weight.
DEEP = replace(TEXT, model=replace(TEXT.model, layers=4), train=replace(TEXT.train, epsilon=1e-6))
ODD = replace(DEEP, model=replace(DEEP.model, layers=3, vocabulary=257))
ONE_CHUNK = ("gpipe", "1f1b", "zero-bubble")


def plan(schedule, pp, chunks=1, **more):
    return Plan(pp=pp, schedule=schedule, virtual_stages=chunks, **more)


def with_micro_batches(case, micro_batches):
    return replace(case, train=replace(case.train, micro_batches=micro_batches))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@cache
def serial(layers, folder):
    return train({4: DEEP, 3: ODD}[layers], Plan(), folder)


def assert_equal_to_serial(case, how, folder):
    serial_losses, serial_weights, _ = serial(case.model.layers, folder)
    losses, weights, spread = train(case, how, folder)
    assert difference(losses, serial_losses) < 1e-12
    assert largest_difference(weights, serial_weights) < 1e-12
    assert spread == 0


@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8])
@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("schedule", ONE_CHUNK)
def test_losses_and_weights_do_not_depend_on_stages_or_schedule(schedule, pp, micro_batches, folder):
    assert_equal_to_serial(with_micro_batches(DEEP, micro_batches), plan(schedule, pp), folder)


@pytest.mark.parametrize(("pp", "chunks", "micro_batches"), [(2, 2, 2), (2, 2, 4), (2, 2, 8), (4, 1, 8)])
def test_stages_may_hold_several_parts_of_the_model(pp, chunks, micro_batches, folder):
    how = plan("interleaved" if chunks > 1 else "1f1b", pp, chunks)
    assert_equal_to_serial(with_micro_batches(DEEP, micro_batches), how, folder)


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("schedule", ONE_CHUNK)
def test_layers_and_micro_batches_need_not_divide_by_the_stages(schedule, micro_batches, folder):
    case = replace(ODD, train=replace(ODD.train, batch=12, micro_batches=micro_batches))
    losses, weights, _ = train(case, plan(schedule, 2), folder)
    serial_losses, serial_weights, _ = train(replace(ODD, train=replace(ODD.train, batch=12)), Plan(), folder)
    assert difference(losses, serial_losses) < 1e-12
    assert largest_difference(weights, serial_weights) < 1e-12


PRODUCTS = [
    plan("gpipe", 2, dp=2),
    plan("1f1b", 4, dp=2, reduction="all-reduce"),
    plan("interleaved", 2, 2, dp=2, bucket_bytes=20_000),
    plan("zero-bubble", 2, dp=2, bucket_bytes=20_000),
    plan("zero-bubble", 4, dp=2, reduction="gather-broadcast"),
]


@pytest.mark.parametrize("how", PRODUCTS, ids=str)
def test_replicas_of_stages_train_as_one(how, folder):
    assert_equal_to_serial(with_micro_batches(DEEP, 4), how, folder)


@pytest.mark.parametrize("loading", ["memory", "scatter", "files", "mpi-io"])
def test_every_loading_mode_feeds_the_ends_of_a_pipeline(loading, folder):
    case = with_micro_batches(replace(DEEP, data=replace(DEEP.data, loading=loading)), 2)
    losses, _, _ = train(case, plan("1f1b", 2, dp=2), folder)
    assert difference(losses, serial(4, folder)[0]) < 1e-12
