"""Tokens and their positions to vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.kernels.tile import ones, rows_of
from pscale.nn.param import Param
from pscale.number import wide


class Tokens:
    """Row of each token: integers (B, T) to (B, T, C).

    The table may hold a part of the vocabulary, from token `first` on; a token that is not here becomes zero,
    so that the sum over all parts is the row.
    """

    def __init__(self, table: Param, *, first: int = 0, buffers: Buffers):
        self.table, self.first, self.buffers = table, first, buffers
        self.params: Sequence[Param] = (table,)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Look up; keeps the rows as a copy of the tokens, since they are data and stay the caller's."""
        rows = self.buffers.take(x.shape, np.intp)
        np.subtract(x, self.first, out=rows, dtype=np.intp, casting="unsafe")
        y = self.buffers.take((*x.shape, self.table.shape[1]), self.table.data.dtype)
        _take_rows(self.table.data, rows, y)
        y[(rows < 0) | (rows >= len(self.table.data))] = 0
        return y, rows

    def backward(self, dy: Array, rows: Array) -> None:
        """Add each vector's gradient to its row: sort, sum the runs, add; far faster than `np.add.at`."""
        grad, take = self.table.accumulator(), self.buffers.take
        dy_rows, flat = rows_of(dy), rows.ravel()
        by_row, before = (take(like.shape, dy.dtype) for like in (dy_rows, grad))
        sums = take(grad.shape, wide(dy.dtype))
        order = np.argsort(flat, kind="stable")
        here = slice(*np.searchsorted(flat, (0, len(grad)), sorter=order))
        order = order[here]
        if len(order):
            _take_rows(dy_rows, order, by_row[: len(order)])
            present, starts = np.unique(flat[order], return_index=True)
            sums_here, before_here = sums[: len(present)], before[: len(present)]
            np.add.reduceat(by_row[: len(order)], starts, axis=0, dtype=sums.dtype, out=sums_here)
            _take_rows(grad, present, before_here)
            sums_here += before_here
            grad[present] = sums_here
        for array in (by_row, sums, before, rows, dy):
            self.buffers.give(array)


class Positions:
    """x + row of its position: (B, T, C), the T positions being `runs`, one after another."""

    def __init__(self, table: Param, *, runs: Sequence[slice], buffers: Buffers):
        self.table, self.runs, self.buffers = table, runs, buffers
        self.params: Sequence[Param] = (table,)

    def forward(self, x: Array) -> tuple[Array, None]:
        """Add; keeps nothing."""
        y = self.buffers.reuse(x)
        for run, here in self._pairs():
            np.add(x[:, here], self.table.data[run], out=y[:, here])
        return y, None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Add to the gradients of the positions; that of `x` is what came."""
        B, T, C = dy.shape
        by_position = self.buffers.take((T * C,), dy.dtype)
        kernels.current().multiply(ones(B, dy.dtype), dy.reshape(B, T * C), by_position)
        grad, rows = self.table.accumulator(), by_position.reshape(T, C)
        for run, here in self._pairs():
            grad[run] += rows[here]
        self.buffers.give(by_position)
        return dy

    def _pairs(self) -> Iterator[tuple[slice, slice]]:
        """Yield the runs of the sequence and where they are in T."""
        start = 0
        for run in self.runs:
            stop = start + run.stop - run.start
            yield run, slice(start, stop)
            start = stop


def _take_rows(table: Array, rows: Array, out: Array) -> None:
    np.take(
        table, rows, axis=0, out=out, mode="clip"
    )  # with its default mode `take` would copy through a buffer
