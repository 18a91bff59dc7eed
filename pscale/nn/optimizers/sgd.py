"""Stochastic gradient descent, with momentum."""

from __future__ import annotations

from pscale.nn import kernels
from pscale.nn.optimizers.base import OnePass, Rule
from pscale.nn.optimizers.state import Slots


class Sgd(OnePass):
    """velocity = momentum velocity + g; w -= lr velocity. Weights are not decayed."""

    def apply(self, part: int) -> None:
        """Follow the velocity."""
        momentum = self._train.momentum
        for flat, arrays in self._state.pieces(part):
            velocity = arrays[0] if arrays else None
            kernels.current().sgd(
                flat.data, flat.grad, velocity, scale=self._scale, momentum=momentum, rate=self._lr
            )


RULE = Rule(
    make=Sgd,
    hyperparameters={"momentum": "decay rate of the velocity, 0: no state"},
    slots=lambda train: [Slots(arrays=1 if train.momentum else 0)],
)
