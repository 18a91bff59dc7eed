"""Experts on several ranks do what they do on one, whoever is dropped."""

from dataclasses import replace

import pytest
from plans import TEXT, assert_is_serial, name

from pscale.config import Model, Plan

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
