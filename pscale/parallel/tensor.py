"""Tensor parallelism (Shoeybi et al., 2019): every layer's weights cut over ranks that see the same tokens.

The matrices of attention and MLP come in pairs, the first cut by columns (ColumnParallelLinear of
Megatron-LM) and the second by rows (RowParallelLinear): a pair needs one sum forward and one backward. At
the ends of the model the table of tokens is cut by rows (tokens that are not here become zero, and a sum
follows) or by columns, and the loss is of logits that are cut.

Sequence parallelism (Korthikanti et al., 2022): outside of the pairs, where norms and residuals are, every
rank holds its slice of the tokens instead of all of them. What was a sum over ranks becomes a gather before
and a scattered sum after, of the same volume together. What a layer keeps for backward is the slice as well;
`ColumnParallelLinear` gathers it once more there, behind a product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pscale.mesh.axis import Axis
from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers, rounded, upcast
from pscale.nn.common_layers import Linear
from pscale.nn.kernels.tiles import rows_of
from pscale.nn.layer import Layer, Stateless
from pscale.nn.loss import Loss
from pscale.nn.param import Param, share

T_DIM = 1  # of activations (B, T, C)


class Exchange:
    """A layer without parameters, between what ranks of an axis have and what they share."""

    params: Sequence[Param] = ()

    def __init__(self, axis: Axis, *, buffers: Buffers):
        self.axis, self.buffers = axis, buffers


class ColumnParallelLinear:
    """A product with a weight cut by columns, of tokens that all ranks of the axis share.

    With `sequence_parallel` every rank has a slice of T of the input, which is gathered, in backward once
    more: while the input's gradient is computed. That is summed while the weight's is (as in Megatron-LM).
    """

    def __init__(self, linear: Linear, axis: Axis, *, sequence_parallel: bool):
        self.linear, self.axis, self.buffers = linear, axis, linear.buffers
        self.sequence_parallel = sequence_parallel
        self.params: Sequence[Param] = linear.params

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the product; keeps what came."""
        whole = gathered(x, self.axis, T_DIM, buffers=self.buffers) if self.sequence_parallel else x
        return self.linear.forward(whole)[0], x

    def backward(self, dy: Array, x: Array) -> Array:
        """Add to the gradients of weight and bias; return the sum of the input's, or a slice of it."""
        if not self.sequence_parallel:
            dx = self.linear.input_gradient(dy)
            summed = self.axis.start_all_reduce(dx)
        else:
            whole = self.buffers.take(_resized(x, T_DIM, x.shape[T_DIM] * self.axis.size), x.dtype)
            gather = self.axis.start_all_gather(x, whole, dim=T_DIM)
            partial_sum = self.linear.input_gradient(dy, gather.poll)
            gather.wait()
            dx, x = self.buffers.take(x.shape, x.dtype), whole
            del whole
            summed = self.axis.start_reduce_scatter(partial_sum, dx, dim=T_DIM)
        self.linear.add_gradients(dy, x, summed.poll)
        summed.wait()
        return dx


class ReduceFromTensorAxis(Exchange, Stateless):
    """From a layer cut by rows to the sum that all ranks of the axis share: a sum, and identity backward."""

    def forward(self, x: Array) -> tuple[Array, None]:
        """Add up the ranks' partial products, in place."""
        self.axis.all_reduce(x)
        return x, None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Hand on what every rank has."""
        return dy


class ReplicatedLoss:
    """A loss that all ranks of `axis` compute alike; each reports its share: sums over ranks are right."""

    def __init__(self, loss: Loss, axis: Axis):
        self.loss, self.axis = loss, axis

    def forward(self, y: Array, targets: Array, weight: float) -> tuple[float, Array]:
        """Return this rank's share of the loss and the gradient of the outputs, whole on every rank."""
        value, gradient = self.loss.forward(y, targets, weight)
        return value / self.axis.size, gradient


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


class GatherFromTensorAxis(Exchange):
    """From this rank's columns of all tokens, (B, T, C / size), to all columns: a gather."""

    def forward(self, x: Array) -> tuple[Array, None]:
        """Gather."""
        return gathered(x, self.axis, 2, buffers=self.buffers), None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Take this rank's columns."""
        B, T, C = dy.shape
        mine = share(C, self.axis.size, self.axis.rank)
        dx = self.buffers.take((B, T, mine.stop - mine.start), dy.dtype)
        self.axis.copy(dy[..., mine], dx)
        return dx


class ColumnsToSlices(Exchange):
    """From this rank's columns of all tokens to all columns of its slice of T: an all-to-all, either way."""

    def forward(self, x: Array) -> tuple[Array, None]:
        """Send every rank its slice of the tokens: (B, T, C / size) to (B, T / size, C)."""
        B, T, C = x.shape
        size = self.axis.size
        y = self.buffers.take((B, T // size, size * C), x.dtype)
        by_slice = x.reshape(B, size, T // size, C).transpose(1, 0, 2, 3)
        self._exchange(by_slice, y.reshape(B, T // size, size, C).transpose(2, 0, 1, 3))
        return y, None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Send every rank its columns: (B, T / size, C) to (B, T, C / size)."""
        B, T, C = dy.shape
        size = self.axis.size
        dx = self.buffers.take((B, size * T, C // size), dy.dtype)
        by_columns = dy.reshape(B, T, size, C // size).transpose(2, 0, 1, 3)
        self._exchange(by_columns, dx.reshape(B, size, T, C // size).transpose(1, 0, 2, 3))
        return dx

    def _exchange(self, x: Array, out: Array) -> None:
        sent, received = (self.buffers.take_exchange(x.shape, x.dtype) for _ in range(2))
        self.axis.copy(x, sent)
        self.axis.all_to_all(sent, received)
        self.axis.copy(received, out)


class Transposed(Stateless):
    """The way back through a layer, from all columns to this rank's, as a layer; its way back is the first.

    No gradients are added up: all ranks have the same of all columns.
    """

    def __init__(self, layer: GatherFromTensorAxis | ColumnsToSlices):
        self.layer = layer

    def forward(self, x: Array) -> tuple[Array, None]:
        """Return what is the layer's gradient."""
        return self.layer.backward(x, None), None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Return what is the layer's output."""
        return self.layer.forward(dy)[0]


class ParallelCrossEntropy:
    """-log softmax(logits)[target] of logits cut by columns; this rank's are the tokens from `first` on.

    No logits travel: of every token its largest one, its sum of exponentials and the one of its target do.
    """

    def __init__(self, axis: Axis, *, first: int, buffers: Buffers):
        self.axis, self.first, self.buffers = axis, first, buffers

    def forward(self, y: Array, targets: Array, weight: float) -> tuple[float, Array]:
        """Sum over tokens, the same on every rank; the gradient of its columns takes the logits' place."""
        p = rows_of(upcast(y, self.buffers))
        largest, total, chosen = self.buffers.take((3, len(p)), p.dtype)
        np.maximum.reduce(p, axis=1, out=largest)
        self.axis.all_reduce(largest, "max")
        columns = targets.ravel().astype(np.int64) - self.first
        kernels.current().exponentials(p, columns, largest, total, chosen)
        self.axis.all_reduce(chosen)
        self.axis.all_reduce(total)
        kernels.current().softmax_gradient(p, columns, total, weight)
        loss = float(np.sum(np.log(total) - chosen, dtype=np.float64)) * weight
        return loss, rounded(p, out=rows_of(y)).reshape(y.shape)
