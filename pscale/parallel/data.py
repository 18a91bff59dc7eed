"""Data parallelism: whole parameters on every rank, gradients summed over the replicas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pscale.config import Case, Plan
from pscale.errors import PlanError
from pscale.mesh.axis import Axis, Pending
from pscale.nn import counts
from pscale.parallel.replicas import Call, Replicas, buckets

Array = NDArray[np.floating]


class AllReduce:
    """One all-reduce of all gradients when the backward pass is over: simple, and nothing is hidden."""

    def __init__(self, grad: Array, axis: Axis):
        self._grad, self._axis = grad, axis

    def ready(self, unit: int) -> None:
        """Wait for the others: nothing starts before the end."""

    def finish(self) -> None:
        """Sum all gradients in one call."""
        self._axis.all_reduce(self._grad)


class GatherBroadcast:
    """Gradients travel to one rank, which sums them and sends the sum to all: the root is the bottleneck."""

    def __init__(self, grad: Array, axis: Axis):
        self._grad, self._axis = grad, axis
        self._gathered = np.empty((axis.size, grad.size), grad.dtype) if axis.rank == 0 else None

    def ready(self, unit: int) -> None:
        """Wait for the others: nothing starts before the end."""

    def finish(self) -> None:
        """Gather on rank 0, add up in the order of the ranks, broadcast."""
        self._axis.gather(self._grad, self._gathered)
        if self._gathered is not None:
            np.add.reduce(self._gathered, axis=0, out=self._grad)
        self._axis.broadcast(self._grad)


class Bucketed:
    """All-reduces of gradient buckets that start while the backward pass goes on, and hide behind it."""

    def __init__(self, grad: Array, axis: Axis, units: Sequence[slice], bucket_bytes: int):
        sizes = [(part.stop - part.start) * grad.itemsize for part in units]
        self._axis = axis
        self._buckets = {
            group.start: grad[units[group.start].start : units[group.stop - 1].stop]
            for group in buckets(sizes, bucket_bytes)
        }
        self._pending: list[Pending] = []

    def ready(self, unit: int) -> None:
        """Start the bucket that this unit completes, and let those under way make progress."""
        for pending in self._pending:
            pending.poll()
        if unit in self._buckets:
            self._pending.append(self._axis.start_all_reduce(self._buckets[unit]))

    def finish(self) -> None:
        """Wait for the buckets in the order in which they were started."""
        for pending in self._pending:
            pending.wait()
        self._pending.clear()


def replicas(plan: Plan, grad: Array, units: Sequence[slice], axis: Axis) -> Replicas:
    """Return the exchange of gradients that the plan asks for; `units` are slices of `grad`."""
    match plan.reduction:
        case "bucketed":
            return Bucketed(grad, axis, units, plan.bucket_bytes)
        case "all-reduce":
            return AllReduce(grad, axis)
        case "gather-broadcast":
            return GatherBroadcast(grad, axis)


def check(case: Case) -> None:
    """Raise PlanError if the batch cannot be dealt out evenly."""
    batch, dp, micro = case.train.batch, case.plan.dp, case.train.micro_batches
    if case.scaling == "weak" and batch % dp == 0:
        batch, dp = batch // dp, 1  # people give the batch of one replica, so the advice is about that
    parts = dp * micro
    if batch % parts:
        below, above = batch - batch % parts, batch - batch % parts + parts
        fits = " or ".join(str(value) for value in (below, above) if value)
        factors = [f"{name} {size}" for name, size in (("dp", dp), ("micro_batches", micro)) if size > 1]
        split = " × ".join(factors) + (f" = {parts}" if len(factors) > 1 else "")
        raise PlanError(f"batch {batch} does not divide by {split}; batch {fits} would")


def calls(case: Case, rank: int) -> list[Call]:
    """Predict the calls that `rank` makes in one step."""
    if case.plan.dp == 1:
        return []
    itemsize = np.dtype(case.model.dtype).itemsize
    units = [size * itemsize for _, size in counts.unit_parameters(case.model)]
    if case.plan.reduction == "gather-broadcast":
        total = sum(units)
        return [
            Call(axis="dp", verb="gather", sent_bytes=total),
            Call(axis="dp", verb="broadcast", sent_bytes=total if rank == 0 else 0),
        ]
    groups = (
        buckets(units, case.plan.bucket_bytes) if case.plan.reduction == "bucketed" else [range(len(units))]
    )
    return [
        Call(axis="dp", verb="all_reduce", sent_bytes=sum(units[group.start : group.stop]))
        for group in groups
    ]


def buffer_bytes(case: Case, rank: int) -> int:
    """Predict the memory that the exchange needs beside parameters and gradients."""
    if case.plan.reduction != "gather-broadcast" or rank != 0:
        return 0
    return case.plan.dp * counts.parameters(case.model) * np.dtype(case.model.dtype).itemsize
