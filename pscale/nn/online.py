"""Causal attention whose keys come in pieces: the softmax goes on with a running maximum.

Online softmax as in Milakov and Gimelshein, 2018; what is not known yet is put right by factors at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pscale.nn.attention import blocks, future, scores_per_head
from pscale.nn.buffers import Array, Buffers
from pscale.nn.tile import ones

Progress = Callable[[], object]  # called between blocks: exchanges under way may go on


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some queries and some keys that meet: all of them, or if `causal` each query the keys up to its own."""

    queries: slice
    keys: slice
    causal: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of queries and keys."""
        return self.queries.stop - self.queries.start, self.keys.stop - self.keys.start

    @property
    def scores(self) -> int:
        """Scores of one head that are computed."""
        queries, keys = self.size
        return scores_per_head(queries) if self.causal else queries * keys

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield blocks of queries and the keys that each meets, counted from the first of the piece."""
        queries, keys = self.size
        for rows in blocks(queries):
            yield rows, slice(0, rows.stop if self.causal else keys)


@dataclass(frozen=True)
class Scored:
    """What forward leaves of a piece: exponentials of its scores, (B, H scores), with a maximum of their own.

    `factors`, (B, H, queries, 1), hold that maximum, and after the last piece what turns the exponentials
    into probabilities.
    """

    piece: Piece
    exponentials: Array
    factors: Array

    def blocks(self, number: int) -> list[tuple[slice, slice, Array]]:
        """Return queries, keys and the exponentials (H, queries, keys) of every block of one sequence."""
        heads, store, start, found = self.factors.shape[1], self.exponentials[number], 0, []
        for rows, keys in self.piece.blocks():
            shape = (heads, rows.stop - rows.start, keys.stop)
            stop = start + math.prod(shape)
            found.append((rows, keys, store[start:stop].reshape(shape)))
            start = stop
        return found


@dataclass(frozen=True)
class Cache:
    """What backward needs; the pieces in the order in which they were met."""

    qkv: Array
    y: Array
    scored: Sequence[Scored]


