"""Adam (Kingma and Ba, 2015), and the moments that others have of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pscale.config import Train
from pscale.nn import kernels
from pscale.nn.optimizers.base import Elsewhere, OnePass, Rule
from pscale.nn.optimizers.state import Flat, Slots, State


class Moments:
    """The factors of the bias correction, with which the moments are put in.

    The state is the moments over (1 - beta), `m = beta1 m + g` and `v = beta2 v + g^2`, which saves two
    passes; `rate` m / (sqrt(v) + `epsilon`), times the learning rate, is the update.
    """

    def __init__(self, train: Train):
        self.train = train
        self.steps = 0
        self.rate = self.epsilon = 0.0

    def begin(self) -> None:
        """Count a step."""
        train = self.train
        self.steps += 1
        deviation = math.sqrt((1 - train.beta2) / (1 - train.beta2**self.steps))
        self.rate = (1 - train.beta1) / (1 - train.beta1**self.steps) / deviation
        self.epsilon = train.epsilon / deviation


class Adam(OnePass):
    """w -= lr m / (sqrt(v) + epsilon), moments corrected for their bias. Weights are not decayed."""

    decays = False

    def __init__(self, train: Train, flats: Sequence[Flat], states: Sequence[State], elsewhere: Elsewhere):
        super().__init__(train, flats, states, elsewhere)
        self._moments = Moments(train)

    def begin(self, lr: float, scale: float) -> None:
        """Find the factors of the step."""
        super().begin(lr, scale)
        self._moments.begin()

    def apply(self, part: int) -> None:
        """Do all in one pass."""
        moments, train = self._moments, self._train
        decay = train.weight_decay if self.decays else 0.0
        for flat, (m, v) in self._state.pieces(part):
            for run, decays in flat.spans:
                kernels.current().adamw(
                    flat.data[run],
                    flat.grad[run],
                    m[run],
                    v[run],
                    scale=self._scale,
                    beta1=train.beta1,
                    beta2=train.beta2,
                    rate=self._lr * moments.rate,
                    epsilon=moments.epsilon,
                    keep=1 - self._lr * decay if decays else 1.0,
                )


MOMENTS = {
    "beta1": "decay rate of the first moment",
    "beta2": "decay rate of the second moment",
    "epsilon": "added to the root of the second moment",
}
DECAY = {"weight_decay": "decay of weight matrices, times the learning rate"}

RULE = Rule(make=Adam, hyperparameters=MOMENTS, slots=lambda _: [Slots(arrays=2)])
