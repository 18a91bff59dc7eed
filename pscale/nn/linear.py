"""Matrix products with a weight."""

from __future__ import annotations

from collections.abc import Sequence

from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.kernels.tile import ones, rows_of
from pscale.nn.param import Param


class Linear:
    """x @ weight + bias: (..., inputs) to (..., outputs)."""

    def __init__(self, weight: Param, bias: Param | None = None, *, buffers: Buffers):
        self.weight, self.bias, self.buffers = weight, bias, buffers
        self.params: Sequence[Param] = (weight,) if bias is None else (weight, bias)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the product; keeps the input."""
        y = self.buffers.take((*x.shape[:-1], self.weight.shape[1]), x.dtype)
        y_rows = rows_of(y)
        kernels.current().multiply(rows_of(x), self.weight.data, y_rows)
        if self.bias is not None:
            kernels.current().add(y_rows, None, self.bias.data, y_rows)
        return y, x

    def remember(self, x: Array) -> Array:
        """Return the input."""
        return x

    def backward(self, dy: Array, x: Array) -> Array:
        """Add to the gradients of weight and bias."""
        dy_rows, x_rows = rows_of(dy), rows_of(x)
        self.weight.add_product(x_rows.T, dy_rows, self.buffers)
        if self.bias is not None:
            self.bias.add_product(ones(len(dy_rows), dy.dtype), dy_rows, self.buffers)
        dx = self.buffers.reuse(x)
        kernels.current().multiply(dy_rows, self.weight.data.T, rows_of(dx))
        self.buffers.give(dy)
        return dx
