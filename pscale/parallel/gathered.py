"""Context parallelism in which every rank gathers all keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pscale.mesh.axis import Array, Axis
from pscale.nn.attention import Backward, Cache, Forward, packed
from pscale.nn.buffers import Buffers
from pscale.nn.kernels.piece import Piece, Progress
from pscale.nn.param import Param
from pscale.parallel.layout import Layout
from pscale.parallel.ring import own_keys_and_values


class GatheredAttention:
    """Causal attention of this rank's tokens to those of all: packed (B, T/P, 3C) to (B, T/P, C).

    The gathering hides behind the rank's own scores. Backward gathers again, so that nothing of the size of
    the whole sequence is kept, and reduce-scatters the gradients.
    """

    params: Sequence[Param] = ()

    def __init__(self, heads: int, *, keeps_scores: bool, axis: Axis, layout: Layout, buffers: Buffers):
        self.heads, self.keeps_scores, self.axis, self.buffers = heads, keeps_scores, axis, buffers
        self._pieces = layout.pieces(axis.rank)

    def forward(self, qkv: Array) -> tuple[Array, Cache]:
        """Attend to the present and the past, wherever they are."""
        attention = Forward(qkv, self.heads, self.buffers, keeps_scores=self.keeps_scores)
        for piece, _, kv, progress in self._met(qkv):
            if piece is not None:
                attention.meet(piece, kv, progress)
        return attention.finish()

    def backward(self, dy: Array, cache: Cache) -> Array:
        """Return the gradient of the packed q, k and v of this rank's tokens."""
        gradients, scored = Backward(dy, cache, self.heads, self.buffers), iter(cache.scored)
        B, T, width = cache.qkv.shape
        whole = self.buffers.take_exchange((self.axis.size, B, T, 2, width // 3), dy.dtype)
        for piece, source, kv, progress in self._met(cache.qkv):
            dkv = whole[source]
            if piece is None:
                dkv.fill(0)
                continue
            dkv[:, piece.keys.stop :] = 0
            gradients.meet(next(scored), kv, dkv, progress)
        mine = self.buffers.take_exchange(whole.shape[1:], dy.dtype)
        self.axis.reduce_scatter(whole, mine[None])
        self.axis.copy(mine, packed(gradients.dqkv, 3)[:, :, 1:])
        self.buffers.give(whole)
        self.buffers.give(mine)
        return gradients.finish()

    def _met(self, qkv: Array) -> Iterator[tuple[Piece | None, int, Array, Progress]]:
        """Yield the piece with each rank, the rank, its keys and values: own first, while all arrive."""
        axis = self.axis
        mine = own_keys_and_values(qkv, axis, self.buffers)
        every = self.buffers.take_exchange((axis.size, *mine.shape), mine.dtype)
        gathering = axis.start_all_gather(mine[None], every)
        own, *others = self._pieces
        yield own, axis.rank, mine, gathering.poll
        gathering.wait()
        for step, piece in enumerate(others, 1):
            source = (axis.rank - step) % axis.size
            yield piece, source, every[source], gathering.poll
        self.buffers.give(mine)
        self.buffers.give(every)
