"""Layer normalisation of rows whose columns lie on several ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pscale.mesh.axis import Axis
from pscale.nn.buffers import Array, Buffers
from pscale.nn.kernels.tile import ones, rows_of
from pscale.nn.norm import EPSILON
from pscale.nn.param import Param

Cache = tuple[Array, Array]


class ColumnNorm:
    """(x - mean) / deviation * gain + bias, where each rank of `axis` has as many of the columns.

    Ranks tell each other two numbers a row, either way: forward their means and sums of squares around
    them, which add up without cancellation (Chan, Golub and LeVeque, 1979); backward two sums.
    """

    def __init__(self, gain: Param, bias: Param, axis: Axis, *, buffers: Buffers):
        self.gain, self.bias, self.axis, self.buffers = gain, bias, axis, buffers
        self.params: Sequence[Param] = (gain, bias)

    def forward(self, x: Array) -> tuple[Array, Cache]:
        """Normalise; keeps the input and two numbers a row: mean and 1 / deviation."""
        y, rows = self.buffers.take(x.shape, x.dtype), rows_of(x)
        statistics = self.buffers.take((2, len(rows)), x.dtype)
        mean, square = statistics
        width = rows.shape[1]
        np.matmul(rows, ones(width, x.dtype), out=mean)
        mean /= width
        normal = np.subtract(rows, mean[:, None], out=rows_of(y))
        np.vecdot(normal, normal, out=square)
        self._combine(statistics, width)
        np.subtract(rows, mean[:, None], out=normal)
        normal *= square[:, None]
        normal *= self.gain.data
        normal += self.bias.data
        return y, (x, statistics)

    def _combine(self, statistics: Array, width: int) -> None:
        """Replace this rank's means and sums of squares by the means and 1 / deviation of whole rows."""
        size, (mean, square) = self.axis.size, statistics
        everyone = self.buffers.take_exchange((2 * size, statistics.shape[1]), statistics.dtype)
        self.axis.all_gather(statistics, everyone)
        means, squares = everyone[::2], everyone[1::2]
        np.add.reduce(means, axis=0, out=mean)
        mean /= size
        means -= mean
        np.square(means, out=means)
        means *= width
        squares += means
        np.add.reduce(squares, axis=0, out=square)
        square /= width * size
        square += EPSILON
        np.sqrt(square, out=square)
        np.reciprocal(square, out=square)
        self.buffers.give(everyone)

    def backward(self, dy: Array, cache: Cache) -> Array:
        """Return r (g - mean(g) - n mean(g n)) for g = dy gain, n the normalised row, r = 1 / deviation."""
        x, (mean, inverse) = cache
        dx, rows = self.buffers.reuse(x), rows_of(dy)
        normal = np.subtract(rows_of(x), mean[:, None], out=rows_of(dx))
        normal *= inverse[:, None]
        product = self.buffers.take(rows.shape, dy.dtype)
        np.multiply(rows, normal, out=product)
        every_row = ones(len(rows), dy.dtype)
        self.gain.add_grad(np.matmul(every_row, product))
        self.bias.add_grad(np.matmul(every_row, rows))
        sums = self.buffers.take_exchange((2, len(rows)), dy.dtype)
        along, level = sums
        np.matmul(product, self.gain.data, out=along)
        np.matmul(rows, self.gain.data, out=level)
        self.axis.all_reduce(sums)
        sums /= rows.shape[1] * self.axis.size
        normal *= along[:, None]
        np.multiply(rows, self.gain.data, out=product)
        np.subtract(product, normal, out=normal)
        normal -= level[:, None]
        normal *= inverse[:, None]
        for array in (sums, product, cache[1], dy):
            self.buffers.give(array)
        return dx
