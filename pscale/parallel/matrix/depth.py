"""A block of weights of which every rank of an axis keeps some rows: gathered for use, as ZeRO-3 does."""

from __future__ import annotations

from pscale.mesh.axis import Axis
from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.param import Param


class Depth:
    """The ranks that share blocks of weights."""

    def __init__(self, axis: Axis, *, buffers: Buffers):
        self.axis, self.buffers = axis, buffers

    def whole(self, weight: Param) -> Array:
        """Return the whole block, to be handed to `free`."""
        if self.axis.size == 1:
            return weight.data
        rows, columns = weight.shape
        whole = self.buffers.take_exchange((rows * self.axis.size, columns), weight.data.dtype)
        self.axis.all_gather(weight.data, whole)
        return whole

    def free(self, whole: Array) -> None:
        """Be told that the block is not needed for now."""
        if self.axis.size > 1:
            self.buffers.give(whole)

    def add_product(self, weight: Param, a: Array, b: Array) -> None:
        """Add this rank's rows of the sum of `a @ b` over the axis to the gradient."""
        if self.axis.size == 1:
            weight.add_product(a, b, self.buffers)
            return
        product = self.buffers.take_exchange((len(a), b.shape[1]), b.dtype)
        kernels.current().multiply(a, b, product)
        mine = self.buffers.take_exchange(weight.shape, b.dtype)
        self.axis.reduce_scatter(product, mine)
        weight.add_grad(mine)
        for array in (product, mine):
            self.buffers.give(array)
