"""LAMB: Adam whose step is as long, of each tensor, as its weights are large."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pscale.config import Train
from pscale.nn import kernels
from pscale.nn.buffers import Array
from pscale.nn.optimizers.adam import DECAY, MOMENTS, corrected
from pscale.nn.optimizers.base import Optimizer, ProcessGroups, Rule
from pscale.nn.optimizers.state import Flat, Slots, State
from pscale.nn.param import Param

_SUMS = np.dtype(np.float64)


class Lamb(Optimizer):
    """w -= lr |w| / |u| u, where u = m / (sqrt(v) + epsilon) + decay w (You et al., 2020).

    The norms are of whole tensors: what is here, and what `groups` adds. Where one is zero the ratio is 1.
    Updates are computed twice, once for their norm, so that no memory holds them.
    """

    def __init__(self, train: Train, flats: Sequence[Flat], states: Sequence[State], groups: ProcessGroups):
        self._train, [self._state], self._groups = train, states, groups
        self._counts = [sum(len(flat.runs) for flat in part) for part in self._state.flats]
        self._rate, self._epsilon = 0.0, 0.0
        self.state: Sequence[Array] = self._state.at_hand
        self._steps: list[list[float]] = [[] for _ in flats]

    def begin(self, lr: float, scale: float, number: int) -> None:
        """Update the moments, and find how far to go with each tensor."""
        train = self._train
        self._rate, self._epsilon = corrected(train, number)
        squares = np.zeros((sum(self._counts), 2), _SUMS)
        rows = iter(squares)
        for part in range(len(self._counts)):
            for flat, (m, v) in self._state.pieces(part):
                for run in flat.runs:
                    place = run.place
                    kernels.current().lamb_moments(
                        flat.data[place],
                        flat.grad[place],
                        m[place],
                        v[place],
                        next(rows),
                        scale=scale,
                        beta1=train.beta1,
                        beta2=train.beta2,
                        rate=self._rate,
                        epsilon=self._epsilon,
                        decay=self._decay(run.param),
                    )
        self._groups.shards.all_reduce(squares)
        self._groups.cuts.all_reduce(squares)
        rows = iter(squares)
        self._steps = [[lr * _ratio(*next(rows)) for _ in range(count)] for count in self._counts]

    def apply(self, part: int) -> None:
        """Go as far."""
        steps = iter(self._steps[part])
        for flat, (m, v) in self._state.pieces(part, changes=False):
            for run in flat.runs:
                kernels.current().lamb(
                    flat.data[run.place],
                    m[run.place],
                    v[run.place],
                    rate=self._rate,
                    epsilon=self._epsilon,
                    decay=self._decay(run.param),
                    step=next(steps),
                )

    def _decay(self, param: Param) -> float:
        return self._train.weight_decay if param.decay else 0.0


def _ratio(weights: float, updates: float) -> float:
    """Return the trust ratio from sums of squares."""
    return math.sqrt(weights / updates) if weights > 0 and updates > 0 else 1.0


RULE = Rule(
    make=Lamb,
    hyperparameters=MOMENTS | DECAY,
    slots=lambda _: [Slots(arrays=2, whole_tensors=True)],
)
