"""Context parallelism in which every rank gathers all keys and values."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.config import Plan
from pscale.mesh.axis import Array
from pscale.nn.attention import Backward, Cache, packed
from pscale.nn.kernels.attention_block import Progress
from pscale.parallel.context.form import Form
from pscale.parallel.context.ring import KeyExchange, own_keys_and_values
from pscale.parallel.replicas import Call


class GatheredAttention(KeyExchange):
    """Keys and values of all ranks are gathered.

    The gathering hides behind the rank's own scores. Backward gathers again, so that nothing of the size of
    the whole sequence is kept, and reduce-scatters the gradients.
    """

    def backward(self, dy: Array, cache: Cache) -> Array:
        """Return the gradient of the packed q, k and v of this rank's tokens."""
        gradients, scored = Backward(dy, cache, self.heads, self.buffers), iter(cache.scored)
        B, T, width = cache.qkv.shape
        whole = self.buffers.take_exchange((self.axis.size, B, T, 2, width // 3), dy.dtype)
        for step, (piece, (kv, progress)) in enumerate(self._met(cache.qkv)):
            dkv = whole[(self.axis.rank - step) % self.axis.size]
            if piece is None:
                dkv.fill(0)
                continue
            dkv[:, piece.keys.stop :] = 0
            gradients.meet(next(scored), kv, dkv, progress)
        mine = self.buffers.take_exchange(whole.shape[1:], dy.dtype)
        self.axis.reduce_scatter(whole, mine[None])
        self.axis.copy(mine, packed(gradients.dqkv, 3)[:, :, 1:])
        return gradients.dqkv

    def _round(self, qkv: Array) -> Iterator[tuple[Array, Progress]]:
        axis = self.axis
        mine = own_keys_and_values(qkv, axis, self.buffers)
        every = self.buffers.take_exchange((axis.size, *mine.shape), mine.dtype)
        gathering = axis.start_all_gather(mine[None], every)
        yield mine, gathering.poll
        gathering.wait()
        for step in range(1, axis.size):
            yield every[(axis.rank - step) % axis.size], gathering.poll


def _gathering(_: Plan, one: int) -> list[Call]:
    return [Call(axis="cp", verb="all_gather", sent_bytes=2 * one)]


FORM = Form(
    attention=lambda share: share.kept(GatheredAttention(share)),
    forward=_gathering,
    backward=lambda plan, one: [
        *_gathering(plan, one),
        Call(axis="cp", verb="reduce_scatter", sent_bytes=2 * one * plan.cp),
    ],
    recomputed=_gathering,
)
