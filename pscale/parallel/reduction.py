"""Three ways to sum gradients over an axis: in buckets during backward, at its end, or on one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pscale.config import Plan
from pscale.mesh.axis import Axis, Pending
from pscale.nn.buffers import aligned
from pscale.nn.dtypes import combine

Array = NDArray[np.floating]


class Reduction:
    """A sum of gradients over all ranks of an axis, in place, with `buffer_bytes` of memory beside them."""

    buffer_bytes = 0

    def ready(self, unit: int) -> None:
        """Be told that the gradients of unit `unit` are final for this step; units come in reverse order.

        Nothing starts before the end, unless a reduction says otherwise.
        """

    def finish(self) -> None:
        """Return when every gradient is the sum over the axis; of one rank, it is."""


class AllReduce(Reduction):
    """One all-reduce of all gradients when the backward pass is over: simple, and nothing is hidden."""

    def __init__(self, grad: Array, axis: Axis):
        self._grad, self._axis = grad, axis

    def finish(self) -> None:
        """Sum all gradients in one call."""
        self._axis.all_reduce(self._grad)


class GatherBroadcast(Reduction):
    """Gradients travel to one rank, which sums them and sends the sum to all: the root is the bottleneck."""

    def __init__(self, grad: Array, axis: Axis):
        self._grad, self._axis = grad, axis
        self._gathered: Array | None = None
        if axis.rank == 0:
            memory = aligned(axis.size * grad.nbytes)
            self._gathered = memory.view(grad.dtype).reshape(axis.size, grad.size)
        self.buffer_bytes = self._gathered.nbytes if self._gathered is not None else 0

    def finish(self) -> None:
        """Gather on rank 0, add up in the order of the ranks, broadcast."""
        self._axis.gather(self._grad, self._gathered)
        if self._gathered is not None:
            combine(self._gathered, self._grad)
        self._axis.broadcast(self._grad)


class Bucketed(Reduction):
    """All-reduces of gradient buckets that start while the backward pass goes on, and hide behind it."""

    def __init__(self, grad: Array, axis: Axis, units: Mapping[int, slice], bucket_bytes: int):
        parts = sorted(units.items())
        sizes = [(part.stop - part.start) * grad.itemsize for _, part in parts]
        self._axis = axis
        self._buckets = {  # by the unit that completes each
            parts[group.start][0]: grad[parts[group.start][1].start : parts[group.stop - 1][1].stop]
            for group in buckets(sizes, bucket_bytes)
        }
        self._pending: list[Pending] = []

    def ready(self, unit: int) -> None:
        """Start the bucket that this unit completes."""
        if unit in self._buckets:
            self._pending.append(self._axis.start_all_reduce(self._buckets[unit]))

    def finish(self) -> None:
        """Wait for the buckets in the order in which they were started."""
        for pending in self._pending:
            pending.wait()
        self._pending.clear()


def make_reduction(plan: Plan, grad: Array, units: Mapping[int, slice], axis: Axis) -> Reduction:
    """Return the reduction that the plan asks for; `units` are slices of `grad` by number of the unit."""
    if axis.size == 1:
        return Reduction()
    match plan.reduction:
        case "bucketed":
            return Bucketed(grad, axis, units, plan.bucket_bytes)
        case "all-reduce":
            return AllReduce(grad, axis)
        case "gather-broadcast":
            return GatherBroadcast(grad, axis)


def buckets(unit_bytes: Sequence[int], bucket_bytes: int) -> list[range]:
    """Group consecutive units, last first, into the smallest buckets of at least `bucket_bytes`.

    Units are not cut: the gradient of a unit becomes final as a whole. The bucket that holds the first unit
    may be smaller.
    """
    made: list[range] = []
    stop = len(unit_bytes)
    for first in range(len(unit_bytes) - 1, -1, -1):
        if sum(unit_bytes[first:stop]) >= bucket_bytes or first == 0:
            made.append(range(first, stop))
            stop = first
    return made
