"""Stochastic gradient descent, with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pscale.nn import kernels
from pscale.nn.buffers import Array
from pscale.nn.optimizers.base import OnePass, Rule, Step
from pscale.nn.optimizers.state import Slots


def update(w: Array, g: Array, state: Sequence[Array], hp: Step) -> None:
    """Follow the velocity: v = momentum v + g; w -= lr v. Weights are not decayed."""
    velocity = state[0] if state else None
    kernels.current().sgd(w, g, velocity, scale=hp.scale, momentum=hp.train.momentum, rate=hp.lr)


RULE = Rule(
    make=partial(OnePass, update),
    hyperparameters={"momentum": "decay rate of the velocity, 0: no state"},
    slots=lambda train: [Slots(arrays=1 if train.momentum else 0)],
)
