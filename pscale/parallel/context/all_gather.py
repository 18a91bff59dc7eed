"""Context parallelism in which every rank gathers all keys and values."""

from __future__ import annotations

from collections.abc import Iterator

from pscale.mesh.axis import Array
from pscale.nn.attention import Backward, Cache, keys_and_values
from pscale.nn.kernels.attention_block import Progress
from pscale.parallel.context.form import Form
from pscale.parallel.context.ring import KeyExchange


class GatheredAttention(KeyExchange):
    """Keys and values of all ranks are gathered.

    The gathering hides behind the rank's own scores. Backward gathers again, so that nothing of the size of
    the whole sequence is kept, and reduce-scatters the gradients.
    """

    def backward(self, dy: Array, cache: Cache) -> Array:
        """Return the gradient of the packed q, k and v of this rank's tokens."""
        gradients, scored = Backward(dy, cache, self.heads, self.queries, self.buffers), iter(cache.scored)
        kv = keys_and_values(gradients.dqkv, self.queries)
        whole = self.buffers.take_exchange((self.axis.size, *kv.shape), dy.dtype)
        for step, (piece, between, (met, progress)) in enumerate(self._met(cache.qkv)):
            dkv = whole[(self.axis.rank - step) % self.axis.size]
            if piece is None:
                dkv.fill(0)
                continue
            dkv[:, piece.keys.stop :] = 0
            gradients.meet(next(scored), met, dkv, between, progress)
        mine = self.buffers.take_exchange(whole.shape[1:], dy.dtype)
        self.axis.reduce_scatter(whole, mine[None])
        self.axis.copy(mine, kv)
        return gradients.dqkv

    def _round(self, qkv: Array) -> Iterator[tuple[Array, Progress]]:
        axis = self.axis
        mine = self._own(qkv)
        every = self.buffers.take_exchange((axis.size, *mine.shape), mine.dtype)
        gathering = axis.start_all_gather(mine[None], every)
        yield mine, gathering.poll
        gathering.wait()
        for step in range(1, axis.size):
            yield every[(axis.rank - step) % axis.size], gathering.poll


FORM = Form(
    attention=lambda share: share.kept(GatheredAttention(share)),
)
