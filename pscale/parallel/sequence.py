"""Sequence parallelism inside the tensor axis (Korthikanti et al., 2022): norms, residuals see a slice of T.

Between the cut layers every rank holds its slice of the tokens instead of all of them: what was a sum over
ranks becomes a gather before and a scattered sum after, of the same volume together. What a layer keeps for
backward is the slice as well; `ColumnParallelLinear` gathers it once more there, behind a product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pscale.config import Case
from pscale.mesh.axis import Axis
from pscale.nn.buffers import Array, Buffers
from pscale.nn.layer import Layer, Stateless
from pscale.nn.loss import Loss
from pscale.nn.param import Param, share
from pscale.parallel import sharding
from pscale.parallel.replicas import Call
from pscale.parallel.tensor import AXIS, T_DIM, Exchange, gathered, scattered


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
