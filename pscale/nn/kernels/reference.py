"""Every kernel in NumPy, a tile of rows at a time: what `fused` computes is defined here."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable
from functools import cache

import numpy as np

from pscale.blas import forwarding
from pscale.nn.buffers import Array, address
from pscale.nn.kernels import blockwise, philox
from pscale.nn.kernels.attention_block import AttentionGradients, AttentionOperands, future
from pscale.nn.kernels.costs import attention_bytes, attention_flops, kernel
from pscale.nn.kernels.tiles import ones, scratch, tile_shape, tiles
from pscale.nn.kernels.updates import Updates

LINEAR = math.sqrt(2 / math.pi)
CUBIC = 0.044715 * LINEAR


class Kernels(Updates):
    """What the layers compute with."""

    name = "numpy"
    threads = 1

    @kernel("product", "a b > out", lambda a, out, **_: 2 * out.size * a.shape[-1])
    def multiply(self, a: Array, b: Array, out: Array) -> None:
        """Write a @ b: matrices, stacks of them, or a vector and a matrix."""
        np.matmul(a, b, out=out)

    @kernel("product", "a b > + out", lambda a, out, **_: 2 * out.size * a.shape[-1])
    def multiply_add(self, a: Array, b: Array, out: Array) -> None:
        """Add a @ b to `out`: in the sums of the product where NumPy's BLAS can be called, else by tiles."""
        if a.ndim == 1:
            out += np.matmul(a, b)
        elif a.ndim > 2:
            for x, y, z in zip(a, b, out, strict=True):
                self.multiply_add(x, y, z)
        elif not add_product(a, b, out):
            work = scratch().take(tile_shape(out), out.dtype)
            for tile in tiles(out):
                out[tile] += np.matmul(a[tile], b, out=work[: len(out[tile])])

    @kernel("activation", "x* bias > y* slope*", lambda x, bias, **_: (14 + (bias is not None)) * x.size)
    def bias_gelu(self, x: Array, bias: Array | None, y: Array, slope: Array) -> None:
        """Write h s(2u) and its derivative s + y (1 - s) 2u' for h = x + bias, s the logistic function.

        u = LINEAR h + CUBIC h^3 (Hendrycks and Gimpel, 2016). (rows, C), bias (C,); `slope` may be `x`.
        """
        work = scratch().take((2, *tile_shape(x)), x.dtype)
        for tile in tiles(x):
            h = np.add(x[tile], 0 if bias is None else bias, out=slope[tile])
            _gelu(h, y[tile], *work[:, : len(h)])

    @kernel(
        "activation",
        "dy* slope* > dx* + bias_grad",
        lambda dy, bias_grad, **_: (1 + (bias_grad is not None)) * dy.size,
    )
    def bias_gelu_backward(self, dy: Array, slope: Array, dx: Array, bias_grad: Array | None) -> None:
        """Write dy slope, (rows, C), add its column sums to `bias_grad`, (C,); `dx` may be either."""
        for tile in tiles(dx):
            part = np.multiply(dy[tile], slope[tile], out=dx[tile])
            if bias_grad is not None:
                bias_grad += np.matmul(ones(len(part), dy.dtype), part)

    @kernel("activation", "> y* + slopes*", lambda y, **_: 10 * y.size)
    def swiglu(self, y: Array, slopes: Array) -> None:
        """Write silu(g) u for `slopes` (rows, 2C) of g and u, and in their place the derivatives of both.

        silu(g) = g s(g), s the logistic function (Shazeer, 2020). y (rows, C).
        """
        width = y.shape[1]
        for tile in tiles(y):
            gate, up, out = slopes[tile, :width], slopes[tile, width:], y[tile]
            s = np.tanh(gate * 0.5) * 0.5 + 0.5
            silu = gate * s
            np.multiply(silu, up, out=out)
            gate[...] = up * s + out - s * out
            up[...] = silu

    @kernel("activation", "dy* > + slopes*", lambda dy, **_: 2 * dy.size)
    def swiglu_backward(self, dy: Array, slopes: Array) -> None:
        """Multiply the derivatives for g and u, (rows, 2C), by dy, (rows, C)."""
        for part in np.split(slopes, 2, axis=1):
            np.multiply(part, dy, out=part)

    @kernel(
        "norm",
        "x* gain bias > y* mean* rstd*",
        lambda x, bias, mean, **_: (
            (4 + 2 * (mean is not None) + (bias is not None)) * x.size + (4 + (mean is not None)) * len(x)
        ),
    )
    def layer_norm(
        self,
        x: Array,
        gain: Array,
        bias: Array | None,
        y: Array,
        mean: Array | None,
        rstd: Array,
        epsilon: float,
    ) -> None:
        """Write (x - mean) / deviation * gain + bias, the mean and 1 / deviation (Ba et al., 2016).

        Without `mean` it is taken as zero: RMSNorm (Zhang and Sennrich, 2019).
        """
        width = x.shape[1]
        for tile in tiles(x):
            normal = x[tile]
            if mean is not None:
                np.matmul(x[tile], ones(width, x.dtype), out=mean[tile])
                mean[tile] /= width
                normal = np.subtract(x[tile], mean[tile, None], out=y[tile])
            variance = np.vecdot(normal, normal, out=rstd[tile])
            variance /= width
            variance += epsilon
            np.sqrt(variance, out=variance)
            np.reciprocal(variance, out=variance)
            normal = np.multiply(normal, rstd[tile, None], out=y[tile])
            normal *= gain
            if bias is not None:
                normal += bias

    @kernel(
        "norm",
        "x* mean* rstd* gain dy* skip* > dx* + gain_grad bias_grad",
        lambda x, mean, skip, bias_grad, **_: (
            (9 + 4 * (mean is not None) + (skip is not None) + (bias_grad is not None)) * x.size
            + (1 + (mean is not None)) * len(x)
        ),
    )
    def layer_norm_backward(
        self,
        x: Array,
        mean: Array | None,
        rstd: Array,
        gain: Array,
        dy: Array,
        dx: Array,
        gain_grad: Array,
        bias_grad: Array | None,
        skip: Array | None = None,
    ) -> None:
        """Write r (g - mean(g) - n mean(g n)) + skip for g = dy gain, n the normal row, r = 1 / deviation.

        Adds the sums over rows of dy n and dy to the gradients of gain and bias; `dx` may be `x`. Without
        `mean` nothing was subtracted: the term mean(g) is left out.
        """
        width = x.shape[1]
        work = scratch().take((2, *tile_shape(x)), x.dtype)
        for tile in tiles(x):
            size = len(dy[tile])
            normal, product = work[:, :size]
            np.subtract(x[tile], 0 if mean is None else mean[tile, None], out=normal)
            normal *= rstd[tile, None]
            if bias_grad is not None:
                bias_grad += np.matmul(ones(size, x.dtype), dy[tile])
            np.multiply(dy[tile], normal, out=product)
            gain_grad += np.matmul(ones(size, x.dtype), product)
            along = np.matmul(product, gain)[:, None]
            along /= width
            normal *= along
            if mean is not None:
                level = np.matmul(dy[tile], gain)[:, None]
                level /= width
                normal += level
            np.multiply(dy[tile], gain, out=product)
            product -= normal
            np.multiply(product, rstd[tile, None], out=dx[tile])
            if skip is not None:
                dx[tile] += skip[tile]

    @kernel(
        "elementwise",
        "x* skip* bias > y*",
        lambda skip, bias, y, **_: ((skip is not None) + (bias is not None)) * y.size,
    )
    def add(self, x: Array, skip: Array | None, bias: Array | None, y: Array) -> None:
        """Write x + skip + bias, of which one may be missing: (rows, C), bias (C,); `y` may be `x`."""
        for tile in tiles(y):
            found = x[tile]
            for other in (None if skip is None else skip[tile], bias):
                if other is not None:
                    found = np.add(found, other, out=y[tile])

    @kernel(
        "elementwise",
        "cosine* sine* > + x*",
        lambda sine, heads, **_: 6 * heads * sine.size,
        lambda x, cosine, sine, heads, **_: cosine.nbytes + sine.nbytes + 4 * heads * sine.size * x.itemsize,
    )
    def rotate(self, x: Array, cosine: Array, sine: Array, heads: int, sign: int) -> None:
        """Turn pairs (a, b), half a head apart, of the first `heads` heads in rows of `x`, (rows, C).

        They become (a cos - b sin, b cos + a sin), by `sign` -1 what they were. cosine, sine: (rows, pairs).
        """
        half = sine.shape[1]
        pairs = x[:, : 2 * half * heads].reshape(len(x), heads, 2, half)
        for tile in tiles(x):
            a, b = pairs[tile, :, 0], pairs[tile, :, 1]
            cosines, sines = cosine[tile, None], sign * sine[tile, None]
            turned = a * cosines - b * sines
            b[...] = b * cosines + a * sines
            a[...] = turned

    @kernel("elementwise", "x* positions* > out*", lambda x, **_: x.size)
    def dropout(
        self,
        x: Array,
        out: Array,
        positions: Array,
        column: int,
        sequence: int,
        site: int,
        seed: int,
        step: int,
        rate: float,
    ) -> None:
        """Write x / (1 - rate), (rows, C), or 0 where the random number of an element is below `rate`.

        That follows from seed, step and site, and from where the element is: in sequence number `sequence` of
        the batch, at `positions`, (rows,), and from feature `column` on. `out` may be `x`.
        """
        features = np.arange(column, column + x.shape[1])
        for tile in tiles(x):
            words = philox.words(features, positions[tile, None], sequence, site, key=(seed, step))
            np.multiply(x[tile], 1 / (1 - rate), out=out[tile])
            out[tile][words < philox.threshold(rate)] = 0

    @kernel(
        "embedding", "table rows > out", lambda **_: 0, lambda rows, out, **_: rows.nbytes + 2 * out.nbytes
    )
    def take_rows(self, table: Array, rows: Array, out: Array) -> None:
        """Copy rows of a table to `out`, (..., C); the nearest in place of one that is not there."""
        np.take(table, rows, axis=0, out=out, mode="clip")  # by default it would copy through a buffer

    @kernel(
        "embedding",
        "rows* x* > + table",
        lambda x, **_: x.size,
        lambda rows, x, **_: rows.nbytes + 3 * x.nbytes,
    )
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

    @kernel("loss", "targets* > + y*", lambda y, **_: 5 * y.size)
    def cross_entropy(self, y: Array, targets: Array, weight: float) -> float:
        """Return `weight` times the sum of -log softmax(y)[target], with its gradient in place of `y`."""
        loss = 0.0
        for tile in tiles(y, times=8):  # a tile has few rows of as many logits, and calls take longer
            p, columns, (total, chosen) = y[tile], targets[tile], np.empty((2, len(y[tile])), y.dtype)
            self.exponentials(p, columns, np.maximum.reduce(p, axis=1), total, chosen)
            self.softmax_gradient(p, columns, total, weight)
            loss += float(np.sum(np.log(total) - chosen, dtype=np.float64))
        return loss * weight

    @kernel("loss", "targets* largest* > total* chosen* + y*", lambda y, **_: 3 * y.size)
    def exponentials(self, y: Array, targets: Array, largest: Array, total: Array, chosen: Array) -> None:
        """Write exp(y - largest) in place, its sums along rows, and y - largest of the target.

        (rows, C) and (rows,); a target that is no column here is one of another rank, and gets 0.
        """
        y -= largest[:, None]
        here = _targets(targets, y)
        chosen.fill(0)
        chosen[here[0]] = y[here]
        np.exp(y, out=y)
        np.matmul(y, ones(y.shape[1], y.dtype), out=total)

    @kernel("loss", "targets* total* > + p*", lambda p, **_: p.size)
    def softmax_gradient(self, p: Array, targets: Array, total: Array, weight: float) -> None:
        """Turn exponentials into weight (p / total - one-hot), in place."""
        p *= (weight / total)[:, None]
        p[_targets(targets, p)] -= weight

    @kernel("loss", "targets* > + y*", lambda y, **_: 4 * y.size)
    def mean_square(self, y: Array, targets: Array, weight: float) -> float:
        """Return `weight` times the sum of (y - target)^2, with its gradient in place of `y`, (rows, C)."""
        loss = 0.0
        for tile in tiles(y):
            part = y[tile]
            part -= targets[tile]
            loss += float(np.sum(np.vecdot(part, part), dtype=np.float64))
            part *= 2 * weight
        return loss * weight

    @kernel("attention", "", attention_flops, attention_bytes)
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
                left = scores
                if of.dropped is not None:
                    left = scratch().take(scores.shape, scores.dtype)
                    np.multiply(scores, of.dropped.factors(b, slice(None), tile, scores.dtype), out=left)
                _add_product(left, v[:, keys], y[:, rows], write=of.first)
                of.poll()

    @kernel("attention", "", attention_flops, attention_bytes)
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
                rows, keys, last = tile.queries, tile.keys, tile.last_of_keys and of.first_of_keys
                g = scratch().take(q[:, rows].shape, dy.dtype)
                np.multiply(dy[b][:, rows], softmax.factors[b][:, rows, None], out=g)
                factors: Array | float = 1.0
                if of.dropped is not None:
                    factors = of.dropped.factors(b, slice(None), tile, e.dtype)
                left = e if of.dropped is None else e * factors
                _add_product(left.swapaxes(1, 2), g, dv[:, keys], write=last)
                g *= 1 / math.sqrt(g.shape[-1])
                ds = scratch().take(e.shape, dy.dtype)
                np.matmul(g, v[:, keys].swapaxes(1, 2), out=ds)
                if of.dropped is not None:
                    ds *= factors
                ds -= np.vecdot(g, y[b][:, rows])[..., None]
                ds *= e
                _add_product(ds, k[:, keys], dq[:, rows], write=of.first)
                _add_product(ds.swapaxes(1, 2), q[:, rows], dk[:, keys], write=last)
                del g, ds  # before the next
                of.poll()

    @kernel("attention", "total > + y", lambda **_: 0)
    def normalise(self, y: Array, total: Array) -> None:
        """Divide `y`, (B, H, rows, width), by the sums of exponentials `total`, (B, H, rows)."""
        y /= total[..., None]


