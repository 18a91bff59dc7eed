"""Layer normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pscale.nn.buffers import Array, Buffers
from pscale.nn.param import Param
from pscale.nn.tile import ones, rows_of, tile_shape, tiles

EPSILON = 1e-5

Cache = tuple[Array, Array, Array]


class LayerNorm:
    """(x - mean) / deviation * gain + bias over the last dim (Ba et al., 2016)."""

    def __init__(self, gain: Param, bias: Param, *, buffers: Buffers):
        self.gain, self.bias, self.buffers = gain, bias, buffers
        self.params: Sequence[Param] = (gain, bias)

    def forward(self, x: Array) -> tuple[Array, Cache]:
        """Normalise; keeps the input and two numbers a row."""
        y = self.buffers.take(x.shape, x.dtype)
        rows, y_rows = rows_of(x), rows_of(y)
        mean = self.buffers.take((len(rows), 1), x.dtype)
        inverse = self.buffers.take((len(rows), 1), x.dtype)  # of the deviation
        width = rows.shape[1]
        for tile in tiles(rows):
            np.matmul(rows[tile], ones(width, x.dtype), out=mean[tile, 0])
            mean[tile] /= width
            normal = np.subtract(rows[tile], mean[tile], out=y_rows[tile])
            variance = np.vecdot(normal, normal, out=inverse[tile, 0])
            variance /= width
            variance += EPSILON
            np.sqrt(variance, out=variance)
            np.reciprocal(variance, out=variance)
            normal *= inverse[tile]
            normal *= self.gain.data
            normal += self.bias.data
        return y, (x, mean, inverse)

    def backward(self, dy: Array, cache: Cache) -> Array:
        """Return r (g - mean(g) - n mean(g n)) for g = dy gain, n the normalised input, r = 1 / deviation."""
        x, mean, inverse = cache
        dx = self.buffers.reuse(x)
        rows, dy_rows, dx_rows = rows_of(x), rows_of(dy), rows_of(dx)
        width = rows.shape[1]
        scratch = self.buffers.take((2, *tile_shape(rows)), x.dtype)
        gain_grad, bias_grad = np.zeros((2, width), x.dtype)
        for tile in tiles(rows):
            dy_tile = dy_rows[tile]
            size = len(dy_tile)
            normal, product = scratch[:, :size]
            np.subtract(rows[tile], mean[tile], out=normal)
            normal *= inverse[tile]
            bias_grad += np.matmul(ones(size, x.dtype), dy_tile)
            np.multiply(dy_tile, normal, out=product)
            gain_grad += np.matmul(ones(size, x.dtype), product)
            along = np.matmul(product, self.gain.data)[:, None]
            along /= width
            level = np.matmul(dy_tile, self.gain.data)[:, None]
            level /= width
            normal *= along
            normal += level
            np.multiply(dy_tile, self.gain.data, out=product)
            product -= normal
            np.multiply(product, inverse[tile], out=dx_rows[tile])
        self.gain.add_grad(gain_grad)
        self.bias.add_grad(bias_grad)
        for array in (scratch, mean, inverse, dy):
            self.buffers.give(array)
        return dx
