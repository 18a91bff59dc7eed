"""Every kernel in NumPy, a tile of rows at a time: what `fused` computes is defined here."""

from __future__ import annotations

import math

import numpy as np

from pscale.nn.buffers import Array
from pscale.nn.kernels import blockwise
from pscale.nn.kernels.attention_block import AttentionGradients, AttentionOperands, future
from pscale.nn.kernels.tiles import ones, scratch, tile_shape, tiles
from pscale.nn.kernels.updates import Updates

LINEAR = math.sqrt(2 / math.pi)
CUBIC = 0.044715 * LINEAR


class Kernels(Updates):
    """What the layers compute with."""

    name = "numpy"
    threads = 1

    def multiply(self, a: Array, b: Array, out: Array) -> None:
        """Write a @ b: matrices, stacks of them, or a vector and a matrix."""
        np.matmul(a, b, out=out)

    def bias_gelu(self, x: Array, bias: Array, y: Array, slope: Array) -> None:
        """Write h s(2u) and its derivative s + y (1 - s) 2u' for h = x + bias, s the logistic function.

        u = LINEAR h + CUBIC h^3 (Hendrycks and Gimpel, 2016). (G, rows, C), bias (G, C); `slope` may be `x`.
        """
        work = scratch().take((2, *tile_shape(x[0])), x.dtype)
        for group, row in enumerate(bias):
            for tile in tiles(x[group]):
                h = np.add(x[group, tile], row, out=slope[group, tile])
                _gelu(h, y[group, tile], *work[:, : len(h)])

    def bias_gelu_backward(self, dy: Array, slope: Array, dx: Array, bias_grad: Array) -> None:
        """Write dy slope, (G, rows, C), add its column sums to `bias_grad`, (G, C); `dx` may be `dy`."""
        for group in range(len(bias_grad)):
            for tile in tiles(dx[group]):
                part = np.multiply(dy[group, tile], slope[group, tile], out=dx[group, tile])
                bias_grad[group] += np.matmul(ones(len(part), dy.dtype), part)

    def layer_norm(
        self, x: Array, gain: Array, bias: Array, y: Array, mean: Array, inverse: Array, epsilon: float
    ) -> None:
        """Write (x - mean) / deviation * gain + bias, the mean and 1 / deviation (Ba et al., 2016)."""
        width = x.shape[1]
        for tile in tiles(x):
            np.matmul(x[tile], ones(width, x.dtype), out=mean[tile])
            mean[tile] /= width
            normal = np.subtract(x[tile], mean[tile, None], out=y[tile])
            variance = np.vecdot(normal, normal, out=inverse[tile])
            variance /= width
            variance += epsilon
            np.sqrt(variance, out=variance)
            np.reciprocal(variance, out=variance)
            normal *= inverse[tile, None]
            normal *= gain
            normal += bias

    def layer_norm_backward(
        self,
        x: Array,
        mean: Array,
        inverse: Array,
        gain: Array,
        dy: Array,
        dx: Array,
        gain_grad: Array,
        bias_grad: Array,
        skip: Array | None = None,
    ) -> None:
        """Write r (g - mean(g) - n mean(g n)) + skip for g = dy gain, n the normal row, r = 1 / deviation.

        Adds the sums over rows of dy n and dy to the gradients of gain and bias; `dx` may be `x`.
        """
        width = x.shape[1]
        work = scratch().take((2, *tile_shape(x)), x.dtype)
        for tile in tiles(x):
            size = len(dy[tile])
            normal, product = work[:, :size]
            np.subtract(x[tile], mean[tile, None], out=normal)
            normal *= inverse[tile, None]
            bias_grad += np.matmul(ones(size, x.dtype), dy[tile])
            np.multiply(dy[tile], normal, out=product)
            gain_grad += np.matmul(ones(size, x.dtype), product)
            along = np.matmul(product, gain)[:, None]
            along /= width
            level = np.matmul(dy[tile], gain)[:, None]
            level /= width
            normal *= along
            normal += level
            np.multiply(dy[tile], gain, out=product)
            product -= normal
            np.multiply(product, inverse[tile, None], out=dx[tile])
            if skip is not None:
                dx[tile] += skip[tile]

    def add(self, x: Array, skip: Array | None, bias: Array | None, y: Array) -> None:
        """Write x + skip + bias, of which one may be missing: (rows, C), bias (C,); `y` may be `x`."""
        for tile in tiles(y):
            found = x[tile]
            for other in (None if skip is None else skip[tile], bias):
                if other is not None:
                    found = np.add(found, other, out=y[tile])

    def take_rows(self, table: Array, rows: Array, out: Array) -> None:
        """Copy rows of a table to `out`, (..., C); the nearest in place of one that is not there."""
        np.take(table, rows, axis=0, out=out, mode="clip")  # by default it would copy through a buffer

    def add_to_rows(self, table: Array, rows: Array, x: Array) -> None:
        """Add `x`, (n, C), to the rows of a table that `rows`, (n,), names; those not there are left out.

        Sorts, sums the runs, adds: far faster than `np.add.at`.
        """
        work = scratch().take((3, *tile_shape(x)), x.dtype)
        for tile in tiles(x):
            named = rows[tile]
            order = np.argsort(named, kind="stable")
            order = order[slice(*np.searchsorted(named, (0, len(table)), sorter=order))]
            if not len(order):
                continue
            present, starts = np.unique(named[order], return_index=True)
            by_row, sums, before = work[0, : len(order)], work[1, : len(present)], work[2, : len(present)]
            np.take(x[tile], order, axis=0, out=by_row, mode="clip")
            np.add.reduceat(by_row, starts, axis=0, out=sums)
            np.take(table, present, axis=0, out=before, mode="clip")
            sums += before
            table[present] = sums

    def attend(self, of: AttentionOperands) -> None:
        """Let queries attend to some keys more; the softmax goes on with the higher maximum."""
        softmax = of.softmax
        if softmax.exponentials is None:
            blockwise.attend(of)
            return
        for b, (q, k, v, y) in enumerate(zip(*of.inputs, of.y, strict=True)):
            maximum, total, factors = softmax.maximum[b], softmax.total[b], softmax.factors[b]
            for tile, scores in of.block.blocks_of(softmax.exponentials[b]):
                rows, keys = tile.queries, tile.keys
                _score(q[:, rows], k[:, keys], scores, causal=tile.causal)
                shrink = _exponentials(scores, maximum[:, rows], total[:, rows])
                factors[:, rows] = maximum[:, rows]
                if not of.first:
                    y[:, rows] *= shrink
                _add_product(scores, v[:, keys], y[:, rows], write=of.first)
                of.poll()

    def attend_backward(self, of: AttentionGradients) -> None:
        """Write a block's gradients of k and v; write, or add to, those of q.

        With g = factor dy: dv = e' g, ds = e (g v' - sum(g y)).
        """
        softmax, y, dy = of.softmax, of.y, of.dy
        if softmax.exponentials is None:
            blockwise.attend_backward(of)
            return
        for b, (q, k, v, dq, dk, dv) in enumerate(zip(*of.inputs, *of.grads, strict=True)):
            # The last block sees all keys: it writes the gradients of k and v, the others add.
            for tile, e in reversed(of.block.blocks_of(softmax.exponentials[b])):
                rows, keys, last = tile.queries, tile.keys, tile.last_of_keys
                g = scratch().take(q[:, rows].shape, dy.dtype)
                np.multiply(dy[b][:, rows], softmax.factors[b][:, rows, None], out=g)
                _add_product(e.swapaxes(1, 2), g, dv[:, keys], write=last)
                g *= 1 / math.sqrt(g.shape[-1])
                ds = scratch().take(e.shape, dy.dtype)
                np.matmul(g, v[:, keys].swapaxes(1, 2), out=ds)
                ds -= np.vecdot(g, y[b][:, rows])[..., None]
                ds *= e
                _add_product(ds, k[:, keys], dq[:, rows], write=of.first)
                _add_product(ds.swapaxes(1, 2), q[:, rows], dk[:, keys], write=last)
                del g, ds  # before the next
                of.poll()

    def normalise(self, y: Array, total: Array) -> None:
        """Divide `y`, (B, H, rows, width), by the sums of exponentials `total`, (B, H, rows)."""
        y /= total[..., None]


