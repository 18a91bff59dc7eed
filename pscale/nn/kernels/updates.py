"""What optimizers do with flat memory, in NumPy, a chunk that fits in cache at a time.

Gradients may have 16 bits beside weights of 32: they are multiplied as the weights are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pscale.nn.buffers import Array
from pscale.nn.kernels.costs import kernel
from pscale.nn.kernels.tiles import CHUNK, chunks, ones, scratch, tile_shape, tiles


class Updates:
    """Updates of weights, and the sums of squares that they need, which are in float64."""

    @kernel(
        "optimizer",
        "grad > + weight velocity",
        lambda weight, velocity, **_: (3 if velocity is None else 5) * weight.size,
    )
    def sgd(
        self,
        weight: Array,
        grad: Array,
        velocity: Array | None,
        *,
        scale: float,
        momentum: float,
        rate: float,
    ) -> None:
        """Update flat memory: velocity = momentum velocity + scale grad; weight -= rate velocity."""
        work = scratch().take((min(CHUNK, weight.size),), weight.dtype)
        for part in chunks(weight.size):
            step = np.multiply(grad[part], scale, out=work[: part.stop - part.start], dtype=work.dtype)
            if velocity is not None:
                velocity[part] *= momentum
                velocity[part] += step
                np.copyto(step, velocity[part])
            step *= rate
            weight[part] -= step

    @kernel("optimizer", "grad > + weight m v", lambda weight, keep, **_: (11 + (keep != 1)) * weight.size)
    def adamw(
        self,
        weight: Array,
        grad: Array,
        m: Array,
        v: Array,
        *,
        scale: float,
        beta1: float,
        beta2: float,
        rate: float,
        epsilon: float,
        keep: float,
    ) -> None:
        """Update flat memory: with g = scale grad, m = beta1 m + g and v = beta2 v + g^2.

        Then weight = keep weight - rate m / (sqrt(v) + epsilon).
        """
        work = scratch().take((min(CHUNK, weight.size),), weight.dtype)
        for part in chunks(weight.size):
            w, moment, square = weight[part], m[part], v[part]
            g = np.multiply(grad[part], scale, out=work[: w.size], dtype=work.dtype)
            moment *= beta1
            moment += g
            g *= g
            square *= beta2
            square += g
            root = np.sqrt(square, out=g)
            root += epsilon
            step = np.divide(moment, root, out=root)
            step *= rate
            if keep != 1:
                w *= keep
            w -= step

    @kernel(
        "optimizer",
        "weight grad > + m v squares",
        lambda weight, decay, **_: (14 + 2 * (decay != 0)) * weight.size,
    )
    def lamb_moments(
        self,
        weight: Array,
        grad: Array,
        m: Array,
        v: Array,
        squares: Array,
        *,
        scale: float,
        beta1: float,
        beta2: float,
        rate: float,
        epsilon: float,
        decay: float,
    ) -> None:
        """Update the moments as AdamW does, and add to `squares`, (2,), those of weights and of updates.

        The update is rate m / (sqrt(v) + epsilon) + decay weight.
        """
        work = scratch().take((min(CHUNK, weight.size),), weight.dtype)
        for part in chunks(weight.size):
            moment, square = m[part], v[part]
            g = np.multiply(grad[part], scale, out=work[: moment.size], dtype=work.dtype)
            moment *= beta1
            moment += g
            g *= g
            square *= beta2
            square += g
            update = _lamb(weight[part], moment, square, rate, epsilon, decay, out=g)
            squares[0] += self.square_norm(weight[part])
            squares[1] += self.square_norm(update)

    @kernel("optimizer", "m v > + weight", lambda weight, decay, **_: (6 + 2 * (decay != 0)) * weight.size)
    def lamb(
        self, weight: Array, m: Array, v: Array, *, rate: float, epsilon: float, decay: float, step: float
    ) -> None:
        """Subtract `step` times the update that `lamb_moments` measured."""
        work = scratch().take((min(CHUNK, weight.size),), weight.dtype)
        for part in chunks(weight.size):
            out = work[: part.stop - part.start]
            update = _lamb(weight[part], m[part], v[part], rate, epsilon, decay, out=out)
            update *= step
            weight[part] -= update

    @kernel("optimizer", "x > + row_sums column_sums", lambda x, **_: 3 * x.size)
    def square_sums(self, x: Array, row_sums: Array, column_sums: Array) -> None:
        """Add the sums of squares of the rows and columns of `x`, (rows, C), to float64 vectors."""
        work = scratch().take(tile_shape(x), np.float64)
        for tile in tiles(x):
            squares = work[: len(x[tile])]
            np.copyto(squares, x[tile])
            squares *= squares
            row_sums[tile] += np.matmul(squares, ones(x.shape[1], np.float64))
            column_sums += np.matmul(ones(len(squares), np.float64), squares)

    @kernel("optimizer", "x of_rows of_columns", lambda x, **_: 4 * x.size)
    def factored_norm(self, x: Array, of_rows: Array, of_columns: Array) -> float:
        """Return the sum of squares of x of_rows[:, None] of_columns, for x (rows, C)."""
        return sum(self.square_norm(update.ravel()) for _, update in _factored(x, of_rows, of_columns))

    @kernel("optimizer", "x of_rows of_columns > + weight", lambda x, keep, **_: (4 + (keep != 1)) * x.size)
    def factored_step(
        self, weight: Array, x: Array, of_rows: Array, of_columns: Array, *, rate: float, keep: float
    ) -> None:
        """Update weight = keep weight - rate x of_rows[:, None] of_columns, both (rows, C)."""
        for tile, update in _factored(x, of_rows, of_columns):
            np.multiply(update, rate, out=update)
            if keep != 1:
                weight[tile] *= keep
            weight[tile] -= update

    @kernel("optimizer", "x", lambda x, **_: 2 * x.size)
    def square_norm(self, x: Array) -> float:
        """Return the sum of squares in float64: float32 would overflow, vanish or round in a long sum."""
        wide = scratch().take((min(CHUNK, x.size),), np.float64)
        total = 0.0
        for part in chunks(x.size):
            values = wide[: part.stop - part.start]
            np.copyto(values, x[part])
            total += float(np.dot(values, values))
        return total


def _lamb(
    weight: Array, m: Array, v: Array, rate: float, epsilon: float, decay: float, *, out: Array
) -> Array:
    """Return rate m / (sqrt(v) + epsilon) + decay weight in `out`."""
    np.sqrt(v, out=out)
    out += epsilon
    np.divide(m, out, out=out)
    out *= rate
    if decay:
        out += decay * weight
    return out


def _factored(x: Array, of_rows: Array, of_columns: Array) -> Iterator[tuple[slice, Array]]:
    """Yield tiles of rows with x of_rows[:, None] of_columns in scratch memory."""
    work = scratch().take(tile_shape(x), of_columns.dtype)
    for tile in tiles(x):
        update = np.multiply(x[tile], of_columns, out=work[: len(x[tile])])
        update *= of_rows[tile, None]
        yield tile, update
