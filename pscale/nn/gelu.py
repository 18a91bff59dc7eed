"""The Gaussian error linear unit in its tanh form, with the bias that comes before it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pscale.nn.buffers import Array, Buffers
from pscale.nn.param import Param
from pscale.nn.tile import ones, rows_of, tile_shape, tiles

LINEAR = math.sqrt(2 / math.pi)
CUBIC = 0.044715 * LINEAR


class BiasGelu:
    """h s(2u) for h = x + bias, s the logistic function, u = LINEAR h + CUBIC h^3.

    After Hendrycks and Gimpel (2016). Forward puts the derivative where its input was, so that
    backward is one product. A bias (G, C) has a row for each of the G equal parts of x, as experts do.
    """

    def __init__(self, bias: Param, *, buffers: Buffers):
        self.bias, self.buffers = bias, buffers
        self.params: Sequence[Param] = (bias,)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the activation; keeps its derivative."""
        y, slope = self.buffers.take(x.shape, x.dtype), self.buffers.reuse(x)
        scratch = self.buffers.take((2, *tile_shape(self._parts(x)[0])), x.dtype)
        for rows, y_rows, slope_rows, bias in zip(
            self._parts(x), self._parts(y), self._parts(slope), rows_of(self.bias.data), strict=True
        ):
            for tile in tiles(rows):
                h = np.add(rows[tile], bias, out=slope_rows[tile])
                _gelu(h, y_rows[tile], *scratch[:, : len(h)])
        self.buffers.give(scratch)
        return y, slope

    def backward(self, dy: Array, slope: Array) -> Array:
        """Multiply by the derivative."""
        dx = self.buffers.reuse(dy)
        bias_grad = np.zeros(self.bias.shape, dy.dtype)
        for dy_rows, slope_rows, dx_rows, bias_row in zip(
            self._parts(dy), self._parts(slope), self._parts(dx), rows_of(bias_grad), strict=True
        ):
            for tile in tiles(dx_rows):
                part = np.multiply(dy_rows[tile], slope_rows[tile], out=dx_rows[tile])
                np.add(bias_row, np.matmul(ones(len(part), dy.dtype), part), out=bias_row)
        self.bias.add_grad(bias_grad)
        self.buffers.give(slope)
        return dx

    def _parts(self, x: Array) -> Array:
        width = self.bias.shape[-1]
        return x.reshape(self.bias.size // width, -1, width)


def _gelu(h: Array, y: Array, a: Array, b: Array) -> None:
    """Write the activation to `y` and its derivative s + y (1 - s) 2u' over `h`; `a` and `b` are scratch."""
    np.multiply(h, h, out=a)
    s = np.multiply(a, CUBIC, out=b)
    s += LINEAR
    s *= h
    np.tanh(s, out=s)
    s *= 0.5
    s += 0.5
    np.multiply(h, s, out=y)
    slope = a
    slope *= 6 * CUBIC
    slope += 2 * LINEAR
    slope *= y
    np.subtract(1, s, out=h)
    slope *= h
    np.add(slope, s, out=h)
