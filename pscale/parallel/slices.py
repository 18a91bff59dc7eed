"""The slices of all ranks side by side along a dim, and this rank's slice of their sum."""

from __future__ import annotations

from collections.abc import Sequence

from pscale.mesh.axis import Axis
from pscale.nn.buffers import Array, Buffers
from pscale.nn.layer import Forgetful
from pscale.nn.param import Param


def gathered(x: Array, axis: Axis, dim: int = 0, *, buffers: Buffers) -> Array:
    """Return all slices side by side, to be given back; `x` stays with the caller."""
    if axis.size == 1:
        buffers.share(x)
        return x
    whole = buffers.take(_resized(x, dim, x.shape[dim] * axis.size), x.dtype)
    axis.all_gather(x, whole, dim=dim)
    return whole


def scattered(x: Array, axis: Axis, dim: int = 0, *, buffers: Buffers) -> Array:
    """Take over `x` and return this rank's slice of its sum over the axis."""
    if axis.size == 1:
        return x
    mine = buffers.take(_resized(x, dim, x.shape[dim] // axis.size), x.dtype)
    axis.reduce_scatter(x, mine, dim=dim)
    buffers.give(x)
    return mine


def _resized(x: Array, dim: int, size: int) -> tuple[int, ...]:
    return (*x.shape[:dim], size, *x.shape[dim + 1 :])


class Leave(Forgetful):
    """From partial sums to this rank's slice of the sum; backward gathers the slices' gradients."""

    params: Sequence[Param] = ()

    def __init__(self, axis: Axis, dim: int = 0, *, buffers: Buffers):
        self.axis, self.dim, self.buffers = axis, dim, buffers

    def forward(self, x: Array) -> tuple[Array, None]:
        """Sum and scatter."""
        return scattered(x, self.axis, self.dim, buffers=self.buffers), None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Gather."""
        whole = gathered(dy, self.axis, self.dim, buffers=self.buffers)
        self.buffers.give(dy)
        return whole
