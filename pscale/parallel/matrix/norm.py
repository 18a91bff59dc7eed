"""Layer normalisation of rows whose columns lie on several ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pscale.mesh.axis import Axis
from pscale.nn.buffers import Array, Buffers
from pscale.nn.kernels.copies import Copies
from pscale.nn.kernels.scratch import scratch
from pscale.nn.kernels.tile import ones, rows_of, tile_shape, tiles
from pscale.nn.norm import EPSILON
from pscale.nn.param import Param
from pscale.number import wide

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
        statistics = self.buffers.take((2, len(rows)), wide(x.dtype))
        mean, square = statistics
        out, width = rows_of(y), rows.shape[1]
        for tile in tiles(rows):
            with Copies() as copies:
                part, normal = copies.read(rows[tile]), copies.write(out[tile])
                np.matmul(part, ones(width, part.dtype), out=mean[tile])
                mean[tile] /= width
                np.subtract(part, mean[tile, None], out=normal)
                np.vecdot(normal, normal, out=square[tile])
        self._combine(statistics, width)
        for tile in tiles(rows):
            with Copies() as copies:
                normal = copies.write(out[tile])
                np.subtract(copies.read(rows[tile]), mean[tile, None], out=normal)
                normal *= square[tile, None]
                normal *= copies.read(self.gain.data)
                normal += copies.read(self.bias.data)
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
        x, statistics = cache
        dx, rows, gain = self.buffers.reuse(x), rows_of(dy), self.gain.data
        out, inverse = rows_of(dx), statistics[1]
        sums = self.buffers.take_exchange((2, len(rows)), wide(dy.dtype))
        self._sum_up(rows_of(x), rows, statistics, sums, out)
        self.axis.all_reduce(sums)
        sums /= rows.shape[1] * self.axis.size
        along, level = sums
        pool = scratch()
        work = pool.take(tile_shape(rows), wide(dy.dtype))
        for tile in tiles(rows):
            with Copies() as copies:
                normal, product = copies.change(out[tile]), work[: len(rows[tile])]
                normal *= along[tile, None]
                normal += level[tile, None]
                np.multiply(copies.read(rows[tile]), copies.read(gain), out=product)
                np.subtract(product, normal, out=normal)
                normal *= inverse[tile, None]
        pool.give(work)
        for array in (sums, statistics, dy):
            self.buffers.give(array)
        return dx

    def _sum_up(self, x: Array, dy: Array, statistics: Array, sums: Array, normal: Array) -> None:
        """Write normalised rows, which may take the place of `x`, and sums of g n and of g; add gradients."""
        (mean, inverse), (along, level) = statistics, sums
        gain, pool = self.gain.data, scratch()
        grads = np.zeros((2, x.shape[1]), wide(dy.dtype))
        work = pool.take(tile_shape(x), wide(dy.dtype))
        for tile in tiles(x):
            size = len(x[tile])
            product, every_row = work[:size], ones(size, work.dtype)
            with Copies() as copies:
                row, gains, part = copies.read(dy[tile]), copies.read(gain), copies.write(normal[tile])
                np.subtract(copies.read(x[tile]), mean[tile, None], out=part)
                part *= inverse[tile, None]
                np.multiply(row, part, out=product)
                np.matmul(product, gains, out=along[tile])
                np.matmul(row, gains, out=level[tile])
                grads[0] += np.matmul(every_row, product)
                grads[1] += np.matmul(every_row, row)
        pool.give(work)
        for param, grad in zip(self.params, grads.astype(dy.dtype, copy=False), strict=True):
            param.add_grad(grad)
