"""LAMB: Adam whose step is as long, of each tensor, as its weights are large."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pscale.config import Train
from pscale.nn import kernels
from pscale.nn.buffers import Array
from pscale.nn.offload.state import IN_MEMORY, StateMemory
from pscale.nn.optim import Elsewhere, Flat, Moments
from pscale.nn.param import Param


class Lamb:
    """w -= lr |w| / |u| u, where u = m / (sqrt(v) + epsilon) + decay w (You et al., 2020).

    The norms are of whole tensors: what is here, and what `elsewhere` adds. Where one is zero the ratio is 1.
    Updates are computed twice, once for their norm, so that no memory holds them.
    """

    def __init__(
        self,
        flats: Sequence[Flat],
        train: Train,
        elsewhere: Elsewhere,
        *,
        memory: StateMemory = IN_MEMORY,
    ):
        self._flats, self._train, self._elsewhere = flats, train, elsewhere
        self._runs = [flat.runs() for flat in flats]
        self._moments = Moments(flats, train, memory)
        self.state: Sequence[Array] = self._moments.state
        self._steps: list[list[float]] = []

    def begin(self, lr: float, scale: float) -> None:
        """Update the moments, and find how far to go with each tensor."""
        moments, train = self._moments, self._train
        moments.begin()
        squares = np.zeros((sum(map(len, self._runs)), 2))
        rows = iter(squares)
        for part, (flat, runs) in enumerate(zip(self._flats, self._runs, strict=True)):
            m, v = moments.m[part], moments.v[part]
            with moments.memory.here(part):
                for run in runs:
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
                        rate=moments.rate,
                        epsilon=moments.epsilon,
                        decay=self._decay(run.param),
                    )
        self._elsewhere.shards(squares)
        self._elsewhere.cuts(squares)
        rows = iter(squares)
        self._steps = [[lr * _ratio(*next(rows)) for _ in runs] for runs in self._runs]

    def apply(self, part: int) -> None:
        """Go as far."""
        flat, moments = self._flats[part], self._moments
        with moments.memory.here(part, changes=False):
            for run, step in zip(self._runs[part], self._steps[part], strict=True):
                kernels.current().lamb(
                    flat.data[run.place],
                    moments.m[part][run.place],
                    moments.v[part][run.place],
                    rate=moments.rate,
                    epsilon=moments.epsilon,
                    decay=self._decay(run.param),
                    step=step,
                )

    def _decay(self, param: Param) -> float:
        return self._train.weight_decay if param.decay else 0.0


def _ratio(weights: float, updates: float) -> float:
    """Return the trust ratio from sums of squares."""
    return math.sqrt(weights / updates) if weights > 0 and updates > 0 else 1.0
