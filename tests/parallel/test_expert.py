from dataclasses import replace

import pytest
from kept_activations import kept_bytes
from plans import most_kept, multiplied, name

from pscale.config import Case, Model, Plan, Timing, Train
from pscale.parallel.recompute import executed_flops
from pscale.training.dry_run import step_calls

MODEL = Model(
    kind="moe", layers=3, width=16, heads=2, sequence=12, experts=4, top_k=2, every=2, dtype="float64"
)


def case_of(plan, model=MODEL, batch=16, **train):
    train = Train(batch=batch, warmup=0, steps=1, **train)
    timing = Timing(overhead_steps=0)
    return Case(suite="s", label="l", ranks=plan.ranks, plan=plan, model=model, train=train, timing=timing)


PLANS = [Plan(ep=2), Plan(ep=2, tp=2), Plan(ep=2, tp=2, sp=True), Plan(ep=2, cp=2), Plan(cp=3, tp=2, sp=True)]


@pytest.mark.parametrize("plan", PLANS, ids=name)
@pytest.mark.parametrize("capacity_factor", [0.25, 1.25, 8.0])
def test_a_rank_keeps_the_activations_that_are_predicted(capacity_factor, plan, folder):
    model = replace(MODEL, every=3, capacity_factor=capacity_factor)
    case = case_of(plan, model)
    assert most_kept(case, plan, folder) == [kept_bytes(case, rank) for rank in range(plan.ranks)]


@pytest.mark.parametrize("plan", PLANS, ids=name)
def test_the_ranks_together_multiply_what_is_counted(plan, folder):
    case = case_of(plan)
    assert multiplied(case, plan, folder) == executed_flops(case)


@pytest.mark.parametrize(
    ("plan", "room"),  # for tokens of 8 sequences: of 12 at most ceil(2 x 1.25 x 12 / 4) = 8 each
    [(Plan(ep=2), 8), (Plan(ep=2, tp=2), 8), (Plan(ep=2, tp=2, sp=True), 6), (Plan(ep=2, cp=3), 4)],
    ids=name,
)
def test_what_travels_has_room_for_the_most_tokens_that_a_rank_can_send(plan, room):
    exchange = next(call for call in step_calls(case_of(plan), 0) if call.axis == "ep")
    assert exchange.sent_bytes == 4 * 8 * room * MODEL.width * 8
