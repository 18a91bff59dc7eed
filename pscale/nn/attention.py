"""Causal multi-head attention, of all tokens at once or of keys that come in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers, rounded
from pscale.nn.dtypes import compute_dtype
from pscale.nn.kernels.attention_block import (
    AttentionBlock,
    AttentionGradients,
    AttentionOperands,
    Progress,
    Softmax,
    whole,
)
from pscale.nn.layer import Stateless
from pscale.nn.param import Param


@dataclass(frozen=True)
class Scored:
    """What forward leaves of a block."""

    block: AttentionBlock
    softmax: Softmax


@dataclass(frozen=True)
class Cache:
    """What backward needs: the blocks in the order in which they were met, and what is kept of them."""

    qkv: Array
    y: Array
    scored: Sequence[Scored]


class Attention:
    """softmax(q k' / sqrt(width of a head)) v on packed (B, T, 3, heads, width): (B, T, 3C) to (B, T, C).

    Kept for backward: the output, and exponentials with the factors that make them probabilities; or, if
    they are to be computed again, a number for each query and head.
    """

    params: Sequence[Param] = ()

    def __init__(self, heads: int, *, keeps_scores: bool, buffers: Buffers):
        self.heads, self.keeps_scores, self.buffers = heads, keeps_scores, buffers

    def forward(self, qkv: Array) -> tuple[Array, Cache]:
        """Attend to the present and the past."""
        attention = Forward(qkv, self.heads, self.buffers, keeps_scores=self.keeps_scores)
        attention.meet(whole(qkv.shape[1]), packed(qkv, 3)[:, :, 1:])
        return attention.finish()

    def backward(self, dy: Array, cache: Cache) -> Array:
        """Return the gradient of the packed q, k and v."""
        gradients = Backward(dy, cache, self.heads, self.buffers)
        kv, dkv = (packed(x, 3)[:, :, 1:] for x in (cache.qkv, gradients.dqkv))
        gradients.meet(cache.scored[0], kv, dkv)
        return gradients.dqkv


BASE = 10_000.0  # of the wavelengths by which RoPE turns pairs
_POSITIONS = 1024  # whose angles are computed at once


def turns(runs: Sequence[slice], half: int, dtype: DTypeLike, buffers: Buffers) -> tuple[Array, Array]:
    """Return cosines and sines of position / BASE^(i / half), each (positions of all runs, half)."""
    size = sum(run.stop - run.start for run in runs), half
    cosine, sine = (buffers.take(size, compute_dtype(np.dtype(dtype))) for _ in range(2))
    positions = np.concatenate([np.arange(run.start, run.stop) for run in runs])
    for start in range(0, len(positions), _POSITIONS):
        part = slice(start, start + _POSITIONS)
        angles = np.outer(positions[part], BASE ** -(np.arange(half) / half))
        cosine[part], sine[part] = np.cos(angles), np.sin(angles)
    return cosine, sine


class Rotary(Stateless):
    """Queries and keys turned by the angles of their positions (RoPE: Su et al., 2021), in place.

    They are the first `heads` heads of packed (B, T, C); `turns` has a row of cosines and sines for each T.
    """

    params: Sequence[Param] = ()

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
    """Attention of the queries in packed `qkv` (B, T, 3C) to the keys met so far."""

    def __init__(self, qkv: Array, heads: int, buffers: Buffers, *, keeps_scores: bool):
        B, T, width = qkv.shape
        self.qkv, self.heads, self.buffers, self._keeps_scores = qkv, heads, buffers, keeps_scores
        self.y = buffers.take((B, T, width // 3), compute_dtype(qkv.dtype))
        self._maximum = buffers.take((B, heads, T), compute_dtype(qkv.dtype))
        self._total = buffers.take((B, heads, T), compute_dtype(qkv.dtype))
        self._maximum.fill(-np.inf)
        self._total.fill(0)
        self._scored: list[Scored] = []

    def meet(self, block: AttentionBlock, kv: Array, progress: Progress | None = None) -> None:
        """Attend to keys and values, (B, keys, 2, C); the first block has all queries."""
        q, y = by_head(packed(self.qkv, 3), self.heads)[0], by_head(packed(self.y, 1), self.heads)[0]
        softmax, queries = self._softmax(block), block.queries
        met = AttentionOperands(
            block=block,
            inputs=(q[:, :, queries], *by_head(kv[:, block.keys], self.heads)),
            y=y[:, :, queries],
            softmax=softmax,
            first=not self._scored,
            progress=progress,
        )
        kernels.current().attend(met)
        self._scored.append(Scored(block, softmax))

    def finish(self) -> tuple[Array, Cache]:
        """Return the output and what backward needs, when the last keys have been met."""
        kernels.current().normalise(by_head(packed(self.y, 1), self.heads)[0], self._total)
        if self._keeps_scores:
            for scored in self._scored:
                _make_factors(scored.softmax)
        else:
            self._maximum += np.log(self._total, out=self._total)
        kept = [Scored(scored.block, scored.softmax.kept) for scored in self._scored]
        y = self.y
        if y.dtype != self.qkv.dtype:
            y = rounded(y, out=self.buffers.take(y.shape, self.qkv.dtype))
        return y, Cache(self.qkv, y, kept)

    def _softmax(self, block: AttentionBlock) -> Softmax:
        maximum, total = (x[:, :, block.queries] for x in (self._maximum, self._total))
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

    def __init__(self, dy: Array, cache: Cache, heads: int, buffers: Buffers):
        self.dy, self.cache, self.heads, self.buffers = dy, cache, heads, buffers
        self.dqkv = buffers.take(cache.qkv.shape, dy.dtype)

    def meet(self, scored: Scored, kv: Array, dkv: Array, progress: Progress | None = None) -> None:
        """Write the gradients of the block's keys and values to `dkv`, (B, keys, 2, C), add to those of q.

        The blocks come in the order of forward: the first has all queries and writes.
        """
        block, cache = scored.block, self.cache
        q, dq = (by_head(packed(x, 3), self.heads)[0][:, :, block.queries] for x in (cache.qkv, self.dqkv))
        y, dy = (by_head(packed(x, 1), self.heads)[0][:, :, block.queries] for x in (cache.y, self.dy))
        met = AttentionGradients(
            block=block,
            inputs=(q, *by_head(kv[:, block.keys], self.heads)),
            y=y,
            dy=dy,
            grads=(dq, *by_head(dkv[:, block.keys], self.heads)),
            softmax=scored.softmax,
            first=scored is cache.scored[0],
            progress=progress,
        )
        kernels.current().attend_backward(met)


def packed(x: Array, kinds: int) -> Array:
    """View (B, T, kinds C) as (B, T, kinds, C)."""
    return x.reshape(*x.shape[:2], kinds, x.shape[2] // kinds)


def by_head(x: Array, heads: int) -> Array:
    """View (B, T, kinds, C) as (kinds, B, heads, T, width of a head)."""
    B, T, kinds, C = x.shape
    return x.reshape(B, T, kinds, heads, C // heads).transpose(2, 0, 3, 1, 4)
