"""What data parallelism asks of a plan, and the calls that sum gradients over whole replicas."""

from __future__ import annotations

import math

from pscale.config import Case
from pscale.config.axes import BATCH_AXES, PARAMETER_AXES
from pscale.errors import PlanError
from pscale.mesh.grid import axis_name, place, spanned
from pscale.parallel import pipeline, sharding
from pscale.parallel.matrix.grid import batch_divisor
from pscale.parallel.reduction import buckets
from pscale.parallel.replicas import Call
from pscale.parallel.suggestions import multiples


def check(case: Case) -> None:
    """Raise PlanError if the batch cannot be dealt out evenly."""
    batch, micro = case.train.batch, case.train.micro_batches
    factors = {**{axis: case.plan.degrees[axis] for axis in BATCH_AXES}, "micro_batches": micro}
    if case.scaling == "weak" and batch % case.plan.batch_parts == 0:
        # People give the batch of one replica, so the advice is about that.
        batch, factors = batch // case.plan.batch_parts, {"micro_batches": micro}
    parts = math.prod(factors.values())
    if batch % parts:
        named = [f"{name} {size}" for name, size in factors.items() if size > 1]
        split = " × ".join(named) + (f" = {parts}" if len(named) > 1 else "")
        fits = multiples(batch, parts * batch_divisor(case.plan))
        raise PlanError(f"batch {batch} does not divide by {split}; batch {fits} would")


def calls(case: Case, rank: int) -> list[Call]:
    """Predict the calls that `rank` makes in one step."""
    made = _scattered_windows(case, rank)
    if case.plan.zero:
        return made
    parts = sharding.tensor_groups(case, rank) if case.plan.compression == "none" else ()
    made += [call for part in parts if part.sync for call in _reduction(case, part, rank)]
    cutting = spanned(case.plan.sizes, PARAMETER_AXES)
    if cutting and case.asks_for_norm:
        made.append(Call(axis=axis_name(cutting), verb="all_reduce", sent_bytes=8, wide=True))
    return made


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