def _gelu(h: Array, y: Array, a: Array, b: Array) -> None:
    """Write the activation to `y` and the derivative over `h`; `a` and `b` are scratch."""
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


def _score(q: Array, k: Array, scores: Array, *, causal: bool) -> None:
    scaled = scratch().take(q.shape, q.dtype)
    np.multiply(q, 1 / math.sqrt(q.shape[-1]), out=scaled)
    np.matmul(scaled, k.swapaxes(1, 2), out=scores)
    if causal:  # the last keys are those of the block's own tokens
        rows = q.shape[1]
        scores[..., -rows:] += future(rows, scores.dtype)


def _exponentials(scores: Array, maximum: Array, total: Array) -> Array:
    """Turn scores into exponentials below the new maximum; return factors for earlier ones, (H, rows, 1)."""
    highest = np.maximum(maximum, np.maximum.reduce(scores, axis=-1))
    scores -= highest[..., None]
    np.exp(scores, out=scores)
    shrink: Array = np.exp(maximum - highest)
    maximum[...] = highest
    total *= shrink
    total += np.matmul(scores, ones(scores.shape[-1], scores.dtype))
    return shrink[..., None]


def _add_product(a: Array, b: Array, total: Array, *, write: bool) -> None:
    if write:
        np.matmul(a, b, out=total)
        return
    product = scratch().take(total.shape, total.dtype)
    np.matmul(a, b, out=product)
    total += product
