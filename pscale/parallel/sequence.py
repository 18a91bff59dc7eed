"""Sequence parallelism inside the tensor axis (Korthikanti et al., 2022): norms, residuals see a slice of T.

Between the cut layers every rank holds its slice of the tokens instead of all of them: what was a sum over
ranks becomes a gather before and a scattered sum after, of the same volume together. What a layer keeps for
backward is the slice as well; it is gathered once more there, which costs one gather per pair of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pscale.config import Case
from pscale.mesh.axis import Axis
from pscale.nn.buffers import Array, Buffers
from pscale.nn.common_layers import Linear
from pscale.nn.layer import Layer, Stateless
from pscale.nn.loss import Loss
from pscale.nn.param import Param, share
from pscale.parallel import sharding
from pscale.parallel.replicas import Call
from pscale.parallel.tensor import AXIS, Exchange

T_DIM = 1  # of activations (B, T, C)


class GatheredLinear:
    """A product with all tokens of an input of which every rank has a slice of T."""

    def __init__(self, linear: Linear, axis: Axis, *, buffers: Buffers):
        self.linear, self.axis, self.buffers = linear, axis, buffers
        self.params: Sequence[Param] = linear.params

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Gather the tokens and multiply; keeps the slice."""
        y, _ = self.linear.forward(gathered(x, self.axis, T_DIM, buffers=self.buffers))
        return y, x

    def backward(self, dy: Array, x: Array) -> Array:
        """Gather the input again, which forward did not keep; sum the gradient and scatter it."""
        dx = self.linear.backward(dy, gathered(x, self.axis, T_DIM, buffers=self.buffers))
        return scattered(dx, self.axis, T_DIM, buffers=self.buffers)


def slice_of(x: Array, axis: Axis) -> Array:
    """View this rank's slice of T of `x`."""
    return x[:, share(x.shape[T_DIM], axis.size, axis.rank)]


def calls(case: Case, rank: int) -> list[Call]:
    """Predict gathers of n0 / tp elements and scattered sums of n0, for n0 = b s h."""
    plan = case.plan
    if not plan.sp or plan.tp == 1:
        return []
    names = sharding.units(case, rank)
    pairs = 2 * sum(name.startswith("block.") for name in names)
    pairs -= sum(sharding.with_experts(case, name) for name in names)  # of layers that are cut
    head = "head" in names
    by_rows = "embedding" in names and plan.embedding == "row"
    by_columns = "embedding" in names and plan.embedding == "column"
    whole = sharding.activation_bytes(case)
    made = [
        Call(axis=AXIS, verb="all_gather", sent_bytes=whole // plan.tp, count=3 * pairs + 2 * head + by_rows),
        Call(axis=AXIS, verb="reduce_scatter", sent_bytes=whole, count=2 * pairs + head + by_rows),
        Call(axis=AXIS, verb="all_to_all", sent_bytes=whole // plan.tp, count=2 * by_columns),
    ]
    return sharding.per_step(case, made)


def buffer_bytes(case: Case, rank: int) -> int:  # noqa: ARG001
    """Predict the memory for arranging slices: of several sequences they come rank by rank."""
    if not case.plan.sp or case.plan.tp == 1 or sharding.sequences(case) == 1:
        return 0
    return sharding.activation_bytes(case)


def gathered(x: Array, axis: Axis, dim: int = 0, *, buffers: Buffers) -> Array:
    """Return all slices side by side; of one rank, `x`."""
    if axis.size == 1:
        return x
    whole = buffers.take(_resized(x, dim, x.shape[dim] * axis.size), x.dtype)
    axis.all_gather(x, whole, dim=dim)
    return whole


def scattered(x: Array, axis: Axis, dim: int = 0, *, buffers: Buffers) -> Array:
    """Return this rank's slice of the sum of `x` over the axis; of one rank, `x`."""
    if axis.size == 1:
        return x
    mine = buffers.take(_resized(x, dim, x.shape[dim] // axis.size), x.dtype)
    axis.reduce_scatter(x, mine, dim=dim)
    return mine


def _resized(x: Array, dim: int, size: int) -> tuple[int, ...]:
    return (*x.shape[:dim], size, *x.shape[dim + 1 :])


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
