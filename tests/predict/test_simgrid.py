"""SimGrid runs the programs of plans, and shares links as closed forms say."""

import os

import numpy as np
import pytest
from plans import name, on_plan
from training.test_offload import GPT, MOE

from pscale.config import Matrix, Plan
from pscale.mesh.dry import AxisCall
from pscale.predict import simgrid
from pscale.predict.simgrid import SimGridError, simulate
from pscale.predict.step_program import Block, Segment, StepProgram, step_program
from pscale.simulator.network import Link, Tier, Tiers

pytestmark = pytest.mark.slow

LATENCY_S, BYTES_PER_S = 10e-6, 1e9


def tier(ranks, latency_s, bytes_per_s, oversubscription=1.0):
    link = Link(latency_s=latency_s, bytes_per_s=bytes_per_s)
    return Tier(name=f"of {ranks}", ranks=ranks, link=link, oversubscription=oversubscription)


ONE_SWITCH = Tiers(tiers=(tier(64, LATENCY_S, BYTES_PER_S),))
TREE = Tiers(tiers=(tier(4, 1e-6, 1e10), tier(16, 5e-6, 1e9), tier(64, 20e-6, 5e8, oversubscription=4)))
COMPUTE = Segment("forward", (), False, "", "")
MESSAGE = 10_000_000


@pytest.fixture(autouse=True)
def there():
    if not simgrid.is_there():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(simgrid.MISSING)


def program(sizes, *blocks):
    """Return a program of blocks along the first axis, as (places there, step)."""
    first, *others = sizes
    return StepProgram(
        sizes=sizes,
        spans={axis: (axis,) for axis in sizes},
        blocks=tuple(
            Block(places={first: places, **{axis: range(sizes[axis]) for axis in others}}, step=step)
            for places, step in blocks
        ),
    )


def message(verb, axis, partner, request=1):
    """Return start and wait of a message of MESSAGE bytes."""
    sent, arriving = (MESSAGE, 0) if verb == "send" else (0, MESSAGE)
    start = AxisCall("start", axis, verb, sent, partner, request, arriving=arriving)
    return start, AxisCall("wait", axis, verb, 0, partner, request)


def idle(of, steps=1):
    """Return durations of no time at all."""
    return np.zeros((of.ranks, steps, max(len(block.step) for block in of.blocks)))


@pytest.mark.parametrize("selector", simgrid.SELECTORS)
def test_eight_senders_to_one_receiver_share_its_link(selector):
    receives = [message("receive", "dp", partner, partner) for partner in range(1, 9)]
    starts, waits = zip(*receives, strict=True)
    senders = [(range(rank, rank + 1), message("send", "dp", 9 - rank)) for rank in range(1, 9)]
    incast = program({"dp": 9}, (range(1), (*starts, *waits)), *senders)
    took = simulate(incast, idle(incast), ONE_SWITCH, selector=selector).max()
    assert took == pytest.approx(8 * MESSAGE / BYTES_PER_S + LATENCY_S, rel=0.001)


