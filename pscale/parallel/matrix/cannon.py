"""Cannon's algorithm (1969) on a square: blocks travel round rows and columns, to neighbours alone.

Of the transposed products one factor travels as in the product itself, and sums of the result travel in the
place of the other: each visits the ranks that have a share of it, then goes home.
"""

from __future__ import annotations

from collections.abc import Callable

from pscale.mesh.axis import Axis, Pending, Tag
from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.common_layers import product
from pscale.nn.kernels.tiles import rows_of
from pscale.nn.param import Param


class ShiftedBlock:
    """A block on its way round an axis, `block` being what is here now."""

    def __init__(self, block: Array, axis: Axis, buffers: Buffers):
        self.block, self._axis, self._buffers = block, axis, buffers
        self._arriving: Array | None = None
        self._pending: list[Pending] = []

    def start(self, ranks: int = 1) -> None:
        """Begin to move by so many ranks down the axis."""
        axis, distance = self._axis, ranks % self._axis.size
        if distance:
            self._arriving = self._buffers.take_exchange(self.block.shape, self.block.dtype)
            source, to = (axis.rank + distance) % axis.size, (axis.rank - distance) % axis.size
            self._pending = [
                axis.start_receive(self._arriving, source, Tag.BLOCK),
                axis.start_send(self.block, to, Tag.BLOCK),
            ]

    def arrive(self) -> None:
        """Return when the next block is here, and this one gone."""
        for pending in self._pending:
            pending.wait()
        if self._arriving is not None:
            self.block = self._buffers.end_exchange(self._arriving)
            self._arriving, self._pending = None, []

    def move(self, ranks: int) -> None:
        """Move by so many ranks."""
        self.start(ranks)
        self.arrive()


class Cannon:
    """Products on a square: `across` are the ranks of a row of it, `down` those of a column."""

    def __init__(self, across: Axis, down: Axis, *, buffers: Buffers):
        self.across, self.down, self.buffers = across, down, buffers

    def multiply(self, a: Array, weight: Param) -> Array:
        """Return this rank's block of `a @ weight`; blocks travel while others are multiplied."""
        c = self.buffers.take((*a.shape[:-1], weight.shape[1]), a.dtype)
        moving = [self._of_a(rows_of(a)), self._of_b(weight.data)]
        for turn in range(self.across.size):
            for shifted in moving:
                shifted.arrive()
            first, second = (shifted.block for shifted in moving)
            if turn < self.across.size - 1:
                for shifted in moving:
                    shifted.start()
            multiply = kernels.current().multiply_add if turn else kernels.current().multiply
            multiply(first, second, rows_of(c))
        return c

    def input_gradient(self, dc: Array, weight: Param) -> Array:
        """Return this rank's block of `dc @ weight.T`."""
        rows, factor = rows_of(dc), self._of_b(weight.data)
        da = self._shifted_sum(
            lambda b: product(rows, b.T, self.buffers), factor, self.across, late=self.down.rank
        )
        return da.reshape(*dc.shape[:-1], len(weight.data))

    def add_gradient(self, dc: Array, a: Array, weight: Param) -> None:
        """Add `a.T @ dc` to the gradient of the weight."""
        rows, factor = rows_of(dc), self._of_a(rows_of(a))
        db = self._shifted_sum(
            lambda block: product(block.T, rows, self.buffers), factor, self.down, late=self.across.rank
        )
        weight.add_grad(db)

    def _of_a(self, block: Array) -> ShiftedBlock:
        """Return the block of A with which this rank begins: (i, j) has block i + j of the contraction."""
        shifted = ShiftedBlock(block, self.across, self.buffers)
        shifted.move(self.down.rank)
        return shifted

    def _of_b(self, block: Array) -> ShiftedBlock:
        shifted = ShiftedBlock(block, self.down, self.buffers)
        shifted.move(self.across.rank)
        return shifted

    def _shifted_sum(
        self, times: Callable[[Array], Array], factor: ShiftedBlock, axis: Axis, late: int
    ) -> Array:
        """Return this rank's block of a sum over `axis`, of products with a factor that travels as well.

        The last rank to add to a block is `late` - 1 places from its home.
        """
        total: ShiftedBlock | None = None
        for turn in range(axis.size):
            factor.arrive()
            block = factor.block
            if turn < axis.size - 1:
                factor.start()
            mine = times(block)
            if total is not None:
                total.arrive()
                mine += total.block
            total = ShiftedBlock(mine, axis, self.buffers)
            if turn < axis.size - 1:
                total.start()
        assert total is not None
        total.move(1 - late)
        return total.block
