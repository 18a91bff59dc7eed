"""Tokens to vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pscale.nn.buffers import Array, Buffers
from pscale.nn.param import Param
from pscale.nn.tile import ones


class Embedding:
    """Row of the token plus row of its position: integers (B, T) to (B, T, C).

    `places` are runs of positions in the sequence, together those of the T tokens; if none, the first T.
    """

    def __init__(self, token: Param, position: Param, *, places: Sequence[slice] = (), buffers: Buffers):
        self.token, self.position, self.buffers = token, position, buffers
        self.places = places
        self.params: Sequence[Param] = (token, position)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Look up; keeps a copy of the tokens, since they are data and stay the caller's."""
        B, T = x.shape
        tokens = self.buffers.take((B, T), np.intp)
        np.copyto(tokens, x)
        y = self.buffers.take((B, T, self.token.shape[1]), self.token.data.dtype)
        _take_rows(self.token.data, tokens, y)
        for here, place in self._runs(T):
            y[:, here] += self.position.data[place]
        return y, tokens

    def backward(self, dy: Array, tokens: Array) -> None:
        """Add each vector's gradient to its two rows."""
        B, T, C = dy.shape
        self._add_by_token(dy.reshape(B * T, C), tokens.reshape(B * T))
        by_position = self.buffers.take((T * C,), dy.dtype)
        np.matmul(ones(B, dy.dtype), dy.reshape(B, T * C), out=by_position)
        for here, place in self._runs(T):
            self.position.accumulator()[place] += by_position.reshape(T, C)[here]
        for array in (by_position, tokens, dy):
            self.buffers.give(array)

    def _runs(self, T: int) -> Iterator[tuple[slice, slice]]:
        """Yield which tokens have which positions, run by run."""
        start = 0
        for place in self.places or (slice(0, T),):
            stop = start + place.stop - place.start
            yield slice(start, stop), place
            start = stop

    def _add_by_token(self, dy: Array, tokens: Array) -> None:
        """Sort by token, sum the runs, add the sums to their rows: many times faster than `np.add.at`."""
        grad, take = self.token.accumulator(), self.buffers.take
        by_token, sums, before = (
            take(dy.shape, dy.dtype),
            take(grad.shape, dy.dtype),
            take(grad.shape, dy.dtype),
        )
        order = np.argsort(tokens, kind="stable")
        _take_rows(dy, order, by_token)
        present, starts = np.unique(tokens[order], return_index=True)
        sums_here, before_here = sums[: len(present)], before[: len(present)]
        np.add.reduceat(by_token, starts, axis=0, out=sums_here)
        _take_rows(grad, present, before_here)
        sums_here += before_here
        grad[present] = sums_here
        for array in (by_token, sums, before):
            self.buffers.give(array)


def _take_rows(table: Array, rows: Array, out: Array) -> None:
    np.take(
        table, rows, axis=0, out=out, mode="clip"
    )  # with its default mode `take` would copy through a buffer
