"""Layers of a grid of ranks: a product that they share, and a norm of rows whose columns they cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pscale.config import Plan
from pscale.mesh.axis import Axis, Mesh
from pscale.nn.buffers import Array, Buffers
from pscale.nn.common_layers import EPSILON, Linear
from pscale.nn.dtypes import compute_dtype
from pscale.nn.kernels.tiles import Copies, ones, rows_of, scratch, tile_shape, tiles
from pscale.nn.param import Param
from pscale.parallel.matrix.agarwal import Agarwal
from pscale.parallel.matrix.axonn import Axonn, Depth, TransposedTable
from pscale.parallel.matrix.cannon import Cannon
from pscale.parallel.matrix.grid import Partition
from pscale.parallel.matrix.summa import Summa


class MatrixLinear(Linear):
    """x @ weight + bias; the bias has this rank's columns of the result."""

    def __init__(self, weight: Param, bias: Param | None, product: Product):
        super().__init__(weight, bias, buffers=product.buffers)
        self.product = product

    def multiply(self, x: Array) -> Array:
        """Return the product alone."""
        return self.product.multiply(x, self.weight)

    def backward(self, dy: Array, x: Array) -> Array:
        """Add to the gradients of weight and bias."""
        if self.bias is not None:
            self.bias.add_column_sums(rows_of(dy))
        return self.product.differentiate(dy, x, self.weight)


class Square:
    """Products on a grid of two axes; `transposed`: with the transpose of a table, which lies as any matrix.

    The product with a transpose is that of a gradient, whose own gradient is the product.
    """

    def __init__(self, algorithm: Cannon | Summa, *, transposed: bool):
        self.algorithm, self.transposed, self.buffers = algorithm, transposed, algorithm.buffers

    def multiply(self, a: Array, weight: Param) -> Array:
        """Return this rank's block of the product."""
        return (self.algorithm.input_gradient if self.transposed else self.algorithm.multiply)(a, weight)

    def differentiate(self, dc: Array, a: Array, weight: Param) -> Array:
        """Add to the gradient of the weight, return that of `a`."""
        self.algorithm.add_gradient(*((a, dc) if self.transposed else (dc, a)), weight)
        return (self.algorithm.multiply if self.transposed else self.algorithm.input_gradient)(dc, weight)


Product = Square | Agarwal | Axonn  # multiplies and differentiates blocks; rows of (B, T, C) are B x T


def make_product(
    plan: Plan, mesh: Mesh, weight: Partition, *, transposed: bool = False, buffers: Buffers
) -> Product:
    """Return what multiplies with weights that lie so: the first of their axes is the contraction's.

    `transposed`: with the transpose of the table of tokens, which no depth cuts.
    """
    contraction, output = mesh.axis(weight.rows[0]), mesh.axis(weight.columns[0])
    depth = (TransposedTable if transposed else Depth)(mesh.axis("tz"), buffers=buffers)
    match plan.matrix.algorithm:
        case "cannon":
            return Square(Cannon(output, contraction, buffers=buffers), transposed=transposed)
        case "summa":
            return Square(Summa(output, contraction, buffers=buffers), transposed=transposed)
        case "agarwal":
            return Agarwal(contraction, output, depth, buffers=buffers)
        case "axonn":
            return Axonn(contraction, output, depth, buffers=buffers)


Cache = tuple[Array, Array]