class Forward:
    """Attention of the queries in packed `qkv` (B, T, 3C), taken over, to the keys met so far."""

    def __init__(self, qkv: Array, heads: int, buffers: Buffers):
        B, T, width = qkv.shape
        self.qkv, self.heads, self.buffers = qkv, heads, buffers
        self.y = buffers.take((B, T, width // 3), qkv.dtype)
        self._maximum = buffers.take((B, heads, T, 1), qkv.dtype)
        self._total = buffers.take((B, heads, T, 1), qkv.dtype)
        self.y.fill(0)
        self._maximum.fill(-np.inf)
        self._total.fill(0)
        self._scored: list[Scored] = []

    def meet(self, piece: Piece, kv: Array, progress: Progress) -> None:
        """Attend to keys and values, (B, keys, 2, C); the first piece gives every query some key."""
        scored = self._scored_piece(piece)
        q, y = by_head(packed(self.qkv, 3), self.heads)[0], by_head(packed(self.y, 1), self.heads)[0]
        mine = (x[:, :, piece.queries] for x in (q, y, self._maximum, self._total))
        keys_values = by_head(kv[:, piece.keys], self.heads)
        for number, views in enumerate(zip(*mine, *keys_values, scored.factors, strict=True)):
            for rows, keys, scores in scored.blocks(number):
                queries, y_rows, maximum, total, k, v, factors = views
                state = (y_rows[:, rows], maximum[:, rows], total[:, rows])
                self._score(queries[:, rows], k[:, keys], scores, causal=piece.causal)
                self._absorb(scores, v[:, keys], *state)
                factors[:, rows] = maximum[:, rows]
                progress()
        self._scored.append(scored)

    def finish(self) -> tuple[Array, Cache]:
        """Return the output and what backward needs, when the last keys have been met."""
        inverse = np.reciprocal(self._total, out=self._total)
        y = by_head(packed(self.y, 1), self.heads)[0]
        y *= inverse
        for scored in self._scored:
            queries, factors = scored.piece.queries, scored.factors
            factors -= self._maximum[:, :, queries]
            np.exp(factors, out=factors)
            factors *= inverse[:, :, queries]
        self.buffers.give(self._maximum)
        self.buffers.give(self._total)
        self.buffers.share(self.y)
        return self.y, Cache(self.qkv, self.y, self._scored)

    def _scored_piece(self, piece: Piece) -> Scored:
        B, dtype, take = len(self.qkv), self.qkv.dtype, self.buffers.take
        exponentials = take((B, self.heads * piece.scores), dtype)
        return Scored(piece, exponentials, take((B, self.heads, piece.size[0], 1), dtype))

    def _score(self, q: Array, k: Array, scores: Array, *, causal: bool) -> None:
        scaled = self.buffers.take(q.shape, q.dtype)
        np.multiply(q, 1 / math.sqrt(q.shape[-1]), out=scaled)
        np.matmul(scaled, k.swapaxes(1, 2), out=scores)
        self.buffers.give(scaled)
        if causal:  # the last keys are those of the block's own tokens
            rows = q.shape[1]
            scores[..., -rows:] += future(rows, scores.dtype)

    def _absorb(self, scores: Array, v: Array, y: Array, maximum: Array, total: Array) -> None:
        """Turn scores into exponentials; let output and sum go on with the higher maximum."""
        highest = np.maximum(maximum, np.maximum.reduce(scores, axis=-1, keepdims=True))
        scores -= highest
        np.exp(scores, out=scores)
        shrink = np.exp(maximum - highest)
        maximum[...] = highest
        total *= shrink
        total[..., 0] += np.matmul(scores, ones(scores.shape[-1], scores.dtype))
        y *= shrink
        add_product(scores, v, y, self.buffers)


class Backward:
    """Gradients of attention piece by piece; takes over `dy`, and `cache` at its end.

    With g = factor dy: dv = e' g, ds = e (g v' - sum(g y)), as where all keys are at hand.
    """

    def __init__(self, dy: Array, cache: Cache, heads: int, buffers: Buffers):
        self.dy, self.cache, self.heads, self.buffers = dy, cache, heads, buffers
        self.dqkv = buffers.take(cache.qkv.shape, dy.dtype)
        self._queries = (
            by_head(packed(cache.qkv, 3), heads)[0],
            by_head(packed(cache.y, 1), heads)[0],
            by_head(packed(dy, 1), heads)[0],
            by_head(packed(self.dqkv, 3), heads)[0],
        )

    def meet(self, scored: Scored, kv: Array, dkv: Array, progress: Progress) -> None:
        """Write the gradients of the piece's keys and values to `dkv`, (B, keys, 2, C), add to those of q.

        The pieces come in the order of forward: the first has all queries and writes.
        """
        piece, first = scored.piece, scored is self.cache.scored[0]
        mine = (x[:, :, piece.queries] for x in self._queries)
        k_v_dk_dv = (*by_head(kv[:, piece.keys], self.heads), *by_head(dkv[:, piece.keys], self.heads))
        for number, views in enumerate(zip(*mine, *k_v_dk_dv, scored.factors, strict=True)):
            # The last block sees all keys: it writes the gradients of k and v, the others add.
            for rows, keys, exponentials in reversed(scored.blocks(number)):
                q, y, dy, dq, k, v, dk, dv, factors = views
                g = self.buffers.take(dy[:, rows].shape, dy.dtype)
                np.multiply(dy[:, rows], factors[:, rows], out=g)
                last = rows.stop == piece.size[0]
                add_product(exponentials.swapaxes(1, 2), g, dv[:, keys], self.buffers, write=last)
                ds = self._of_scores(g, v[:, keys], y[:, rows], exponentials)
                add_product(ds, k[:, keys], dq[:, rows], self.buffers, write=first)
                add_product(ds.swapaxes(1, 2), q[:, rows], dk[:, keys], self.buffers, write=last)
                self.buffers.give(g)
                self.buffers.give(ds)
                progress()

    def finish(self) -> Array:
        """Return the gradient of the packed q, k and v; those of k and v are for the caller to fill in."""
        for array in (self.dy, self.cache.qkv, self.cache.y):
            self.buffers.give(array)
        for scored in self.cache.scored:
            self.buffers.give(scored.exponentials)
            self.buffers.give(scored.factors)
        return self.dqkv

    def _of_scores(self, g: Array, v: Array, y: Array, exponentials: Array) -> Array:
        ds = self.buffers.take(exponentials.shape, g.dtype)
        g *= 1 / math.sqrt(g.shape[-1])
        np.matmul(g, v.swapaxes(1, 2), out=ds)
        ds -= np.vecdot(g, y)[..., None]
        ds *= exponentials
        return ds


def packed(x: Array, kinds: int) -> Array:
    """View (B, T, kinds C) as (B, T, kinds, C)."""
    return x.reshape(*x.shape[:2], kinds, x.shape[2] // kinds)


def by_head(x: Array, heads: int) -> Array:
    """View (B, T, kinds, C) as (kinds, B, heads, T, width of a head)."""
    B, T, kinds, C = x.shape
    return x.reshape(B, T, kinds, heads, C // heads).transpose(2, 0, 3, 1, 4)


def add_product(a: Array, b: Array, total: Array, buffers: Buffers, *, write: bool = False) -> None:
    """Add `a @ b` to `total`, or write it there."""
    if write:
        np.matmul(a, b, out=total)
        return
    product = buffers.take(total.shape, total.dtype)
    np.matmul(a, b, out=product)
    total += product
    buffers.give(product)
