"""Tokens and their positions to vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.kernels.lookup import take_rows
from pscale.nn.kernels.tile import ones, rows_of
from pscale.nn.param import Param


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
        take_rows(self.table.data, rows, y)
        y[(rows < 0) | (rows >= len(self.table.data))] = 0
        return y, rows

    def backward(self, dy: Array, rows: Array) -> None:
        """Add each vector's gradient to its row."""
        kernels.current().add_to_rows(self.table.accumulator(), rows.ravel(), rows_of(dy))
        for array in (rows, dy):
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
