"""Sequence parallelism inside the tensor axis (Korthikanti et al., 2022): norms, residuals see a slice of T.

Between the cut layers every rank holds its slice of the tokens instead of all of them: what was a sum over
ranks becomes a gather before and a scattered sum after, of the same volume together. What a layer keeps for
backward is the slice as well; `ColumnParallelLinear` gathers it once more there, behind a product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pscale.mesh.axis import Axis
from pscale.nn.buffers import Array, Buffers
from pscale.nn.layer import Layer, Stateless
from pscale.nn.loss import Loss
from pscale.nn.param import Param, share
from pscale.parallel.tensor import T_DIM, Exchange, gathered, scattered


def slice_of(x: Array, axis: Axis) -> Array:
    """View this rank's slice of T of `x`."""
    return x[:, share(x.shape[T_DIM], axis.size, axis.rank)]


class ReduceScatterToSlices(Exchange, Stateless):
    """From partial sums to this rank's slice of the sum; backward gathers the slices' gradients."""

    def __init__(self, axis: Axis, dim: int = 0, *, buffers: Buffers):
        super().__init__(axis, buffers=buffers)
        self.dim = dim

    def forward(self, x: Array) -> tuple[Array, None]:
        """Sum and scatter."""
        return scattered(x, self.axis, self.dim, buffers=self.buffers), None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Gather."""
        return gathered(dy, self.axis, self.dim, buffers=self.buffers)


Choice = Callable[[Array], Array]  # views this rank's part


class SlicedInput:
    """A first layer that works on a part of the data."""

    def __init__(self, layer: Layer, part: Choice):
        self.layer, self.part = layer, part
        self.params: Sequence[Param] = layer.params

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Show the layer its part."""
        return self.layer.forward(self.part(x))

    def backward(self, dy: Array, cache: Any) -> Array | None:
        """Leave it to the layer."""
        return self.layer.backward(dy, cache)


class SlicedTargets:
    """A loss of a part, against targets that every rank has whole."""

    def __init__(self, loss: Loss, part: Choice):
        self.loss, self.part = loss, part

    def forward(self, y: Array, targets: Array, weight: float) -> tuple[float, Array]:
        """Show the loss its part of the targets."""
        return self.loss.forward(y, self.part(targets), weight)
