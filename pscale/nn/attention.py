"""Causal multi-head attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import DTypeLike

from pscale.nn.buffers import Array, Buffers
from pscale.nn.param import Param
from pscale.nn.tile import ones

ROWS = 64  # queries of a block; keys after the block's last query are never multiplied


def blocks(sequence: int) -> Iterator[slice]:
    """Cut the queries into blocks: that of queries [start, stop) needs the keys [0, stop)."""
    for start in range(0, sequence, ROWS):
        yield slice(start, min(start + ROWS, sequence))


def scores_per_head(sequence: int) -> int:
    """Return how many scores of one head are computed: those of all blocks."""
    return sum((block.stop - block.start) * block.stop for block in blocks(sequence))


@dataclass(frozen=True)
class Cache:
    """What backward needs; `inverse` is one over the sums of the exponentials."""

    qkv: Array
    exponentials: Array
    inverse: Array
    y: Array


@dataclass(frozen=True)
class _Sequence:
    """Views of one sequence's part: (H, T, ...), and (H, queries, keys) for the blocks."""

    q: Array
    k: Array
    v: Array
    y: Array
    inverse: Array
    blocks: Sequence[tuple[slice, Array]]  # queries and their exponentials


class Attention:
    """softmax(q k' / sqrt(width of a head)) v on packed (B, T, 3, heads, width): (B, T, 3C) to (B, T, C).

    Kept for backward: exponentials e (not divided by their sums), the sums' inverses r, and the output.
    With g = r dy: dv = e' g, ds = e (g v' - sum(g y)), which never needs the probabilities themselves.
    """

    params: Sequence[Param] = ()

    def __init__(self, heads: int, *, buffers: Buffers):
        self.heads, self.buffers = heads, buffers

    def forward(self, qkv: Array) -> tuple[Array, Cache]:
        """Attend to the present and the past."""
        B, T, width = qkv.shape
        take = self.buffers.take
        y = take((B, T, width // 3), qkv.dtype)
        exponentials = take((B, self.heads * scores_per_head(T)), qkv.dtype)
        cache = Cache(qkv, exponentials, take((B, self.heads, T, 1), qkv.dtype), y)
        for sequence in self._sequences(cache):
            for block, scores in sequence.blocks:
                self._attend(sequence, block, scores)
        self.buffers.share(y)
        return y, cache

    def backward(self, dy: Array, cache: Cache) -> Array:
        """Return the gradient of the packed q, k and v."""
        dqkv = self.buffers.take(cache.qkv.shape, dy.dtype)
        for sequence, dy_heads, *grads in zip(
            self._sequences(cache), self._by_head(dy), *self._split(dqkv), strict=True
        ):
            # The last block sees all keys: it writes the gradients of k and v, the others add.
            for block, exponentials in reversed(sequence.blocks):
                self._differentiate(sequence, block, exponentials, dy_heads[:, block], grads)
        for array in (cache.qkv, cache.exponentials, cache.inverse, cache.y, dy):
            self.buffers.give(array)
        return dqkv

    def _attend(self, sequence: _Sequence, block: slice, scores: Array) -> None:
        q, keys, inverse = sequence.q[:, block], slice(0, block.stop), sequence.inverse[:, block]
        tile = self.buffers.take(q.shape, q.dtype)
        np.multiply(q, 1 / math.sqrt(q.shape[-1]), out=tile)
        np.matmul(tile, sequence.k[:, keys].swapaxes(1, 2), out=scores)
        scores[..., block] += future(block.stop - block.start, scores.dtype)
        scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        total = np.matmul(scores, ones(block.stop, scores.dtype))
        np.reciprocal(total, out=inverse[..., 0])
        np.matmul(scores, sequence.v[:, keys], out=tile)
        np.multiply(tile, inverse, out=sequence.y[:, block])
        self.buffers.give(tile)

    def _differentiate(
        self, sequence: _Sequence, block: slice, exponentials: Array, dy: Array, grads: Sequence[Array]
    ) -> None:
        dq, dk, dv = grads
        keys, last = slice(0, block.stop), block.stop == dq.shape[1]
        g = self.buffers.take(dy.shape, dy.dtype)
        ds = self.buffers.take(exponentials.shape, dy.dtype)
        np.multiply(dy, sequence.inverse[:, block], out=g)
        self._add_product(exponentials.swapaxes(1, 2), g, dv[:, keys], write=last)
        g *= 1 / math.sqrt(dy.shape[-1])
        np.matmul(g, sequence.v[:, keys].swapaxes(1, 2), out=ds)
        ds -= np.vecdot(g, sequence.y[:, block])[..., None]
        ds *= exponentials
        np.matmul(ds, sequence.k[:, keys], out=dq[:, block])
        self._add_product(ds.swapaxes(1, 2), sequence.q[:, block], dk[:, keys], write=last)
        self.buffers.give(g)
        self.buffers.give(ds)

    def _add_product(self, a: Array, b: Array, total: Array, *, write: bool) -> None:
        if write:
            np.matmul(a, b, out=total)
            return
        product = self.buffers.take(total.shape, total.dtype)
        np.matmul(a, b, out=product)
        total += product
        self.buffers.give(product)

    def _sequences(self, cache: Cache) -> Iterator[_Sequence]:
        T = cache.qkv.shape[1]
        for q, k, v, y, inverse, store in zip(
            *self._split(cache.qkv), self._by_head(cache.y), cache.inverse, cache.exponentials, strict=True
        ):
            yield _Sequence(q, k, v, y, inverse, self._blocks(store, T))

    def _blocks(self, store: Array, sequence: int) -> Sequence[tuple[slice, Array]]:
        views, start = [], 0
        for block in blocks(sequence):
            shape = (self.heads, block.stop - block.start, block.stop)
            stop = start + math.prod(shape)
            views.append((block, store[start:stop].reshape(shape)))
            start = stop
        return views

    def _split(self, qkv: Array) -> Array:
        B, T, width = qkv.shape
        return qkv.reshape(B, T, 3, self.heads, width // 3 // self.heads).transpose(2, 0, 3, 1, 4)

    def _by_head(self, y: Array) -> Array:
        B, T, C = y.shape
        return y.reshape(B, T, self.heads, C // self.heads).transpose(0, 2, 1, 3)


@lru_cache(maxsize=8)
def future(size: int, dtype: DTypeLike) -> Array:
    """Return what hides the keys after each query of a block: 0 and -inf."""
    return np.triu(np.full((size, size), -np.inf, dtype), 1)
