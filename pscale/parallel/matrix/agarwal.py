"""The three-dimensional algorithm of Agarwal et al. (1995): nothing is held twice.

A, B and C each lie once on the grid. Blocks of A and B are gathered from ranks that share them, multiplied,
and the sum over the ranks of the contraction is scattered: to AxoNN's scheme it is what sequence parallelism
is to tensor parallelism. Rows of A are cut over the output, rows of C over the contraction.
"""

from __future__ import annotations

from pscale.mesh.axis import Axis
from pscale.nn.buffers import Array, Buffers
from pscale.nn.common_layers import product
from pscale.nn.kernels.tiles import rows_of
from pscale.nn.param import Param
from pscale.parallel.matrix.axonn import Depth
from pscale.parallel.tensor import gathered, scattered


class Agarwal:
    """Products on a grid of contraction x output x depth."""

    def __init__(self, contraction: Axis, output: Axis, depth: Depth, *, buffers: Buffers):
        self.contraction, self.output, self.depth, self.buffers = contraction, output, depth, buffers

    def multiply(self, a: Array, weight: Param) -> Array:
        """Return this rank's rows of a block of `a @ weight`."""
        whole = gathered(a, self.output, buffers=self.buffers)
        partial = product(whole, self.depth.whole(weight), self.buffers)
        return scattered(partial, self.contraction, buffers=self.buffers)

    def differentiate(self, dc: Array, a: Array, weight: Param) -> Array:
        """Return the gradient of `a`; both products share the gathered `dc`."""
        whole = gathered(dc, self.contraction, buffers=self.buffers)
        partial = product(whole, self.depth.whole(weight).T, self.buffers)
        da = scattered(partial, self.output, buffers=self.buffers)
        del partial  # its memory is that of the gathered `a`
        whole_a = gathered(a, self.output, buffers=self.buffers)
        self.depth.add_product(weight, rows_of(whole_a).T, rows_of(whole))
        return da
