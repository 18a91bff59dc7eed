"""What sharding asks of a plan, and what it costs: calls and memory, in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pscale.config import Case
from pscale.errors import PlanError
from pscale.mesh.grid import axis_name, coordinates, spanned
from pscale.nn.paper import WIDE_BYTES
from pscale.parallel import division, zero_walk
from pscale.parallel.fitting import alternatives, divisors
from pscale.parallel.replicas import EVERYWHERE, SETS, Call
from pscale.parallel.shards import Shards
from pscale.parallel.zero_walk import Event


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
            f"{plan.zero}; zero 3, or reshard_after_forward true, would do"
        )
    if not plan.shard:
        return
    if not plan.zero:
        raise PlanError(
            f"shard {plan.shard} needs something to share, and the plan has zero 0; "
            "zero 1, 2 or 3, or shard 0, would do"
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
    told = zero_walk.events(case, rank)
    made = [call for dealt in _dealt(case, rank) if dealt.shared for call in _exchange(case, dealt, told)]
    if case.asks_for_norm and plan.ranks > 1:
        made.append(
            Call(axis=axis_name(spanned(plan.sizes, EVERYWHERE)), verb="all_reduce", sent_bytes=8, wide=True)
        )
    return made


def _exchange(case: Case, dealt: _Dealt, told: Sequence[Event]) -> Iterator[Call]:
    """Yield the calls for one group of parameters: a unit is summed and gathered as a whole."""
    plan, item, name = case.plan, division.item_bytes(case), axis_name(dealt.shared)
    summed, widens = division.summed_bytes(case), division.widens(case)
    sums = case.train.micro_batches if plan.zero >= 2 else 1
    gathers, _ = zero_walk.gathered(told, dealt.layouts, keep=not plan.reshard_after_forward)
    for unit, layout in dealt.layouts.items():
        shard_bytes, times = layout.shard * item, gathers[unit] if plan.zero == 3 else 1
        sent_bytes = layout.padded * summed
        yield Call(axis=name, verb="reduce_scatter", sent_bytes=sent_bytes, count=sums, wide=widens)
        yield Call(axis=name, verb="all_gather", sent_bytes=shard_bytes, count=times)
        if dealt.sets:
            sent_bytes = layout.shard * summed
            yield Call(axis=SETS, verb="all_reduce", sent_bytes=sent_bytes, wide=widens)


def buffer_bytes(case: Case, rank: int) -> int:
    """Predict the memory for padding and for what is here for a while."""
    zero, elements, told = case.plan.zero, 0, zero_walk.events(case, rank)
    for dealt in _dealt(case, rank):
        if not dealt.shared:
            continue
        for layout in dealt.layouts.values():
            whole, shard = layout.padded - layout.size, layout.shard - layout.count(dealt.part)
            elements += (shard if zero == 3 else whole) + (shard if zero >= 2 else whole)
        if zero == 3:
            elements += zero_walk.gathered(told, dealt.layouts, keep=not case.plan.reshard_after_forward)[1]
        if zero >= 2:
            elements += zero_walk.contributed(told, dealt.layouts)
    return elements * division.item_bytes(case) + _widened_bytes(case, rank)


def _widened_bytes(case: Case, rank: int) -> int:
    """Predict the memory of gradients on their way to a sum in float32.

    With zero 1 they are all on it at the end of a step, and then the shards of one unit after another, where
    there are sets of them; else it is the other way round. Memory is kept for units of a size.
    """
    if not division.widens(case):
        return 0
    elements = 0
    for dealt in _dealt(case, rank):
        if dealt.shared:
            sizes = [layout.padded for layout in dealt.layouts.values()]
            elements += sum(sizes if case.plan.zero == 1 else {*sizes})
        if dealt.sets:
            sizes = [layout.shard for layout in dealt.layouts.values()]
            elements += sum({*sizes} if case.plan.zero == 1 else sizes)
    return elements * WIDE_BYTES


def model_state(case: Case, rank: int) -> dict[str, int]:
    """Predict the elements of `parameters` and `gradients` that stay on `rank`, and those that it updates."""
    elements = dict.fromkeys(("parameters", "gradients", "updated"), 0)
    for dealt in _dealt(case, rank):
        for layout in dealt.layouts.values():
            owned = layout.count(dealt.part)
            elements["parameters"] += owned if case.plan.zero == 3 else layout.size
            elements["gradients"] += owned if case.plan.zero >= 2 else layout.size
            elements["updated"] += owned
    return elements


def owned(case: Case, rank: int) -> list[dict[int, slice]]:
    """Return, for each group of parameters, which elements of every unit `rank` updates."""
    return [
        {unit: layout.owned(dealt.part) for unit, layout in dealt.layouts.items()}
        for dealt in _dealt(case, rank)
    ]


@dataclass(frozen=True, kw_only=True)
class _Dealt:
    """A group of parameters as one rank has it: how each unit is in shards, and which one is its own."""

    shared: tuple[str, ...]  # dims over which it is in shards
    sets: bool  # whether other ranks have the same shards
    layouts: dict[int, Shards]  # by number of the unit
    part: int


def _dealt(case: Case, rank: int) -> Iterator[_Dealt]:
    sizes, places = case.plan.sizes, coordinates(case.plan.sizes, rank)
    for group in division.parts(case, rank):
        shared = tuple(dim for dim in group.sync if dim != SETS) if case.plan.zero else ()
        part = 0
        for dim in shared:
            part = part * sizes[dim] + places[dim]
        parts = math.prod(sizes[dim] for dim in shared)
        layouts = {unit: Shards(size=size, parts=parts) for unit, size in group.units.items()}
        yield _Dealt(shared=shared, sets=SETS in group.sync, layouts=layouts, part=part)
