"""SUMMA (van de Geijn and Watts, 1997) on a square: a row and a column of blocks are broadcast in turn.

Of the transposed products one factor is broadcast, and the sums go to the ranks that hold the result, as in
Optimus (Xu et al., 2021): all three cost the same.
"""

from __future__ import annotations

import numpy as np

from pscale.mesh.axis import Axis
from pscale.nn.buffers import Array, Buffers
from pscale.nn.kernels.tile import rows_of
from pscale.nn.param import Param
from pscale.parallel.matrix.multiplication import Exchanged, Multiplication


class Summa:
    """Products on a square: `across` are the ranks of a row of it, `down` those of a column."""

    def __init__(self, across: Axis, down: Axis, *, buffers: Buffers):
        self.across, self.down, self.buffers = across, down, buffers

    def multiply(self, a: Array, weight: Param) -> Array:
        """Return this rank's block of `a @ weight`, a sum of outer products of blocks."""
        c = self.buffers.take((*a.shape[:-1], weight.shape[1]), a.dtype)
        for turn in range(self.across.size):
            block = self._broadcast(rows_of(a), self.across, turn)
            b = self._broadcast(weight.data, self.down, turn)
            if turn == 0:
                np.matmul(block, b, out=rows_of(c))
            else:
                product = self.buffers.take(rows_of(c).shape, c.dtype)
                rows_of(c)[...] += np.matmul(block, b, out=product)
                self.buffers.give(product)
            self._give(block, self.across, turn)
            self._give(b, self.down, turn)
        return c

    def differentiate(self, dc: Array, a: Array, weight: Param) -> Array:
        """Return the gradient of `a`: the blocks of each column are summed where that column is."""
        da = self.buffers.take(a.shape, a.dtype)
        for turn in range(self.down.size):
            b = self._broadcast(weight.data, self.down, turn)
            self._summed(rows_of(dc), b.T, self.across, turn, rows_of(da))
            self._give(b, self.down, turn)
        db = self.buffers.take(weight.shape, a.dtype)
        for turn in range(self.across.size):
            block = self._broadcast(rows_of(a), self.across, turn)
            self._summed(block.T, rows_of(dc), self.down, turn, db)
            self._give(block, self.across, turn)
        weight.add_grad(db)
        for array in (db, dc, a):
            self.buffers.give(array)
        return da

    def _broadcast(self, block: Array, axis: Axis, turn: int) -> Array:
        """Return the block of rank `turn` of the axis."""
        if axis.rank != turn:
            block = self.buffers.take_exchange(block.shape, block.dtype)
        axis.broadcast(block, turn)
        return block

    def _give(self, block: Array, axis: Axis, turn: int) -> None:
        if axis.rank != turn:
            self.buffers.give(block)

    def _summed(self, a: Array, b: Array, axis: Axis, turn: int, out: Array) -> None:
        """Sum `a @ b` over the axis, into `out` of rank `turn`."""
        product = out if axis.rank == turn else self.buffers.take_exchange(out.shape, out.dtype)
        np.matmul(a, b, out=product)
        axis.reduce(product, turn)
        if axis.rank != turn:
            self.buffers.give(product)


def forward(one: Multiplication) -> list[Exchanged]:
    """Return what a rank hands to the calls of a product, in elements: to a broadcast, its root alone."""
    turns = one.size(one.output)
    return [
        exchanged
        for dim, size in ((one.output, one.rows * one.inputs), (one.contraction, one.weights))
        for exchanged in (Exchanged(dim, "broadcast", size), Exchanged(dim, "broadcast", 0, turns - 1))
    ]


def backward(one: Multiplication) -> list[Exchanged]:
    """Return the same for its gradients."""
    turns = one.size(one.output)
    sums = [
        Exchanged(one.output, "reduce", one.rows * one.inputs, turns),
        Exchanged(one.contraction, "reduce", one.weights, turns),
    ]
    return [*forward(one), *sums]
