"""SUMMA (van de Geijn and Watts, 1997): panels of both factors are broadcast in turn along rows and columns.

Of the transposed products one factor is broadcast, and the sums go to the ranks that hold the result, as in
Optimus (Xu et al., 2021): all three cost the same.
"""

from __future__ import annotations

import math

from pscale.mesh.axis import Axis
from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.kernels.tiles import rows_of
from pscale.nn.param import Param


class Summa:
    """Products on a grid of two axes: `across` are the ranks of a row of it, `down` those of a column.

    The contraction is cut into panels of which every rank of a row holds as many, and every rank of a column.
    """

    def __init__(self, across: Axis, down: Axis, *, buffers: Buffers):
        self.across, self.down, self.buffers = across, down, buffers
        self.panels = math.lcm(across.size, down.size)

    def multiply(self, a: Array, weight: Param) -> Array:
        """Return this rank's block of `a @ weight`, a sum of products of panels."""
        c = self.buffers.take((*a.shape[:-1], weight.shape[1]), a.dtype)
        for number in range(self.panels):
            first, second = self._of_a(number), self._of_b(number)
            multiply = kernels.current().multiply_add if number else kernels.current().multiply
            multiply(first.broadcast(rows_of(a)), second.broadcast(weight.data), rows_of(c))
        return c

    def input_gradient(self, dc: Array, weight: Param) -> Array:
        """Return this rank's block of `dc @ weight.T`: each panel of it is summed where it lies."""
        columns = weight.shape[0] * self.down.size // self.across.size
        da = self.buffers.take((*dc.shape[:-1], columns), dc.dtype)
        for number in range(self.panels):
            panel = self._of_b(number).broadcast(weight.data)
            self._of_a(number).add_up(rows_of(dc), panel.T, rows_of(da))
        return da

    def add_gradient(self, dc: Array, a: Array, weight: Param) -> None:
        """Add `a.T @ dc` to the gradient of the weight, panel by panel."""
        db = self.buffers.take(weight.shape, dc.dtype)
        for number in range(self.panels):
            panel = self._of_a(number).broadcast(rows_of(a))
            self._of_b(number).add_up(panel.T, rows_of(dc), db)
        weight.add_grad(db)

    def _of_a(self, number: int) -> Panel:
        """Return a panel of A, which is of columns."""
        return Panel(number, self.panels, self.across, self.buffers, dim=1)

    def _of_b(self, number: int) -> Panel:
        return Panel(number, self.panels, self.down, self.buffers, dim=0)


class Panel:
    """Some columns (`dim` 1) or rows of a matrix that one rank of an axis has in its block."""

    def __init__(self, number: int, panels: int, axis: Axis, buffers: Buffers, *, dim: int):
        self.axis, self.buffers, self.dim = axis, buffers, dim
        self.each = panels // axis.size  # panels of a block
        self.root, self.place = divmod(number, self.each)
        self.mine = axis.rank == self.root
        self.in_place = self.mine and (dim == 0 or self.each == 1)  # lies together in memory

    def broadcast(self, block: Array) -> Array:
        """Return the panel, from the block of the rank that has it."""
        part = self._within(block)
        panel = part if self.in_place else self.buffers.take_exchange(part.shape, part.dtype)
        if self.mine and not self.in_place:
            self.axis.copy(part, panel)
        self.axis.broadcast(panel, self.root)
        return panel

    def add_up(self, a: Array, b: Array, block: Array) -> None:
        """Sum `a @ b` over the axis, into the block of the rank that has the panel."""
        part = self._within(block)
        product = part if self.in_place else self.buffers.take_exchange(part.shape, part.dtype)
        kernels.current().multiply(a, b, product)
        self.axis.reduce(product, self.root)
        if self.mine and not self.in_place:
            self.axis.copy(product, part)

    def _within(self, block: Array) -> Array:
        size = block.shape[self.dim] // self.each
        part = slice(self.place * size, (self.place + 1) * size)
        return block[part] if self.dim == 0 else block[:, part]
