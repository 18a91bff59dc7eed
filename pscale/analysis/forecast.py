"""What a fitted law says of other sizes, with prediction intervals by a bootstrap that chooses laws anew.

A draw disturbs the times at all sizes as launches scatter, fits and chooses among all laws again, and
disturbs the time foretold in the same way: the interval is one for a measurement there, and holds how
uncertain the choice of the law is. What the law misses beyond the scatter of launches counts as noise too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pscale.analysis.fits import Choice, Space
from pscale.analysis.stats import Estimate, estimate
from pscale.analysis.steady import Vector

DRAWS = 400


@dataclass(frozen=True, kw_only=True, eq=False)
class Observed:
    """Times of one kind at every size: of each launch, and their median; all in seconds."""

    sizes: Vector
    times: Vector
    scale: Vector  # what errors are relative to: the time of a whole step
    launches: Sequence[Vector]


class Bootstrap:
    """Draws of the times that might have been measured, and of those that might be at other sizes."""

    def __init__(self, observed: Observed, choice: Choice, seed: Sequence[int]) -> None:
        self._noise = _Noise(observed, choice, np.random.default_rng(list(seed)))
        disturbed = choice.at(observed.sizes)[0] + observed.scale * self._noise.of_sizes()
        self.times = np.maximum(disturbed, 0.0)  # draws x sizes

    def at(self, space: Space, choice: Choice, sizes: Vector, scale: Vector) -> list[Estimate]:
        """Return the time that `choice` foretells at each size, with its interval; errors are of `scale`."""
        drawn = space.likeliest(self.times).at(sizes) + scale * self._noise.of_new(len(sizes))
        values = choice.at(sizes)[0]
        return [
            estimate(float(value), np.maximum(draws, 0.0))
            for value, draws in zip(values, drawn.T, strict=True)
        ]


class _Noise:
    """Draws of relative errors: launches resampled over all sizes, and what the law misses beyond them."""

    def __init__(self, observed: Observed, choice: Choice, random: np.random.Generator) -> None:
        self._random = random
        self._counts = [len(times) for times in observed.launches]
        self._pool = _deviations(observed)
        free = max(len(observed.sizes) - choice.law().parameters, 1)
        missed = float(choice.residuals[0]) ** 2 / free
        launches = self._medians(max(set(self._counts), key=self._counts.count)).var()
        self._missed = max(missed - launches, 0.0) ** 0.5
        degrees = free if missed > launches else max(len(self._pool) - len(self._counts), 1)
        self._widen = np.sqrt(degrees / random.chisquare(degrees, DRAWS))

    def of_sizes(self) -> Vector:
        """Return errors of the times measured, draws x sizes."""
        return np.stack([self._errors(count) for count in self._counts], axis=1)

    def of_new(self, count: int) -> Vector:
        """Return errors of a measurement of as many launches at other sizes, draws x sizes."""
        usual = int(np.median(self._counts))
        return np.stack([self._errors(usual) for _ in range(count)], axis=1)

    def _errors(self, count: int) -> Vector:
        missed = self._missed * self._random.normal(size=DRAWS)
        return np.asarray(self._widen * (self._medians(count) + missed))

    def _medians(self, count: int) -> Vector:
        if not len(self._pool):
            return np.zeros(DRAWS)
        return np.asarray(np.median(self._random.choice(self._pool, (DRAWS, count)), axis=1))


def _deviations(observed: Observed) -> Vector:
    """Return what launches differ by from their mean, relative, spread as single launches are."""
    found = [
        (times - times.mean()) / scale * np.sqrt(len(times) / (len(times) - 1))
        for times, scale in zip(observed.launches, observed.scale, strict=True)
        if len(times) > 1
    ]
    return np.concatenate(found) if found else np.empty(0)
