"""Data parallelism: whole parameters on every rank, gradients summed over the replicas."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from pscale.config import Case
from pscale.config.axes import BATCH_AXES, PARAMETER_AXES
from pscale.dtypes import dtype_of
from pscale.errors import PlanError
from pscale.mesh.axis import Mesh
from pscale.mesh.grid import axis_name, place, spanned
from pscale.nn.offload.storage import Storage
from pscale.nn.optimizers import make_optimizer
from pscale.nn.optimizers.base import Elsewhere, update
from pscale.nn.optimizers.state import Flat
from pscale.nn.param import Arena, Param, Share, views
from pscale.parallel import pipeline, sharding
from pscale.parallel.compression import make_compressed
from pscale.parallel.matrix.grid import batch_divisor
from pscale.parallel.precision import gradient_dtype
from pscale.parallel.reduction import buckets, make_reduction
from pscale.parallel.replicas import Call, Group, grouped, square_norm
from pscale.parallel.suggestions import multiples

Array = NDArray[np.floating]


class _Held:
    """The memory of one group of parameters, its reduction and its optimizer."""

    def __init__(self, group: Group, mesh: Mesh, case: Case, storage: Storage | None):
        plan = case.plan
        self.arena = Arena(group.params, dtype_of(case.model.dtype), gradient_dtype(case))
        grad, axis = self.arena.grad, mesh.axis(*group.sync)
        shapes = [param.shape for param in group.params]
        self.sync, self.compressed = axis, make_compressed(plan, grad, shapes, axis)
        self.reduction = self.compressed or make_reduction(plan, grad, _slices(group), axis)
        flat = Flat(self.arena.data, self.arena.grad, self.arena.params)
        elsewhere = Elsewhere(cuts=mesh.axis(*group.cut))
        self.optimizer = make_optimizer(case.train, [flat], elsewhere, storage)
        different = {"pp", *group.cut}
        self.copies = math.prod(mesh.sizes.get(axis, 1) for axis in PARAMETER_AXES if axis not in different)

    def gradients(self) -> Array:
        """Return the sums, and what ranks hold back of them, one after another."""
        if self.compressed is None:
            return self.arena.grad
        held_back = self.compressed.held_back.copy()
        self.sync.all_reduce(held_back)
        held_back += self.arena.grad
        return held_back


class Replicated:
    """Every replica holds all; implements `Replicas`."""

    def __init__(
        self, units: Sequence[Sequence[Param]], mesh: Mesh, case: Case, storage: Storage | None = None
    ):
        self._held = [_Held(group, mesh, case, storage) for group in grouped(units, mesh)]
        self._cutting = mesh.axis(*PARAMETER_AXES)

    def fill(self, seed: int, share: Share) -> None:
        """Give every parameter its initial value, and `share` it."""
        for held in self._held:
            held.arena.fill(seed, share)

    def gather(self, unit: int) -> None:
        """Find the weights whole as they are."""

    def release(self, unit: int, *, again: bool = False) -> None:
        """Keep the weights."""

    def drop(self, unit: int) -> None:
        """Keep the weights."""

    def start_step(self) -> None:
        """Let the first contribution to each gradient replace what is there."""
        for held in self._held:
            held.arena.clear_grads()

    def ready(self, unit: int, *, last: bool) -> None:
        """Let reductions begin with gradients that are final."""
        if last:
            for held in self._held:
                held.reduction.ready(unit)

    def finish(self) -> None:
        """Return when every gradient is the sum over its replicas."""
        for held in self._held:
            held.reduction.finish()

    def square_norm(self) -> float:
        """Sum squares over the ranks that hold different parameters."""
        return square_norm(((held.arena.grad, held.copies) for held in self._held), self._cutting)

    def update(self, lr: float, scale: float) -> None:
        """Do one optimizer step with the gradients times `scale`."""
        for held in self._held:
            update(held.optimizer, 1, lr, scale)

    def gradients(self) -> Iterator[tuple[Param, Array]]:
        """Yield every parameter with its summed gradient; what compression holds back is added to it."""
        for held in self._held:
            yield from views(held.arena.params, held.gradients())

    def memory_bytes(self) -> dict[str, int]:
        """Return what is held by kind."""
        return {
            "parameters": sum(held.arena.data.nbytes for held in self._held),
            "gradients": sum(held.arena.grad.nbytes for held in self._held),
            "optimizer": sum(state.nbytes for held in self._held for state in held.optimizer.state),
            "exchange": sum(held.reduction.buffer_bytes for held in self._held),
        }

    def weights(self) -> Iterator[tuple[Param, Array]]:
        """Yield every parameter with its value."""
        for held in self._held:
            for param in held.arena.params:
                yield param, param.data


def _slices(group: Group) -> dict[int, slice]:
    """Return where in the group's flat memory each unit lies."""
    slices, start = {}, 0
    for unit, params in group.units.items():
        stop = start + sum(param.size for param in params)
        slices[unit] = slice(start, stop)
        start = stop
    return slices


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
