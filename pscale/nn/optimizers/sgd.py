"""Stochastic gradient descent, with momentum."""

from __future__ import annotations

from collections.abc import Sequence

from pscale.config import Train
from pscale.nn import kernels
from pscale.nn.buffers import Array
from pscale.nn.optimizers.base import Elsewhere, Rule
from pscale.nn.optimizers.state import Flat, Slots, State


class Sgd:
    """velocity = momentum velocity + g; w -= lr velocity. Weights are not decayed."""

    def __init__(self, train: Train, flats: Sequence[Flat], states: Sequence[State], elsewhere: Elsewhere):  # noqa: ARG002
        self._momentum, [self._state] = train.momentum, states
        self.state: Sequence[Array] = self._state.at_hand
        self._lr, self._scale = 0.0, 1.0

    def begin(self, lr: float, scale: float) -> None:
        """Remember both."""
        self._lr, self._scale = lr, scale

    def apply(self, part: int) -> None:
        """Follow the velocity."""
        for flat, arrays in self._state.pieces(part):
            velocity = arrays[0] if arrays else None
            kernels.current().sgd(
                flat.data, flat.grad, velocity, scale=self._scale, momentum=self._momentum, rate=self._lr
            )


RULE = Rule(
    make=Sgd,
    hyperparameters={"momentum": "decay rate of the velocity, 0: no state"},
    slots=lambda train: [Slots(arrays=1 if train.momentum else 0)],
)
