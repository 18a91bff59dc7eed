"""What sharding asks of a plan, and what it costs: calls and memory, in closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from pscale.config import Case, Plan, spanned
from pscale.errors import PlanError
from pscale.parallel.layout import Layout
from pscale.parallel.replicas import EVERYWHERE, SETS, Call, Held, coordinates, held


def check(case: Case) -> None:
    """Raise PlanError if the choices of the plan contradict each other."""
    plan = case.plan
    if plan.zero and plan.reduction != "bucketed":
        raise PlanError(
            f"zero {plan.zero} sums gradients by reduce-scatter, unit by unit: reduction {plan.reduction} "
            "is for zero 0"
        )
    if not plan.reshard_after_forward and plan.zero != 3:
        raise PlanError(
            f"reshard_after_forward is for zero 3, which gathers weights; the plan has zero {plan.zero}"
        )
    if not plan.shard:
        return
    if not plan.zero:
        raise PlanError(f"shard {plan.shard} needs zero 1, 2 or 3; the plan has zero 0")
    if plan.shard < 2 or plan.dp % plan.shard:
        fits = " or ".join(str(part) for part in range(2, plan.dp + 1) if plan.dp % part == 0)
        raise PlanError(
            f"shard {plan.shard} does not divide dp {plan.dp} into sets of shards; shard {fits} would"
        )


def calls(case: Case, rank: int) -> list[Call]:
    """Predict the calls that `rank` makes in one step."""
    plan, train = case.plan, case.train
    if not plan.zero:
        return []
    itemsize = np.dtype(case.model.dtype).itemsize
    sums = train.micro_batches if plan.zero >= 2 else 1
    uses = train.micro_batches * (2 if plan.reshard_after_forward else 1)
    gathers = uses if plan.zero == 3 else 1
    made = []
    for group in held(case, rank):
        shared, layouts = _dealt(group, plan)
        for layout in layouts if shared else ():
            name, shard = "+".join(shared), layout.shard * itemsize
            made.append(
                Call(axis=name, verb="reduce_scatter", sent_bytes=layout.padded * itemsize, count=sums)
            )
            made.append(Call(axis=name, verb="all_gather", sent_bytes=shard, count=gathers))
            if SETS in group.sync:
                made.append(Call(axis=SETS, verb="all_reduce", sent_bytes=shard))
    if train.clip is not None and plan.ranks > 1:
        made.append(Call(axis="+".join(spanned(plan.sizes, EVERYWHERE)), verb="all_reduce", sent_bytes=8))
    return made


def buffer_bytes(case: Case, rank: int) -> int:
    """Predict the memory for padding and for what is here for a while."""
    if not case.plan.zero:
        return 0
    elements = 0
    for group in held(case, rank):
        shared, layouts = _dealt(group, case.plan)
        if not shared:
            continue
        for layout in layouts:
            owned = _owned(layout, case.plan, shared, rank)
            whole, shard = layout.padded - layout.size, layout.shard - owned
            elements += (shard if case.plan.zero == 3 else whole) + (shard if case.plan.zero >= 2 else whole)
        elements += _pool_elements(group, layouts, case)
    return elements * np.dtype(case.model.dtype).itemsize


def model_state(case: Case, rank: int) -> dict[str, int]:
    """Predict the elements of `parameters` and `gradients` that stay on `rank`, and those that it updates."""
    elements = dict.fromkeys(("parameters", "gradients", "updated"), 0)
    for group in held(case, rank):
        shared, layouts = _dealt(group, case.plan)
        for layout in layouts:
            owned = _owned(layout, case.plan, shared, rank)
            elements["parameters"] += owned if case.plan.zero == 3 else layout.size
            elements["gradients"] += owned if case.plan.zero >= 2 else layout.size
            elements["updated"] += owned
    return elements


def _dealt(group: Held, plan: Plan) -> tuple[tuple[str, ...], list[Layout]]:
    """Return the dims over which a group is in shards, and how its units are."""
    shared = tuple(dim for dim in group.sync if dim != SETS) if plan.zero else ()
    parts = math.prod(plan.sizes[dim] for dim in shared)
    return shared, [Layout(size=size, parts=parts) for size in group.units if size]


def _owned(layout: Layout, plan: Plan, shared: Sequence[str], rank: int) -> int:
    """Return how many elements of a unit `rank` owns."""
    part, places = 0, coordinates(plan.sizes, rank)
    for dim in shared:
        part = part * plan.sizes[dim] + places[dim]
    owned = layout.owned(part)
    return owned.stop - owned.start


def _pool_elements(group: Held, layouts: Sequence[Layout], case: Case) -> int:
    """Return the most that is here for a while: units in use and fetched, gradients that fill and that travel."""
    plan, units = case.plan, [bool(size) for size in group.units]
    slot = max(layout.padded for layout in layouts)
    neighbours = max((a + b for a, b in pairwise(units)), default=1)
    gathered = slot * neighbours if plan.reshard_after_forward else sum(layout.padded for layout in layouts)
    again = units[0] + units[-1] if case.train.micro_batches > 1 else 0  # the next micro-batch's last unit
    contributed = slot * max(neighbours, again)
    return (gathered if plan.zero == 3 else 0) + (contributed if plan.zero >= 2 else 0)