@pytest.mark.parametrize(
    ("apart", "at_once", "bytes_per_s"),
    [
        (1, 1, 1e10),  # within a unit every rank has a link of its own
        (4, 4, 1e9),  # the four ranks of a unit share the way out of it
        (16, 64, 4 * 5e8 / 4),  # all ranks share what connects the largest units
    ],
)
def test_what_leaves_a_unit_of_a_tier_shares_its_bandwidth(apart, at_once, bytes_per_s):
    sizes = {"a": 64 // (2 * apart), "b": 2, "c": apart}
    step = (*message("send", "b", 1, 1)[:1], *message("receive", "b", 1, 2))
    pairs = program(sizes, (range(sizes["a"]), step))
    took = simulate(pairs, idle(pairs), TREE).max()
    assert took == pytest.approx(at_once * MESSAGE / bytes_per_s, rel=0.05)


def test_a_message_alone_gets_no_more_than_the_bandwidth_of_its_tier():
    only = StepProgram(sizes={"b": 8}, spans={"b": ("b",)}, blocks=_alone())
    assert simulate(only, idle(only), TREE).max() == pytest.approx(MESSAGE / 1e9 + 5e-6, rel=0.001)


def _alone():
    """Rank 0 sends to rank 4, in another unit; the others do nothing."""
    steps = {0: message("send", "b", 4), 4: message("receive", "b", 4)}
    return tuple(Block(places={"b": range(rank, rank + 1)}, step=steps.get(rank, ())) for rank in range(8))


@pytest.mark.parametrize(
    ("verb", "times"),
    [("all_reduce", 2 * 3 / 4), ("all_gather", 3), ("reduce_scatter", 3 / 4), ("all_to_all", 3 / 4)],
)
def test_collectives_move_what_closed_forms_say(verb, times):
    call = AxisCall("call", "dp", verb, 4 * MESSAGE)
    four = program({"dp": 4}, (range(4), (COMPUTE, call)))
    durations = np.full((4, 3, 2), 0.01)
    ends = simulate(four, durations, ONE_SWITCH)
    moved_s = times * 4 * MESSAGE / BYTES_PER_S
    assert np.diff(ends.max(axis=0)) == pytest.approx([0.01 + moved_s] * 2, rel=0.02)


@pytest.mark.parametrize(
    ("verb", "times"), [("all_reduce", 2 * 3 / 4), ("all_gather", 3), ("reduce_scatter", 3 / 4)]
)
def test_started_collectives_move_as_much_behind_computing(verb, times):
    start = AxisCall("start", "dp", verb, 4 * MESSAGE, request=1)
    step = (start, COMPUTE, AxisCall("wait", "dp", verb, 0, request=1))
    four = program({"dp": 4}, (range(4), step))
    moved_s = times * 4 * MESSAGE / BYTES_PER_S
    alone, hidden = (
        simulate(four, np.full((4, 1, 3), compute_s), ONE_SWITCH).max() for compute_s in (0.0, 0.01)
    )
    assert alone == pytest.approx(moved_s, rel=0.02)
    assert hidden == pytest.approx(moved_s, rel=0.02)


def test_a_collective_waits_for_the_last_rank_of_its_own_group_alone():
    call = AxisCall("call", "tp", "all_reduce", 8)
    pairs = program({"dp": 2, "tp": 2}, (range(2), (COMPUTE, call)))
    durations = np.zeros((4, 1, 2))
    durations[:, 0, 0] = [0.1, 0.5, 0.2, 0.3]
    assert simulate(pairs, durations, ONE_SWITCH).ravel() == pytest.approx([0.5, 0.5, 0.3, 0.3], abs=1e-3)


CASES = [
    on_plan(GPT, Plan(dp=2, reduction="gather-broadcast")),
    on_plan(GPT, Plan(dp=4, shard=2, zero=3)),
    on_plan(GPT, Plan(dp=2, tp=2, sp=True)),
    on_plan(GPT, Plan(cp=2, dp=2)),
    *(on_plan(GPT, Plan(pp=2, tp=2, schedule=each), 4) for each in ("1f1b", "zero-bubble")),
    on_plan(MOE, Plan(ep=2, dp=2)),
    on_plan(GPT, Plan(matrix=Matrix(tx=2, ty=2, algorithm="cannon"))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: name(case.plan))
def test_programs_of_plans_run_and_take_at_least_their_computing(case):
    step = step_program(case)
    durations = np.full(idle(step, 2).shape, 0.001)
    ends = simulate(step, durations, ONE_SWITCH)
    segments = max(sum(isinstance(each, Segment) for each in block.step) for block in step.blocks)
    assert ends.shape == (case.plan.ranks, 2)
    assert (np.diff(ends.max(axis=0)) >= 0.001 * segments).all()


def test_a_program_that_fails_says_why():
    odd = program({"dp": 2}, (range(2), (AxisCall("call", "dp", "unheard_of", 8),)))
    with pytest.raises(SimGridError, match="cannot read unheard_of"):
        simulate(odd, idle(odd), ONE_SWITCH)
