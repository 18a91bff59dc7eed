"""Lion (Chen et al., 2023): the sign of a momentum, and one number of state for each weight."""

from __future__ import annotations

import numpy as np

from pscale.nn.buffers import Array
from pscale.nn.kernels import scratch, tiles
from pscale.nn.optimizers.adam import DECAY
from pscale.nn.optimizers.base import OnePass, Rule
from pscale.nn.optimizers.state import Slots


class Lion(OnePass):
    """w -= lr (sign(beta1 m + (1 - beta1) g) + decay w); then m = beta2 m + (1 - beta2) g.

    Numbers no larger than epsilon have no sign: where the gradient is zero but for rounding, as that of the
    bias of keys is, the sign would be that of the rounding, and another under every plan.
    """

    def apply(self, part: int) -> None:
        """Do all in one pass."""
        for flat, (m,) in self._state.pieces(part):
            for run, decays in flat.spans:
                keep = 1 - self._lr * self._train.weight_decay if decays else 1.0
                self._update(flat.data[run], flat.grad[run], m[run], keep)

    def _update(self, weight: Array, grad: Array, m: Array, keep: float) -> None:
        train = self._train
        work = scratch().take((2, min(tiles.CHUNK, weight.size)), weight.dtype)
        for part in tiles.chunks(weight.size):
            ahead, mixed = work[:, : part.stop - part.start]
            np.multiply(grad[part], self._scale, out=ahead, dtype=ahead.dtype)
            ahead -= m[part]
            np.multiply(ahead, 1 - train.beta1, out=mixed)
            mixed += m[part]
            ahead *= 1 - train.beta2
            m[part] += ahead
            np.abs(mixed, out=ahead)
            np.sign(mixed, out=mixed)
            mixed *= self._lr * (ahead > train.epsilon)
            weight[part] *= keep
            weight[part] -= mixed


RULE = Rule(
    make=Lion,
    hyperparameters={
        "beta1": "weight of the momentum in the mean whose sign is taken",
        "beta2": "decay rate of the momentum",
        "epsilon": "numbers no larger than this have sign 0",
    }
    | DECAY,
    slots=lambda _: [Slots(arrays=1)],
)
