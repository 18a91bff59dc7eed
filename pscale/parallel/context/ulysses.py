"""Context parallelism in which ranks exchange tokens for heads around an attention that knows no ranks.

Jacobs et al., DeepSpeed Ulysses, 2023. q, k and v go in one all-to-all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pscale.mesh.axis import Array, Axis
from pscale.nn.attention import packed
from pscale.nn.buffers import Buffers
from pscale.nn.layer import Chain, Layer
from pscale.nn.param import Param
from pscale.parallel.context.form import AttentionShare, Form, distributes_heads
from pscale.parallel.context.layout import Layout


class UlyssesAttention:
    """Causal attention of this rank's tokens to those of all: packed q, k, v (B, T/P, ·) to (B, T/P, C).

    Each head of keys has `queries` of queries. `inner` is the attention of all tokens, in natural order, with
    1/P of the heads.
    """

    params: Sequence[Param] = ()

    def __init__(self, inner: Layer, queries: int, *, axis: Axis, layout: Layout, buffers: Buffers):
        self.inner, self.axis, self.layout, self.buffers = Chain(inner), axis, layout, buffers
        self._kinds = queries + 2  # of heads that lie side by side, of keys and of values one

    def forward(self, qkv: Array) -> tuple[Array, Any]:
        """Attend with this rank's heads to the whole past."""
        qkv = self._to_heads(qkv, self._kinds)
        y, cache = self.inner.forward(qkv)
        return self._to_tokens(y, 1), cache

    def backward(self, dy: Array, cache: Any) -> Array:
        """Return the gradient of the packed q, k and v of this rank's tokens."""
        dy = self._to_heads(dy, 1)
        return self._to_tokens(self.inner.backward(dy, cache), self._kinds)

    def _to_heads(self, x: Array, kinds: int) -> Array:
        """Turn (B, T/P, kinds C) into (B, T, kinds C/P) in natural order; `x` is overwritten."""
        mine = self._by_rank(x, kinds)
        parts = self.buffers.take_exchange(mine.shape, x.dtype)
        self.axis.copy(mine, parts)
        received = self.buffers.begin_exchange(x).reshape(parts.shape)
        self.axis.all_to_all(parts, received)
        P, B, T, _, width = parts.shape
        whole = self.buffers.end_exchange(parts).reshape(B, P * T, kinds * width)
        for natural, of_ranks in self.layout.matching(packed(whole, kinds), received):
            self.axis.copy(of_ranks, natural)
        self.buffers.end_exchange(x)
        return whole

    def _to_tokens(self, x: Array, kinds: int) -> Array:
        """Turn (B, T, kinds C/P) in natural order into (B, T/P, kinds C)."""
        B, T, width = x.shape
        parts = self._by_part(x, kinds)
        del x
        received = self.buffers.take_exchange(parts.shape, parts.dtype)
        self.axis.all_to_all(parts, received)
        mine = self.buffers.end_exchange(parts).reshape(B, T // self.axis.size, width * self.axis.size)
        self.axis.copy(received, self._by_rank(mine, kinds))
        return mine

    def _by_part(self, x: Array, kinds: int) -> Array:
        """Return packed (B, T, kinds C/P) in natural order as what each rank is to have of it."""
        (B, T, width), P = x.shape, self.axis.size
        parts = self.buffers.take_exchange((P, B, T // P, kinds, width // kinds), x.dtype)
        for natural, of_ranks in self.layout.matching(packed(x, kinds), parts):
            self.axis.copy(natural, of_ranks)
        return parts

    def _by_rank(self, x: Array, kinds: int) -> Array:
        """View (B, T/P, kinds C) as (P, B, T/P, kinds, C/P), by the rank that has the heads."""
        B, T, width = x.shape
        P = self.axis.size
        return x.reshape(B, T, kinds, P, width // kinds // P).transpose(3, 0, 1, 2, 4)


def _attention(share: AttentionShare) -> Layer:
    inner = share.of_heads(share.axis.rank, share.axis.size).of_whole_sequences()
    return UlyssesAttention(inner, share.queries, axis=share.axis, layout=share.layout, buffers=share.buffers)


FORM = Form(
    attention=_attention,
    heads_over="cp",
    constraints=distributes_heads("tp", "cp"),
)
