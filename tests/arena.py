"""Parameters with memory of their own, as units of a trainer have it."""

from collections.abc import Sequence

from numpy.typing import DTypeLike

from pscale.nn.buffers import zeros
from pscale.nn.param import Param, Share, fill, views


class Arena:
    """All parameters of a stage in one flat array and all gradients in another, in forward order."""

    def __init__(self, params: Sequence[Param], dtype: DTypeLike, gradients: DTypeLike | None = None):
        self.params = tuple(params)
        size = sum(param.size for param in self.params)
        [self.data], [self.grad] = zeros([size], dtype), zeros([size], gradients or dtype)
        for param, data in views(self.params, self.data):
            param.data = data
        for param, grad in views(self.params, self.grad):
            param.grad = grad

    def fill(self, seed: int, share: Share | None = None) -> None:
        """Give every parameter its initial value."""
        fill(self.params, seed, share)

    def clear_grads(self) -> None:
        """Begin a step: the first contribution to each gradient replaces what is there.

        No memory is touched. Every layer contributes to all of its gradients in every backward, so
        none is left stale; that is cheaper than zeroing all and adding.
        """
        for param in self.params:
            param.stale = True