class ColumnNorm:
    """(x - mean) / deviation * gain + bias, where each rank of `axis` has as many of the columns.

    Ranks tell each other two numbers a row, either way: forward their sums of squares around their means,
    and these, which add up without cancellation (Chan, Golub and LeVeque, 1979); backward two sums. Where
    rows are not `centred`, as in RMSNorm, it is one number.
    """

    def __init__(
        self, gain: Param, bias: Param | None, axis: Axis, *, centred: bool = True, buffers: Buffers
    ):
        self.gain, self.bias, self.axis, self.centred, self.buffers = gain, bias, axis, centred, buffers
        self.params: Sequence[Param] = (gain,) if bias is None else (gain, bias)

    def forward(self, x: Array) -> tuple[Array, Cache]:
        """Normalise; keeps the input and of each row 1 / deviation, and the mean."""
        y, rows = self.buffers.take(x.shape, x.dtype), rows_of(x)
        statistics = self.buffers.take((1 + self.centred, len(rows)), compute_dtype(x.dtype))
        square, mean = statistics[0], statistics[-1]
        out, width = rows_of(y), rows.shape[1]
        for tile in tiles(rows):
            with Copies() as copies:
                part, normal = copies.read(rows[tile]), copies.write(out[tile])
                if self.centred:
                    np.matmul(part, ones(width, part.dtype), out=mean[tile])
                    mean[tile] /= width
                np.subtract(part, mean[tile, None] if self.centred else 0, out=normal)
                np.vecdot(normal, normal, out=square[tile])
        self._combine(statistics, width)
        for tile in tiles(rows):
            with Copies() as copies:
                normal = copies.write(out[tile])
                np.subtract(copies.read(rows[tile]), mean[tile, None] if self.centred else 0, out=normal)
                normal *= square[tile, None]
                normal *= copies.read(self.gain.data)
                if self.bias is not None:
                    normal += copies.read(self.bias.data)
        return y, (x, statistics)

    def _combine(self, statistics: Array, width: int) -> None:
        """Replace this rank's means and sums of squares by the means and 1 / deviation of whole rows."""
        size, kinds = self.axis.size, len(statistics)
        square, mean = statistics[0], statistics[-1]
        everyone = self.buffers.take_exchange((kinds * size, statistics.shape[1]), statistics.dtype)
        self.axis.all_gather(statistics, everyone)
        squares, means = everyone[::kinds], everyone[1::kinds]
        if self.centred:
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

    def backward(self, dy: Array, cache: Cache) -> Array:
        """Return r (g - mean(g) - n mean(g n)) for g = dy gain, n the normalised row, r = 1 / deviation."""
        x, statistics = cache
        rows, gain = rows_of(dy), self.gain.data
        out, rstd = rows_of(x), statistics[0]
        sums = self.buffers.take_exchange((len(statistics), len(rows)), compute_dtype(dy.dtype))
        self._sum_up(out, rows, statistics, sums)
        self.axis.all_reduce(sums)
        sums /= rows.shape[1] * self.axis.size
        along, level = sums[0], sums[-1]
        work = scratch().take(tile_shape(rows), compute_dtype(dy.dtype))
        for tile in tiles(rows):
            with Copies() as copies:
                normal, product = copies.change(out[tile]), work[: len(rows[tile])]
                normal *= along[tile, None]
                if self.centred:
                    normal += level[tile, None]
                np.multiply(copies.read(rows[tile]), copies.read(gain), out=product)
                np.subtract(product, normal, out=normal)
                normal *= rstd[tile, None]
        return x

    def _sum_up(self, x: Array, dy: Array, statistics: Array, sums: Array) -> None:
        """Write normalised rows in the place of `x`, and sums of g n and of g; add gradients."""
        (rstd, mean), (along, level) = (statistics[0], statistics[-1]), (sums[0], sums[-1])
        gain = self.gain.data
        grads = np.zeros((2, x.shape[1]), compute_dtype(dy.dtype))
        work = scratch().take(tile_shape(x), compute_dtype(dy.dtype))
        for tile in tiles(x):
            size = len(x[tile])
            product, every_row = work[:size], ones(size, work.dtype)
            with Copies() as copies:
                row, gains, part = copies.read(dy[tile]), copies.read(gain), copies.change(x[tile])
                if self.centred:
                    part -= mean[tile, None]
                    np.matmul(row, gains, out=level[tile])
                part *= rstd[tile, None]
                np.multiply(row, part, out=product)
                np.matmul(product, gains, out=along[tile])
                grads[0] += np.matmul(every_row, product)
                grads[1] += np.matmul(every_row, row)
        for param, grad in zip(self.params, grads.astype(dy.dtype, copy=False), strict=False):
            param.add_grad(grad)
