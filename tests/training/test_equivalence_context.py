"""Ranks that share sequences train as one rank that has them whole."""

from dataclasses import replace

import pytest
from plans import (
    BLOCK,
    TEXT,
    assert_is_serial,
    difference,
    largest_difference,
    name,
    predicted_calls,
    serial,
    train,
)

from pscale.config import Plan

pytestmark = pytest.mark.slow

CONTEXTS, PLACEMENTS = ("ring", "ulysses", "all-gather"), ("zigzag", "contiguous")
SEQUENCE = 24


def with_sequence(case, sequence, **train_fields):
    return replace(
        case,
        model=replace(case.model, sequence=sequence),
        train=replace(case.train, batch=4, **train_fields),
    )


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(
    "degrees", [{"cp": 2}, {"cp": 4}, {"cp": 2, "dp": 2}, {"cp": 2, "tp": 2, "sp": True}], ids=str
)
def test_losses_and_weights_do_not_depend_on_who_has_which_tokens(context, placement, degrees, folder):
    case = with_sequence(TEXT, SEQUENCE, micro_batches=2)
    plan = Plan(context=context, placement=placement, bucket_bytes=20_000, **degrees)
    assert_is_serial(case, plan, folder)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("context", CONTEXTS)
def test_the_same_holds_for_a_block_alone_that_is_not_fed_with_tokens(context, placement, folder):
    plan = Plan(cp=2, dp=2, context=context, placement=placement, reduction="gather-broadcast")
    assert_is_serial(with_sequence(BLOCK, SEQUENCE), plan, folder)


@pytest.mark.parametrize("plan", [Plan(cp=8), Plan(cp=3), Plan(cp=3, context="all-gather")], ids=str)
def test_the_same_holds_for_eight_ranks_and_for_three(plan, folder):
    assert_is_serial(with_sequence(TEXT, 48), plan, folder)


UNIFIED = {"context": "unified", "ulysses": 2}


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(
    "degrees",
    [
        {"cp": 4},
        {"cp": 6, "zero": 3},
        {"cp": 8, "ulysses": 4},
        {"cp": 4, "dp": 2, "zero": 2},
        {"cp": 4, "dp": 4, "zero": 3, "shard": 2},
        {"cp": 4, "tp": 2, "sp": True},
        {"cp": 4, "pp": 2, "tp": 2},
        {"cp": 4, "checkpoint": "selective"},
        {"cp": 4, "checkpoint": "full"},
    ],
    ids=str,
)
def test_the_same_holds_for_groups_on_a_ring(degrees, placement, folder):
    case = with_sequence(TEXT, 48, micro_batches=2 if "dp" not in degrees else 1)
    assert_is_serial(case, Plan(placement=placement, **{**UNIFIED, **degrees}), folder)


PLANS = [
    Plan(),
    Plan(cp=4, **UNIFIED),
    Plan(tp=2, sp=True),
    Plan(cp=3),
    Plan(cp=2, placement="contiguous"),
    Plan(cp=2, context="ulysses", dp=2),
    Plan(cp=2, context="all-gather", tp=2),
]


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("plan", PLANS, ids=name)
def test_attention_that_computes_scores_again_trains_as_the_one_that_keeps_them(plan, folder):
    plain = with_sequence(TEXT, SEQUENCE)
    case = replace(plain, model=replace(plain.model, attention="block"))
    run, expected = train(case, plan, folder), serial(plain, folder)
    assert difference(run.losses, expected.losses) < 1e-12
    assert largest_difference(run.tensors, expected.tensors) < 1e-12
    assert run.counted == predicted_calls(case, plan)
