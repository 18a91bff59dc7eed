"""What training makes small: sums over tokens times a weight, one over the tokens of a step on all ranks."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pscale.nn.buffers import Array, Buffers
from pscale.nn.kernels.tile import ones, rows_of
from pscale.nn.wide import rounded, widened


class Loss(Protocol):
    """A loss of outputs against targets."""

    def forward(self, y: Array, targets: Array, weight: float) -> tuple[float, Array]:
        """Take over the outputs and return the weighted sum and what backward needs."""
        ...

    def backward(self, cache: Array) -> Array:
        """Return the gradient of the outputs."""
        ...


class CrossEntropy:
    """-log softmax(logits)[target]: logits (B, T, V), integer targets (B, T)."""

    def __init__(self, *, buffers: Buffers):
        self.buffers = buffers

    def forward(self, y: Array, targets: Array, weight: float) -> tuple[float, Array]:
        """Sum over tokens; the gradient takes the logits' place at once."""
        dtype, y = y.dtype, widened(y, self.buffers)
        dy = self.buffers.reuse(y)
        p = rows_of(dy)
        target = (np.arange(len(p)), targets.ravel())
        np.subtract(rows_of(y), np.maximum.reduce(rows_of(y), axis=1, keepdims=True), out=p)
        chosen = p[target]
        np.exp(p, out=p)
        total = np.matmul(p, ones(p.shape[1], p.dtype))
        loss = float(np.sum(np.log(total) - chosen, dtype=np.float64)) * weight
        p *= (weight / total)[:, None]
        p[target] -= weight
        return loss, rounded(dy, dtype, self.buffers)

    def backward(self, cache: Array) -> Array:
        """Return weight (softmax - one-hot)."""
        return cache


class MeanSquare:
    """Mean over the last dim of (y - target)^2, summed over tokens: y and targets (..., C).

    `ranks` may have as many of the columns each; the mean is over all of theirs.
    """

    def __init__(self, *, buffers: Buffers, ranks: int = 1):
        self.buffers, self.ranks = buffers, ranks

    def forward(self, y: Array, targets: Array, weight: float) -> tuple[float, Array]:
        """Sum over tokens; the gradient takes the outputs' place at once."""
        dtype, y = y.dtype, widened(y, self.buffers)
        dy = self.buffers.reuse(y)
        weight /= y.shape[-1] * self.ranks
        np.subtract(y, targets.reshape(y.shape), out=dy)
        loss = float(np.sum(np.vecdot(dy, dy), dtype=np.float64)) * weight
        dy *= 2 * weight
        return loss, rounded(dy, dtype, self.buffers)

    def backward(self, cache: Array) -> Array:
        """Return 2 weight (y - target) / C."""
        return cache
