"""Adam (Kingma and Ba, 2015), and the moments that others have of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from pscale.config import Train
from pscale.nn import kernels
from pscale.nn.buffers import Array
from pscale.nn.optimizers.base import OnePass, Rule, Step
from pscale.nn.optimizers.state import Slots


def corrected(train: Train, step: int) -> tuple[float, float]:
    """Return `rate` and `epsilon` of an update rate m / (sqrt(v) + epsilon), times the learning rate.

    They put in the correction for bias, and that m and v are the moments over (1 - beta): m = beta1 m + g and
    v = beta2 v + g^2, which saves two passes.
    """
    deviation = math.sqrt((1 - train.beta2) / (1 - train.beta2**step))
    return (1 - train.beta1) / (1 - train.beta1**step) / deviation, train.epsilon / deviation


def update(w: Array, g: Array, state: Sequence[Array], hp: Step) -> None:
    """Follow the corrected moments: w = keep w - lr m / (sqrt(v) + epsilon)."""
    (m, v), train = state, hp.train
    rate, epsilon = corrected(train, hp.number)
    kernels.current().adamw(
        *(w, g, m, v),
        scale=hp.scale,
        beta1=train.beta1,
        beta2=train.beta2,
        rate=hp.lr * rate,
        epsilon=epsilon,
        keep=hp.keep,
    )


MOMENTS = {
    "beta1": "decay rate of the first moment",
    "beta2": "decay rate of the second moment",
    "epsilon": "added to the root of the second moment",
}
DECAY = {"weight_decay": "decay of weight matrices, times the learning rate"}

RULE = Rule(make=partial(OnePass, update), hyperparameters=MOMENTS, slots=lambda _: [Slots(arrays=2)])
