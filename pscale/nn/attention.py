"""Causal multi-head attention, of all tokens at once or of keys that come in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers, rounded
from pscale.nn.common_layers import Draws, positions_in
from pscale.nn.dtypes import compute_dtype
from pscale.nn.kernels.attention_block import (
    AttentionBlock,
    AttentionGradients,
    AttentionOperands,
    DroppedScores,
    Progress,
    Softmax,
    whole,
)
from pscale.nn.layer import Stateless
from pscale.nn.param import Param


@dataclass(frozen=True)
class Scored:
    """What forward leaves of a block, for each of the queries of a head of keys."""

    block: AttentionBlock
    softmax: Sequence[Softmax]


@dataclass(frozen=True)
class Cache:
    """What backward needs: the blocks in the order in which they were met, and what is kept of them."""

    qkv: Array
    y: Array
    scored: Sequence[Scored]


@dataclass(frozen=True, kw_only=True)
class ScoreDropout:
    """Drops probabilities by `draws` and `site`, for heads of keys from number `first` of `heads` on.

    Sequences are those of the batch from `offset` times their number on.
    """

    rate: float
    site: int
    draws: Draws
    first: int = 0
    heads: int = 1
    offset: int = 0


NO_DROPOUT = ScoreDropout(rate=0.0, site=0, draws=Draws())


class Attention:
    """softmax(q k' / sqrt(width of a head)) v on packed (B, T, queries + 2, heads, width) to (B, T, C).

    The first `queries` kinds of heads are queries, each for the keys and values of its number, the last two
    (grouped-query attention: Ainslie et al., 2023). The output is (B, T, heads, queries, width).

    Kept for backward: the output, and exponentials with the factors that make them probabilities; or, if
    they are to be computed again, a number for each query and head.
    """

    params: Sequence[Param] = ()

    def __init__(
        self,
        heads: int,
        queries: int = 1,
        *,
        keeps_scores: bool,
        buffers: Buffers,
        dropout: ScoreDropout = NO_DROPOUT,
    ):
        self.heads, self.queries, self.keeps_scores, self.buffers = heads, queries, keeps_scores, buffers
        self.dropout = dropout

    def forward(self, qkv: Array) -> tuple[Array, Cache]:
        """Attend to the present and the past."""
        attention = Forward(qkv, self.heads, self.queries, self.buffers, keeps_scores=self.keeps_scores)
        every = Between(self.dropout, np.arange(qkv.shape[1]), np.arange(qkv.shape[1]))
        attention.meet(whole(qkv.shape[1]), keys_and_values(qkv, self.queries), every)
        return attention.finish()

    def backward(self, dy: Array, cache: Cache) -> Array:
        """Return the gradient of the packed q, k and v."""
        gradients = Backward(dy, cache, self.heads, self.queries, self.buffers)
        kv, dkv = (keys_and_values(x, self.queries) for x in (cache.qkv, gradients.dqkv))
        every = Between(self.dropout, np.arange(dy.shape[1]), np.arange(dy.shape[1]))
        gradients.meet(cache.scored[0], kv, dkv, every)
        return gradients.dqkv


class Between(NamedTuple):
    """What is dropped, if anything, between queries and keys at some positions."""

    dropout: ScoreDropout
    queries: Array
    keys: Array

    def of(self, block: AttentionBlock, number: int, q: Array) -> DroppedScores | None:
        """Return what is dropped in a block of query `number` of each head, `q` (B, H, queries, width)."""
        of, draws, (B, heads) = self.dropout, self.dropout.draws, q.shape[:2]
        if not of.rate or draws.paused:
            return None
        return DroppedScores(
            rate=of.rate,
            site=of.site,
            key=(draws.seed, draws.step),
            sequences=np.arange(B) + draws.first + of.offset * B,
            heads=np.arange(heads) + of.first + number * of.heads,
            queries=self.queries[block.queries],
            keys=self.keys[block.keys],
        )


_POSITIONS = 1024  # whose angles are computed at once


def turns(
    runs: Sequence[slice], half: int, base: float, dtype: DTypeLike, buffers: Buffers
) -> tuple[Array, Array]:
    """Return cosines and sines of position / base^(i / half), each (positions of all runs, half)."""
    positions = positions_in(runs)
    size = len(positions), half
    cosine, sine = (buffers.take(size, compute_dtype(np.dtype(dtype))) for _ in range(2))
    for start in range(0, len(positions), _POSITIONS):
        part = slice(start, start + _POSITIONS)
        angles = np.outer(positions[part], base ** -(np.arange(half) / half))
        cosine[part], sine[part] = np.cos(angles), np.sin(angles)
    return cosine, sine


class Rotary(Stateless):
    """Queries and keys turned by the angles of their positions (RoPE: Su et al., 2021), in place.

    They are the first `heads` heads of packed (B, T, C); `turns` has a row of cosines and sines for each T.
    """

    def __init__(self, heads: int, turns: tuple[Array, Array]):
        self.heads, self.turns = heads, turns

    def forward(self, x: Array) -> tuple[Array, None]:
        """Turn; keeps nothing."""
        return self._turned(x, 1), None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Turn gradients back: the transpose of a rotation is its inverse."""
        return self._turned(dy, -1)

    def _turned(self, x: Array, sign: int) -> Array:
        for sequence in x:
            kernels.current().rotate(sequence, *self.turns, self.heads, sign)
        return x


class Forward:
    """Attention of the queries in packed `qkv` (B, T, kinds of heads, ·) to the keys met so far."""

    def __init__(self, qkv: Array, heads: int, queries: int, buffers: Buffers, *, keeps_scores: bool):
        B, T, width = qkv.shape
        self.qkv, self.heads, self.buffers, self._keeps_scores = qkv, heads, buffers, keeps_scores
        self.queries = queries
        self.y = buffers.take((B, T, width // (queries + 2) * queries), compute_dtype(qkv.dtype))
        self._maximum = buffers.take((queries, B, heads, T), compute_dtype(qkv.dtype))
        self._total = buffers.take((queries, B, heads, T), compute_dtype(qkv.dtype))
        self._maximum.fill(-np.inf)
        self._total.fill(0)
        self._scored: list[Scored] = []

    def meet(
        self, block: AttentionBlock, kv: Array, between: Between, progress: Progress | None = None
    ) -> None:
        """Attend to keys and values, (B, keys, 2, C); the first block has all queries."""
        q, rows = by_head(packed(self.qkv, self.queries + 2), self.heads), block.queries
        softmax = [self._softmax(block, number) for number in range(self.queries)]
        for number, y in enumerate(by_query(self.y, self.heads, self.queries)):
            met = AttentionOperands(
                block=block,
                inputs=(q[number][:, :, rows], *by_head(kv[:, block.keys], self.heads)),
                y=y[:, :, rows],
                softmax=softmax[number],
                dropped=between.of(block, number, q[number]),
                first=not self._scored,
                progress=progress,
            )
            kernels.current().attend(met)
        self._scored.append(Scored(block, softmax))

    def finish(self) -> tuple[Array, Cache]:
        """Return the output and what backward needs, when the last keys have been met."""
        for y, total in zip(by_query(self.y, self.heads, self.queries), self._total, strict=True):
            kernels.current().normalise(y, total)
        if self._keeps_scores:
            for scored in self._scored:
                for softmax in scored.softmax:
                    _make_factors(softmax)
        else:
            self._maximum += np.log(self._total, out=self._total)
        kept = [Scored(scored.block, [each.kept for each in scored.softmax]) for scored in self._scored]
        y = self.y
        if y.dtype != self.qkv.dtype:
            y = rounded(y, out=self.buffers.take(y.shape, self.qkv.dtype))
        return y, Cache(self.qkv, y, kept)

    def _softmax(self, block: AttentionBlock, number: int) -> Softmax:
        maximum, total = (x[number][:, :, block.queries] for x in (self._maximum, self._total))
        if not self._keeps_scores:
            return Softmax(None, maximum, maximum, total)
        B, dtype, take = len(self.qkv), self.qkv.dtype, self.buffers.take
        exponentials = take((B, self.heads, block.scores(kept=True)), dtype)
        factors = take((B, self.heads, block.size[0]), compute_dtype(dtype))
        return Softmax(exponentials, factors, maximum, total)


def _make_factors(softmax: Softmax) -> None:
    """Turn maxima into factors that make exponentials probabilities."""
    factors = np.subtract(softmax.factors, softmax.maximum, out=softmax.factors)
    np.exp(factors, out=factors)
    factors /= softmax.total


class Backward:
    """The gradient of packed q, k and v, block by block; that of keys from elsewhere goes its own way."""

    def __init__(self, dy: Array, cache: Cache, heads: int, queries: int, buffers: Buffers):
        self.dy, self.cache, self.heads, self.queries = dy, cache, heads, queries
        self.dqkv = buffers.take(cache.qkv.shape, dy.dtype)

    def meet(
        self, scored: Scored, kv: Array, dkv: Array, between: Between, progress: Progress | None = None
    ) -> None:
        """Write the gradients of the block's keys and values to `dkv`, (B, keys, 2, C), add to those of q.

        The blocks come in the order of forward: the first has all queries and writes.
        """
        block, cache, rows = scored.block, self.cache, scored.block.queries
        q, dq = (by_head(packed(x, self.queries + 2), self.heads) for x in (cache.qkv, self.dqkv))
        y, dy = (by_query(x, self.heads, self.queries) for x in (cache.y, self.dy))
        for number in range(self.queries):
            met = AttentionGradients(
                block=block,
                inputs=(q[number][:, :, rows], *by_head(kv[:, block.keys], self.heads)),
                y=y[number][:, :, rows],
                dy=dy[number][:, :, rows],
                grads=(dq[number][:, :, rows], *by_head(dkv[:, block.keys], self.heads)),
                softmax=scored.softmax[number],
                dropped=between.of(block, number, q[number]),
                first=scored is cache.scored[0],
                first_of_keys=number == 0,
                progress=progress,
            )
            kernels.current().attend_backward(met)


def packed(x: Array, kinds: int) -> Array:
    """View (B, T, kinds C) as (B, T, kinds, C)."""
    return x.reshape(*x.shape[:2], kinds, x.shape[2] // kinds)


def keys_and_values(qkv: Array, queries: int) -> Array:
    """View the keys and values of packed heads, (B, T, 2, ·)."""
    return packed(qkv, queries + 2)[:, :, -2:]


def by_query(y: Array, heads: int, queries: int) -> Array:
    """View (B, T, C) as (queries, B, heads, T, width of a head)."""
    B, T, C = y.shape
    return y.reshape(B, T, heads, queries, C // heads // queries).transpose(3, 0, 2, 1, 4)


def by_head(x: Array, heads: int) -> Array:
    """View (B, T, kinds, C) as (kinds, B, heads, T, width of a head)."""
    B, T, kinds, C = x.shape
    return x.reshape(B, T, kinds, heads, C // heads).transpose(2, 0, 3, 1, 4)
