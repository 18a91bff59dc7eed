"""The parallel run is the serial run: the same global batch gives the same result under every plan."""

from dataclasses import replace
from itertools import pairwise

import pytest
from plans import BLOCK, LINEAR, TEXT, assert_is_serial, name, on_plan, serial

from pscale.config import Model, Plan


@pytest.mark.parametrize("case", [TEXT, BLOCK, LINEAR], ids=lambda case: case.model.kind)
@pytest.mark.parametrize("dp", [2, 4, 8])
@pytest.mark.parametrize("reduction", ["bucketed", "all-reduce", "gather-broadcast"])
def test_losses_and_weights_do_not_depend_on_the_number_of_ranks(case, dp, reduction, folder):
    assert_is_serial(case, Plan(dp=dp, reduction=reduction, bucket_bytes=20_000), folder)


@pytest.mark.parametrize("micro_batches", [2, 4])
def test_accumulating_micro_batches_gives_what_the_whole_batch_gives(micro_batches, folder):
    assert_is_serial(on_plan(TEXT, Plan(dp=2), micro_batches), Plan(dp=2), folder)


def test_training_makes_the_loss_fall(folder):
    assert all(later < earlier for earlier, later in pairwise(serial(LINEAR, folder).losses))


MOE = replace(
    TEXT,
    model=Model(
        kind="moe", layers=2, width=16, heads=2, sequence=13, experts=4, top_k=2, every=2, dtype="float64"
    ),
)


def case_of(top_k, capacity_factor, micro_batches=1):
    model = replace(MOE.model, top_k=top_k, capacity_factor=capacity_factor)
    return replace(MOE, model=model, train=replace(MOE.train, micro_batches=micro_batches))


@pytest.mark.slow
@pytest.mark.parametrize(("top_k", "capacity_factor"), [(1, 0.5), (1, 1.25), (2, 0.5), (2, 1.25), (2, 8.0)])
@pytest.mark.parametrize(
    ("plan", "micro_batches"),
    [
        (Plan(ep=2, dp=2, bucket_bytes=20_000), 2),
        (Plan(ep=4, dp=2, reduction="all-reduce"), 1),
        (Plan(dp=2), 4),
    ],
    ids=name,
)
def test_losses_and_weights_do_not_depend_on_where_the_experts_are(
    top_k, capacity_factor, plan, micro_batches, folder
):
    assert_is_serial(case_of(top_k, capacity_factor, micro_batches), plan, folder)
