"""What data parallelism asks of a plan, whole or in shards (ZeRO), and its calls in closed form.

How often weights are gathered follows from the order in which a step uses the units.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from pscale.config import Case
from pscale.config.axes import ALL_AXES, BATCH_AXES, PARAMETER_AXES, SETS
from pscale.mesh.grid import axis_name, place, spanned
from pscale.nn.optimizers import MASTER, rule_of
from pscale.parallel import pipeline, sharding
from pscale.parallel.recompute import Segment, segments
from pscale.parallel.reduction import buckets
from pscale.parallel.replicas import Call
from pscale.parallel.shards import Shards


def calls(case: Case, rank: int) -> list[Call]:
    """Predict the calls that `rank` makes in one step."""
    plan, made, different = case.plan, _scattered_windows(case, rank), PARAMETER_AXES
    if plan.zero:
        told, different = events(case, rank), ALL_AXES
        made += [call for part in sharding.tensor_groups(case, rank) for call in _exchange(case, part, told)]
    elif plan.compression == "none":
        parts = (part for part in sharding.tensor_groups(case, rank) if part.sync)
        made += [call for part in parts for call in _reduction(case, part, rank)]
    if plan.pp > 1:
        parts = (part for part in sharding.tensor_groups(case, rank) if part.tied)
        made += [call for part in parts for call in _tied(case, part, rank)]
    if case.asks_for_norm and (span := spanned(plan.sizes, different)):
        made.append(Call(axis=axis_name(span), verb="all_reduce", sent_bytes=8, wide=True))
    return made


def optimizer_calls(case: Case, rank: int) -> list[Call]:
    """Predict the calls over shards, and over parts of a cut, that the rule of the optimizer declares."""
    rule, item, found = rule_of(case.train.optimizer), max(sharding.item_bytes(case), MASTER.itemsize), []
    for part in sharding.tensor_groups(case, rank):
        axes = {"shards": part.sharing(case.plan), "cuts": part.cut}
        shards = math.prod(case.plan.sizes[axis] for axis in axes["shards"])
        for over, verb, sent_bytes in rule.exchanges(list(part.tensors.values()), shards, item):
            if axes[over]:
                found.append(Call(axis=axis_name(axes[over]), verb=verb, sent_bytes=sent_bytes, wide=True))
    return found


def _scattered_windows(case: Case, rank: int) -> list[Call]:
    """Predict what brings the windows of text to stages that begin or end the model, if one rank has them."""
    span = spanned(case.plan.sizes, BATCH_AXES)
    if case.data.loading != "scatter" or not span:
        return []
    table = pipeline.timetable(case.plan, case.train.micro_batches)
    forwards = (each for each in table.actions(pipeline.stage_of(case.plan, rank)) if each.kind == "forward")
    count = sum(None in (table.source(action), table.target(action)) for action in forwards)
    sent = sharding.sequences(case) * (case.model.sequence + 1) * case.plan.batch_parts
    is_root = place(case.plan.sizes, rank, *span) == 0
    return [Call(axis=axis_name(span), verb="scatter", sent_bytes=sent if is_root else 0, count=count)]


def _tied(case: Case, part: sharding.TensorGroup, rank: int) -> list[Call]:
    """Predict the exchange of the summed gradients of a table between the first stage and the last."""
    plan, shared = case.plan, part.sharing(case.plan)
    shards = Shards(size=part.parameters, parts=math.prod(plan.sizes[axis] for axis in shared))
    sent_bytes = shards.count(place(plan.sizes, rank, *shared)) * sharding.gradient_bytes(case)
    return [
        Call(axis="pp", verb="send", sent_bytes=sent_bytes, wide=sharding.upcasts(case)),
        Call(axis="pp", verb="receive", sent_bytes=0),
    ]


def _reduction(case: Case, part: sharding.TensorGroup, rank: int) -> list[Call]:
    """Predict the calls that sum the gradients of one group of parameters."""
    axis = axis_name(part.sync)
    units = [size * sharding.gradient_bytes(case) for size in part.units.values()]
    if case.plan.reduction == "gather-broadcast":
        total, root = sum(units), place(case.plan.sizes, rank, *part.sync) == 0
        return [
            Call(axis=axis, verb="gather", sent_bytes=total),
            Call(axis=axis, verb="broadcast", sent_bytes=total if root else 0),
        ]
    groups = (
        buckets(units, case.plan.bucket_bytes) if case.plan.reduction == "bucketed" else [range(len(units))]
    )
    return [
        Call(
            axis=axis,
            verb="all_reduce",
            sent_bytes=sum(units[group.start : group.stop]),
            wide=sharding.upcasts(case),
        )
        for group in groups
    ]


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
