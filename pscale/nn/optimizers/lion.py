"""Lion (Chen et al., 2023): the sign of a momentum, and one number of state for each weight."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from pscale.nn.buffers import Array
from pscale.nn.kernels import scratch, tiles
from pscale.nn.optimizers.adam import DECAY
from pscale.nn.optimizers.base import OnePass, Rule, Step
from pscale.nn.optimizers.state import Slots


def update(w: Array, g: Array, state: Sequence[Array], hp: Step) -> None:
    """Follow the sign: w = keep w - lr sign(beta1 m + (1 - beta1) g); then m = beta2 m + (1 - beta2) g.

    Numbers no larger than epsilon have no sign: where the gradient is zero but for rounding, as that of the
    bias of keys is, the sign would be that of the rounding, and another under every plan.
    """
    (m,), train = state, hp.train
    work = scratch().take((2, min(tiles.CHUNK, w.size)), w.dtype)
    for part in tiles.chunks(w.size):
        ahead, mixed = work[:, : part.stop - part.start]
        np.multiply(g[part], hp.scale, out=ahead, dtype=ahead.dtype)
        ahead -= m[part]
        np.multiply(ahead, 1 - train.beta1, out=mixed)
        mixed += m[part]
        ahead *= 1 - train.beta2
        m[part] += ahead
        np.abs(mixed, out=ahead)
        np.sign(mixed, out=mixed)
        mixed *= hp.lr * (ahead > train.epsilon)
        w[part] *= hp.keep
        w[part] -= mixed


RULE = Rule(
    make=partial(OnePass, update, decays=True),
    hyperparameters={
        "beta1": "weight of the momentum in the mean whose sign is taken",
        "beta2": "decay rate of the momentum",
        "epsilon": "numbers no larger than this have sign 0",
    }
    | DECAY,
    slots=lambda _: [Slots(arrays=1)],
)