def _targets(targets: Array, rows: Array) -> tuple[Array, Array]:
    """Return the rows whose target is one of the columns here, and these columns."""
    here = np.flatnonzero((targets >= 0) & (targets < rows.shape[1]))
    return here, targets[here]


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


_GEMM = {"f": ("cblas_sgemm", ctypes.c_float), "d": ("cblas_dgemm", ctypes.c_double)}
_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED = 101, 111, 112  # of CBLAS


def add_product(a: Array, b: Array, out: Array) -> bool:
    """Add a @ b to `out`, matrices, by the BLAS of NumPy, which sums in place; false if that cannot."""
    left, right, rows = _layout(a), _layout(b), _layout(out)
    gemm = _gemm(out.dtype.char) if a.dtype == b.dtype == out.dtype else None
    if gemm is None or not (left and right and rows) or rows[0] != _AS_IT_IS:
        return False
    at_a, at_b, at_out = map(address, (a, b, out))
    sizes, one = (*out.shape, a.shape[1]), 1.0
    orders = _ROW_MAJOR, left[0], right[0]
    gemm(*orders, *sizes, one, at_a, left[1], at_b, right[1], one, at_out, rows[1])
    return True


def _layout(x: Array) -> tuple[int, int] | None:
    """Return whether a matrix is transposed in memory, with the numbers from row to row there."""
    for order, rows in ((_AS_IT_IS, x), (_TRANSPOSED, x.T)):
        if rows.flags.c_contiguous:
            return order, max(rows.shape[1], 1)
        if rows.strides[1] == x.itemsize and rows.strides[0] >= rows.shape[1] * x.itemsize:
            return order, rows.strides[0] // x.itemsize
    return None


@cache
def _gemm(kind: str) -> Callable[..., None] | None:
    """Return the product of matrices of the BLAS that computes for NumPy, for a type of number, if found."""
    if kind not in _GEMM:
        return None
    umath = sys.modules["numpy._core._multiarray_umath"]  # which is linked to its BLAS
    opened = ctypes.CDLL(str(forwarding.library() or umath.__file__))
    name, real = _GEMM[kind]
    _, suffix = around = forwarding.affixes(opened)
    if not hasattr(opened, name.join(around)):
        return None
    routine = opened[name.join(around)]
    whole = ctypes.c_int64 if forwarding.has_64_bits(opened, suffix) else ctypes.c_int32
    place, routine.restype = ctypes.c_void_p, None
    routine.argtypes = [*[ctypes.c_int] * 3, *[whole] * 3, real, *[place, whole] * 2, real, place, whole]
    return routine
