"""What sharding asks of a plan, and what it costs in calls, in closed form.

How often weights are gathered follows from the order in which a step uses the units.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from pscale.config import Case
from pscale.config.axes import ALL_AXES, SETS
from pscale.errors import PlanError
from pscale.mesh.grid import axis_name, spanned
from pscale.parallel import pipeline, sharding
from pscale.parallel.recompute import Segment, segments
from pscale.parallel.replicas import Call
from pscale.parallel.shards import Shards
from pscale.parallel.suggestions import alternatives, divisors


def check(case: Case) -> None:
    """Raise PlanError if the choices of the plan contradict each other."""
    plan = case.plan
    if plan.zero and plan.reduction != "bucketed":
        raise PlanError(
            f"reduction {plan.reduction} is for zero 0, and zero {plan.zero} sums gradients by "
            "reduce-scatter, unit by unit; reduction bucketed works with every zero"
        )
    if not plan.reshard_after_forward and plan.zero != 3:
        raise PlanError(
            f"reshard_after_forward false is for zero 3, which gathers weights, and the plan has zero "
            f"{plan.zero}; zero 3 or reshard_after_forward true works"
        )
    if not plan.shard:
        return
    if not plan.zero:
        raise PlanError(
            f"shard {plan.shard} needs something to share, and the plan has zero 0; "
            "zero 1, 2 or 3, or shard 0 works"
        )
    if plan.dp == 1:
        raise PlanError(f"shard {plan.shard} needs replicas to share, and there is dp 1; shard 0 works")
    if plan.shard < 2 or plan.dp % plan.shard:
        fits = alternatives(divisors(plan.dp, 2))
        raise PlanError(
            f"shard {plan.shard} does not divide dp {plan.dp} into sets of shards; shard {fits} would"
        )


def calls(case: Case, rank: int) -> list[Call]:
    """Predict the calls that `rank` makes in one step."""
    plan = case.plan
    if not plan.zero:
        return []
    told = events(case, rank)
    made = [call for group in sharding.tensor_groups(case, rank) for call in _exchange(case, group, told)]
    if case.asks_for_norm and plan.ranks > 1:
        made.append(
            Call(axis=axis_name(spanned(plan.sizes, ALL_AXES)), verb="all_reduce", sent_bytes=8, wide=True)
        )
    return made


def _exchange(case: Case, group: sharding.TensorGroup, told: Sequence[Event]) -> Iterator[Call]:
    """Yield the calls for one group of parameters: a unit is summed and gathered as a whole."""
    plan, item, shared = case.plan, sharding.item_bytes(case), group.sharing(case.plan)
    if not shared:
        return
    name, parts = axis_name(shared), math.prod(plan.sizes[axis] for axis in shared)
    layouts = {unit: Shards(size=size, parts=parts) for unit, size in group.units.items()}
    summed, upcasts = sharding.gradient_bytes(case), sharding.upcasts(case)
    sums = case.train.micro_batches if plan.zero >= 2 else 1
    gathers = gathered(told, layouts, keep=not plan.reshard_after_forward)
    for unit, layout in layouts.items():
        shard_bytes, times = layout.shard * item, gathers[unit] if plan.zero == 3 else 1
        sent_bytes = layout.padded * summed
        yield Call(axis=name, verb="reduce_scatter", sent_bytes=sent_bytes, count=sums, wide=upcasts)
        yield Call(axis=name, verb="all_gather", sent_bytes=shard_bytes, count=times)
        if SETS in group.sync:  # other ranks have the same shards
            sent_bytes = layout.shard * summed
            yield Call(axis=SETS, verb="all_reduce", sent_bytes=sent_bytes, wide=upcasts)


Kind = Literal["gather", "release", "leave", "drop", "claim", "ready"]


_KINDS: dict[str, tuple[Kind, ...]] = {  # of an action, for each of its units
    "forward": ("gather", "release"),
    "again": ("gather", "leave"),
    "backward": ("gather", "claim", "drop", "ready"),
    "input": ("gather", "claim", "drop"),
    "weight": ("claim", "ready"),
}


class Event(NamedTuple):
    """What the training loop tells the replicas of a unit; `claim`: it contributes to gradients."""

    kind: Kind
    unit: int


def events(case: Case, rank: int) -> list[Event]:
    """Return what happens to the units of `rank` in one step, in order."""
    stage = pipeline.stage_of(case.plan, rank)
    names, start = sharding.units(case, rank), 0
    parts: dict[int, list[Segment]] = {}
    for part, units in pipeline.stage_units(case.model, case.plan, stage).items():
        parts[part] = segments(case.plan, names[start : start + len(units)], start)
        start += len(units)
    table = pipeline.timetable(case.plan, case.train.micro_batches)
    return [
        event
        for action in table.actions(stage)
        for segment in (parts[action.part] if action.kind == "forward" else reversed(parts[action.part]))
        for event in _events(action.kind, segment)
        # A table of tokens is no matrix of a product: there is nothing to defer.
        if (action.kind, event.kind, names[event.unit]) != ("weight", "claim", "embedding")
    ]


def _events(action: str, segment: Segment) -> Iterator[Event]:
    """Yield what an action tells of the units of a segment.

    Of one that is computed again the last unit's weights stay: its backward comes next.
    """
    if action == "forward":
        yield from (Event(kind, unit) for unit in segment.units for kind in _KINDS[action])
        return
    again = segment.recomputed and action != "weight"
    if again:
        yield from (Event(kind, unit) for unit in segment.units[:-1] for kind in _KINDS["again"])
    for unit in reversed(segment.units):
        yield from (Event(kind, unit) for kind in _KINDS[action])


def gathered(told: Sequence[Event], layouts: Mapping[int, Shards], *, keep: bool) -> Counter[int]:
    """Return how often each unit is gathered in a step.

    A unit is fetched while the one before it in the order of use computes. `keep`: it stays as long as any
    micro-batch is between its forward and its backward.
    """
    order = [event.unit for event in told if event.kind == "gather"]
    times: Counter[int] = Counter()
    uses: Counter[int] = Counter()
    here: set[int] = set()
    place = 0

    def start(unit: int) -> None:
        if unit in layouts and unit not in here:
            here.add(unit)
            times[unit] += 1

    for kind, unit in told:
        if kind == "gather":
            place += 1
            start(unit)
        elif kind in ("release", "leave", "drop"):
            uses[unit] += {"release": 1, "leave": 0, "drop": -1}[kind]
            freed = not keep or (kind == "drop" and uses[unit] <= 0)
            if freed:
                here.discard(unit)
        for following in order[place : place + 1]:
            start(following)
    return times
