"""Context parallelism in which keys and values travel round a ring, behind the scores of those at hand.

Liu, Zaharia and Abbeel, Ring Attention with Blockwise Transformers, 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pscale.mesh.axis import Array, Axis, Tag
from pscale.nn.attention import Backward, Between, Cache, Forward, keys_and_values
from pscale.nn.buffers import Buffers
from pscale.nn.common_layers import positions_in
from pscale.nn.kernels.attention_block import AttentionBlock, Progress
from pscale.nn.param import Param
from pscale.parallel.context.form import AttentionShare, Form


class KeyExchange:
    """Causal attention of this rank's tokens to those of all: packed q, k, v (B, T/P, ·) to (B, T/P, C)."""

    params: Sequence[Param] = ()

    def __init__(self, share: AttentionShare):
        self.heads, self.queries, self.keeps_scores = share.heads, share.queries, share.keeps_scores
        self.axis, self.buffers = share.axis, share.buffers
        self._pieces = share.layout.pieces(self.axis.rank)
        ranks, mine = self.axis.size, self.axis.rank
        positions = [positions_in(share.layout.runs(rank)) for rank in range(ranks)]
        self._between = [
            Between(share.dropout, positions[mine], positions[(mine - step) % ranks]) for step in range(ranks)
        ]

    def forward(self, qkv: Array) -> tuple[Array, Cache]:
        """Attend to the present and the past, wherever they are."""
        attention = Forward(qkv, self.heads, self.queries, self.buffers, keeps_scores=self.keeps_scores)
        for piece, between, (kv, progress) in self._met(qkv):
            if piece is not None:
                attention.meet(piece, kv, between, progress)
        return attention.finish()

    def _met(self, qkv: Array) -> Iterator[tuple[AttentionBlock | None, Between, tuple[Array, Progress]]]:
        """Yield what of the scores is to be computed, with the keys and values for it: own first."""
        return zip(self._pieces, self._between, self._round(qkv), strict=True)

    def _round(self, qkv: Array) -> Iterator[tuple[Array, Progress]]:
        """Yield the keys and values of every rank, own first, while others are on their way."""
        raise NotImplementedError

    def _own(self, qkv: Array) -> Array:
        """Return keys and values of this rank in one piece, (B, T/P, 2, ·), fit to be sent."""
        kv = keys_and_values(qkv, self.queries)
        mine = self.buffers.take_exchange(kv.shape, kv.dtype)
        self.axis.copy(kv, mine)
        return mine


class RingAttention(KeyExchange):
    """Keys and values make P - 1 hops in each direction of the pass.

    In backward their gradients go with them and, by one hop more, home. Scores may be kept, another rank's
    keys never are.
    """

    def backward(self, dy: Array, cache: Cache) -> Array:
        """Return the gradient of the packed q, k and v of this rank's tokens."""
        gradients, scored = Backward(dy, cache, self.heads, self.queries, self.buffers), iter(cache.scored)
        in_flight: Hop | None = None  # with the gradients of the keys that come next
        for piece, between, (kv, progress) in self._met(cache.qkv):
            mine = None
            if piece is not None:
                mine = self.buffers.take_exchange(kv.shape, kv.dtype)
                gradients.meet(next(scored), kv, mine, between, _both(progress, in_flight))
            in_flight = Hop(self.axis, _sum(in_flight, mine, piece), Tag.KEY_GRADIENTS, self.buffers)
        assert in_flight is not None
        self.axis.copy(in_flight.wait(), keys_and_values(gradients.dqkv, self.queries))
        return gradients.dqkv

    def _round(self, qkv: Array) -> Iterator[tuple[Array, Progress]]:
        """Yield the keys and values of every rank, own first, while the next are on their way."""
        kv, gone = self._own(qkv), None
        for left in reversed(range(self.axis.size - 1)):
            hop = Hop(self.axis, kv, Tag.KEYS, self.buffers, out=gone)
            yield kv, hop.poll
            kv, gone = hop.wait(), kv if left else None
        yield kv, _nothing


def _sum(in_flight: Hop | None, mine: Array | None, piece: AttentionBlock | None) -> Array:
    """Return the gradients that arrive with this rank's share, if it has one, added."""
    if in_flight is None:
        assert mine is not None, "the first keys are the rank's own"
        return mine
    total = in_flight.wait()
    if mine is not None and piece is not None:
        total[:, piece.keys] += mine[:, piece.keys]
    return total


class Hop:
    """An array on its way to the next rank of a ring, while that of the rank before arrives."""

    def __init__(self, axis: Axis, outgoing: Array, tag: Tag, buffers: Buffers, out: Array | None = None):
        self._incoming = buffers.take_exchange(outgoing.shape, outgoing.dtype) if out is None else out
        self._pending = (
            axis.start_receive(self._incoming, (axis.rank - 1) % axis.size, tag),
            axis.start_send(outgoing, (axis.rank + 1) % axis.size, tag),
        )

    def poll(self) -> None:
        """Let both make progress."""
        for pending in self._pending:
            pending.poll()

    def wait(self) -> Array:
        """Return what has arrived."""
        for pending in self._pending:
            pending.wait()
        return self._incoming


def _nothing() -> None:
    pass


def _both(progress: Progress, in_flight: Hop | None) -> Progress:
    def poll() -> None:
        progress()
        if in_flight is not None:
            in_flight.poll()

    return poll


FORM = Form(
    attention=lambda share: share.kept(RingAttention(share)),
)
