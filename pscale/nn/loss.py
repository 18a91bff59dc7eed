"""Losses, and how many times larger they are made, so that small gradients do not vanish in 16 bits."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pscale.nn import kernels
from pscale.nn.buffers import Array
from pscale.nn.kernels.tiles import rows_of


class Loss(Protocol):
    """A loss of outputs against targets."""

    def forward(self, y: Array, targets: Array, weight: float) -> tuple[float, Array]:
        """Return the weighted sum, and the gradient of the outputs in their place."""
        ...


class CrossEntropy:
    """-log softmax(logits)[target]: logits (B, T, V), integer targets (B, T)."""

    def forward(self, y: Array, targets: Array, weight: float) -> tuple[float, Array]:
        """Sum over tokens; the gradient, weight (softmax - one-hot), takes the logits' place."""
        return kernels.current().cross_entropy(rows_of(y), targets.ravel().astype(np.int64), weight), y


class MeanSquare:
    """Mean over the last dim of (y - target)^2, summed over tokens: y and targets (..., C).

    `ranks` may have as many of the columns each; the mean is over all of theirs.
    """

    def __init__(self, *, ranks: int = 1):
        self.ranks = ranks

    def forward(self, y: Array, targets: Array, weight: float) -> tuple[float, Array]:
        """Sum over tokens; the gradient, 2 weight (y - target) / C, takes the outputs' place."""
        rows, weight = rows_of(y), weight / (y.shape[-1] * self.ranks)
        return kernels.current().mean_square(rows, targets.reshape(rows.shape), weight), y


GROWTH, BACK_OFF = 2.0, 0.5  # powers of two: no other factor leaves every digit of a gradient as it is
LARGEST = 2.0**24  # a scale that kept growing would make its inverse vanish in float32
SMALLEST = 2.0**-24  # one that kept shrinking would end as zero


class LossScale:
    """The scale of a step, by the rule of Micikevicius et al. (2018).

    It grows after `interval` steps in a row whose gradients are numbers, and backs off at once when they are
    not; without an interval it stays. Such a step is to be skipped either way.
    """

    def __init__(self, value: float, interval: int = 0):
        self.value, self._interval = value, interval
        self.good = 0  # steps in a row at this scale

    def update(self, *, overflowed: bool) -> None:
        """Choose the scale of the next step."""
        if not self._interval:
            return
        if overflowed:
            self.value = min(self.value, max(self.value * BACK_OFF, SMALLEST))
            self.good = 0
            return
        self.good += 1
        if self.good == self._interval:
            self.value = max(self.value, min(self.value * GROWTH, LARGEST))
            self.good = 0
