"""Both ends of a model on tensor ranks: the table of tokens by columns, and the loss of logits that are cut.

A table cut by rows needs no layer of its own: tokens that are not here become zero, and `Leave` adds up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pscale.mesh.axis import Axis
from pscale.nn.buffers import Array, Buffers
from pscale.nn.kernels.tile import ones, rows_of
from pscale.nn.param import Param, share
from pscale.nn.wide import rounded, widened


class JoinColumns:
    """From this rank's columns of all tokens, (B, T, C / size), to all columns: a gather."""

    params: Sequence[Param] = ()

    def __init__(self, axis: Axis, *, buffers: Buffers):
        self.axis, self.buffers = axis, buffers

    def forward(self, x: Array) -> tuple[Array, None]:
        """Gather."""
        B, T, C = x.shape
        y = self.buffers.take((B, T, C * self.axis.size), x.dtype)
        self.axis.all_gather(x, y, dim=2)
        self.buffers.give(x)
        return y, None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Take this rank's columns."""
        B, T, C = dy.shape
        mine = share(C, self.axis.size, self.axis.rank)
        dx = self.buffers.take((B, T, mine.stop - mine.start), dy.dtype)
        self.axis.copy(dy[..., mine], dx)
        self.buffers.give(dy)
        return dx


class ColumnsToSlices:
    """From this rank's columns of all tokens to all columns of its slice of T: an all-to-all, either way."""

    params: Sequence[Param] = ()

    def __init__(self, axis: Axis, *, buffers: Buffers):
        self.axis, self.buffers = axis, buffers

    def forward(self, x: Array) -> tuple[Array, None]:
        """Send every rank its slice of the tokens: (B, T, C / size) to (B, T / size, C)."""
        B, T, C = x.shape
        size = self.axis.size
        y = self.buffers.take((B, T // size, size * C), x.dtype)
        by_slice = x.reshape(B, size, T // size, C).transpose(1, 0, 2, 3)
        self._exchange(by_slice, y.reshape(B, T // size, size, C).transpose(2, 0, 1, 3))
        self.buffers.give(x)
        return y, None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Send every rank its columns: (B, T / size, C) to (B, T, C / size)."""
        B, T, C = dy.shape
        size = self.axis.size
        dx = self.buffers.take((B, size * T, C // size), dy.dtype)
        by_columns = dy.reshape(B, T, size, C // size).transpose(2, 0, 1, 3)
        self._exchange(by_columns, dx.reshape(B, size, T, C // size).transpose(1, 0, 2, 3))
        self.buffers.give(dy)
        return dx

    def _exchange(self, x: Array, out: Array) -> None:
        sent, received = (self.buffers.take_exchange(x.shape, x.dtype) for _ in range(2))
        self.axis.copy(x, sent)
        self.axis.all_to_all(sent, received)
        self.axis.copy(received, out)
        for array in (sent, received):
            self.buffers.give(array)


class ParallelCrossEntropy:
    """-log softmax(logits)[target] of logits cut by columns; this rank's are the tokens from `first` on.

    No logits travel: of every token its largest one, its sum of exponentials and the one of its target do.
    """

    def __init__(self, axis: Axis, *, first: int, buffers: Buffers):
        self.axis, self.first, self.buffers = axis, first, buffers

    def forward(self, y: Array, targets: Array, weight: float) -> tuple[float, Array]:
        """Sum over tokens, the same on every rank; the gradient takes the logits' place at once."""
        dtype, y = y.dtype, widened(y, self.buffers)
        dy = self.buffers.reuse(y)
        p = rows_of(dy)
        largest, total, chosen = statistics = self.buffers.take((3, len(p)), y.dtype)
        np.maximum.reduce(rows_of(y), axis=1, out=largest)
        self.axis.all_reduce(largest, "max")
        np.subtract(rows_of(y), largest[:, None], out=p)
        columns = targets.ravel().astype(np.intp) - self.first
        here = np.flatnonzero((columns >= 0) & (columns < p.shape[1]))
        target = here, columns[here]
        chosen.fill(0)
        chosen[here] = p[target]
        self.axis.all_reduce(chosen)
        np.exp(p, out=p)
        np.matmul(p, ones(p.shape[1], p.dtype), out=total)
        self.axis.all_reduce(total)
        loss = float(np.sum(np.log(total) - chosen, dtype=np.float64)) * weight
        p *= (weight / total)[:, None]
        p[target] -= weight
        self.buffers.give(statistics)
        return loss, rounded(dy, dtype, self.buffers)

    def backward(self, cache: Array) -> Array:
        """Return weight (softmax - one-hot), this rank's columns."""
        return cache
