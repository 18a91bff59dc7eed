"""Context parallelism in which keys and values travel round a ring, behind the scores of those at hand.

Liu, Zaharia and Abbeel, Ring Attention with Blockwise Transformers, 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pscale.mesh.axis import Array, Axis
from pscale.nn.attention import Backward, Cache, Forward, packed
from pscale.nn.buffers import Buffers
from pscale.nn.kernels.piece import Piece, Progress
from pscale.nn.param import Param
from pscale.parallel.layout import Layout


class RingAttention:
    """Causal attention of this rank's tokens to those of all: packed (B, T/P, 3C) to (B, T/P, C).

    Keys and values make P - 1 hops in each direction of the pass; in backward their gradients go with them
    and, by one hop more, home. Scores may be kept, another rank's keys never are.
    """

    params: Sequence[Param] = ()

    def __init__(self, heads: int, *, keeps_scores: bool, axis: Axis, layout: Layout, buffers: Buffers):
        self.heads, self.keeps_scores, self.axis, self.buffers = heads, keeps_scores, axis, buffers
        self._pieces = layout.pieces(axis.rank)

    def forward(self, qkv: Array) -> tuple[Array, Cache]:
        """Attend to the present and the past, wherever they are."""
        attention = Forward(qkv, self.heads, self.buffers, keeps_scores=self.keeps_scores)
        for piece, (kv, progress) in self._met(qkv):
            if piece is not None:
                attention.meet(piece, kv, progress)
        return attention.finish()

    def backward(self, dy: Array, cache: Cache) -> Array:
        """Return the gradient of the packed q, k and v of this rank's tokens."""
        gradients, scored = Backward(dy, cache, self.heads, self.buffers), iter(cache.scored)
        travelling: Hop | None = None  # with the gradients of the keys that come next
        for piece, (kv, progress) in self._met(cache.qkv):
            mine = None
            if piece is not None:
                mine = self.buffers.take_exchange(kv.shape, kv.dtype)
                gradients.meet(next(scored), kv, mine, _both(progress, travelling))
            travelling = Hop(self.axis, self._sum(travelling, mine, piece), self.buffers)
        assert travelling is not None
        home = travelling.wait()
        self.axis.copy(home, packed(gradients.dqkv, 3)[:, :, 1:])
        self.buffers.give(home)
        return gradients.finish()

    def _met(self, qkv: Array) -> Iterator[tuple[Piece | None, tuple[Array, Progress]]]:
        return zip(self._pieces, self._round(qkv), strict=True)

    def _round(self, qkv: Array) -> Iterator[tuple[Array, Progress]]:
        """Yield the keys and values of every rank, own first, while the next are on their way."""
        kv = own_keys_and_values(qkv, self.axis, self.buffers)
        for _ in range(self.axis.size - 1):
            hop = Hop(self.axis, kv, self.buffers)
            yield kv, hop.poll
            kv = hop.wait()
        yield kv, _nothing
        self.buffers.give(kv)

    def _sum(self, travelling: Hop | None, mine: Array | None, piece: Piece | None) -> Array:
        """Return the gradients that arrive with this rank's share, if it has one, added."""
        if travelling is None:
            assert mine is not None, "the first keys are the rank's own"
            return mine
        total = travelling.wait()
        if mine is not None and piece is not None:
            total[:, piece.keys] += mine[:, piece.keys]
            self.buffers.give(mine)
        return total


class Hop:
    """An array, taken over, on its way to the next rank of a ring, while that of the rank before arrives."""

    def __init__(self, axis: Axis, outgoing: Array, buffers: Buffers):
        self._outgoing, self._buffers = outgoing, buffers
        self._incoming = buffers.take_exchange(outgoing.shape, outgoing.dtype)
        self._pending = (
            axis.start_receive(self._incoming, (axis.rank - 1) % axis.size),
            axis.start_send(outgoing, (axis.rank + 1) % axis.size),
        )

    def poll(self) -> None:
        """Let both make progress."""
        for pending in self._pending:
            pending.poll()

    def wait(self) -> Array:
        """Return what has arrived."""
        for pending in self._pending:
            pending.wait()
        self._buffers.give(self._outgoing)
        return self._incoming


def own_keys_and_values(qkv: Array, axis: Axis, buffers: Buffers) -> Array:
    """Return keys and values of packed (B, T/P, 3C) in one piece, (B, T/P, 2, C), fit to be sent."""
    kv = packed(qkv, 3)[:, :, 1:]
    mine = buffers.take_exchange(kv.shape, kv.dtype)
    axis.copy(kv, mine)
    return mine


def _nothing() -> None:
    pass


def _both(progress: Progress, travelling: Hop | None) -> Progress:
    def poll() -> None:
        progress()
        if travelling is not None:
            travelling.poll()

    return poll
