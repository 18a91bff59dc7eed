"""Rows of a matrix from all ranks of an axis, and the sum of all ranks in rows; rows are sequences."""

from __future__ import annotations

from collections.abc import Sequence

from pscale.mesh.axis import Axis
from pscale.nn.buffers import Array, Buffers
from pscale.nn.param import Param


def gathered(x: Array, axis: Axis, buffers: Buffers) -> Array:
    """Return the rows of all ranks, to be given back; `x` stays with the caller."""
    if axis.size == 1:
        buffers.share(x)
        return x
    whole = buffers.take((len(x) * axis.size, *x.shape[1:]), x.dtype)
    axis.all_gather(x, whole)
    return whole


def scattered(x: Array, axis: Axis, buffers: Buffers) -> Array:
    """Take over `x` and return this rank's rows of its sum over the axis."""
    if axis.size == 1:
        return x
    mine = buffers.take((len(x) // axis.size, *x.shape[1:]), x.dtype)
    axis.reduce_scatter(x, mine)
    buffers.give(x)
    return mine


class LeaveRows:
    """From partial sums of all rows to this rank's rows of the sum; backward gathers the rows' gradients."""

    params: Sequence[Param] = ()

    def __init__(self, axis: Axis, *, buffers: Buffers):
        self.axis, self.buffers = axis, buffers

    def forward(self, x: Array) -> tuple[Array, None]:
        """Sum and scatter."""
        return scattered(x, self.axis, self.buffers), None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Gather."""
        whole = gathered(dy, self.axis, self.buffers)
        self.buffers.give(dy)
        return whole
