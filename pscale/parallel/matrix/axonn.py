"""The four-dimensional scheme of AxoNN (Singh et al., arXiv 2305.13525); data parallelism is its fourth dim.

A block of C is a sum over the ranks of the contraction, which all of them get; ranks of the output have the
same block of A; those of the depth have other rows of A and share their weights. With an output alone it is
Megatron's tensor parallelism, with a depth alone ZeRO-3: blocks of weights are gathered for use.
"""

from __future__ import annotations

from pscale.mesh.axis import Axis
from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.common_layers import product
from pscale.nn.kernels.tiles import rows_of
from pscale.nn.param import Param


class Depth:
    """The ranks that share blocks of weights."""

    def __init__(self, axis: Axis, *, buffers: Buffers):
        self.axis, self.buffers = axis, buffers

    def whole(self, weight: Param) -> Array:
        """Return the whole block."""
        if self.axis.size == 1:
            return weight.data
        rows, columns = weight.shape
        whole = self.buffers.take_exchange((rows * self.axis.size, columns), weight.data.dtype)
        self.axis.all_gather(weight.data, whole)
        return whole

    def add_product(self, weight: Param, a: Array, b: Array) -> None:
        """Add this rank's rows of the sum of `a @ b` over the axis to the gradient."""
        if self.axis.size == 1:
            weight.add_product(a, b)
            return
        whole = self.buffers.take_exchange((len(a), b.shape[1]), b.dtype)
        kernels.current().multiply(a, b, whole)
        mine = self.buffers.take_exchange(weight.shape, b.dtype)
        self.axis.reduce_scatter(whole, mine)
        weight.add_grad(mine)


class TransposedTable(Depth):
    """Ranks that each have the whole block, of which the transpose is multiplied with."""

    def whole(self, weight: Param) -> Array:
        """Return the transpose."""
        return weight.data.T

    def add_product(self, weight: Param, a: Array, b: Array) -> None:
        """Add the transpose of `a @ b` to the gradient."""
        weight.add_product(b.T, a.T)


class Axonn:
    """Products on a grid of contraction x output x depth."""

    def __init__(self, contraction: Axis, output: Axis, depth: Depth, *, buffers: Buffers):
        self.contraction, self.output, self.depth, self.buffers = contraction, output, depth, buffers

    def multiply(self, a: Array, weight: Param) -> Array:
        """Return this rank's block of `a @ weight`."""
        c = product(a, self.depth.whole(weight), self.buffers)
        self.contraction.all_reduce(c)
        return c

    def differentiate(self, dc: Array, a: Array, weight: Param) -> Array:
        """Return the gradient of `a`, whose sum is under way while that of the weight is computed."""
        da = product(dc, self.depth.whole(weight).T, self.buffers)
        pending = self.output.start_all_reduce(da)
        self.depth.add_product(weight, rows_of(a).T, rows_of(dc))
        pending.wait()
        return da
