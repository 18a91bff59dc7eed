"""Launches at the same pace of the machine: their times as if a fixed piece of work had cost the same.

The work was timed beside every step (`worker.work_quantum`). On logarithms a launch's level is the mean over
its steady steps, and so is its pace: a machine that changes between two speeds moves means of both equally,
while their medians jump at different times. Adjusting by a covariate that the comparison cannot have changed
is the analysis of covariance (Fisher 1932, "Statistical methods for research workers", section 49.1).

The coefficient is that of launches of one side among each other, never of one side against the other: the
median of the slopes between any two, each with the distance of its paces for a weight (Sen 1968,
https://doi.org/10.1080/01621459.1968.10480934; weights: Jaeckel 1972). One launch in many that is slow for
a reason of its own does not change it.

The two cases have to compute with the same means, so that a fixed piece of work costs both the same: else a
difference in pace may be theirs, not the machine's, and must stay in their times (`unlike`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from pscale.analysis.difference import Difference, p_value
from pscale.analysis.stats import Estimate, Sample, level
from pscale.results.step_time import Vector

if TYPE_CHECKING:  # it takes long to load, and a history does without
    from pscale.analysis.frames import Run

_FEWEST = 7  # launches a side: 42 slopes
_CERTAIN = 0.001  # chance of a difference in pace between two variants that is taken for one of theirs
_LEAST_P = 1e-300
_NORMAL = NormalDist()

Compare = Callable[[Sample, Sample], Difference]


@dataclass(frozen=True, kw_only=True)
class Paced:
    """What bringing launches to the same pace has done; None where their pace is not used.

    Scatter is the standard deviation of the logarithms of launches about their side's mean.
    """

    scatter: float | None = None  # as they ran
    scatter_at_pace: float | None = None  # at the same pace of the machine, which is what was compared
    pace_slope: float | None = None  # relative change of the step time over that of the pace
    pace_ratio: float | None = None  # time of the fixed work in B over that in A


def paced(a: Sample, b: Sample) -> bool:
    """Tell whether enough is known of the pace of both."""
    return min(len(a.paces), len(b.paces)) >= _FEWEST


def at_same_pace(compare: Compare, a: Sample, b: Sample) -> tuple[Difference, Paced]:
    """Compare the launches of two sides after all were brought to the mean pace."""
    sides = [(np.array(one.levels), np.array(one.paces)) for one in (a, b)]
    slope = _slope(sides)
    left = [levels - slope * paces for levels, paces in sides]
    middle = slope * float(np.mean([paces.mean() for _, paces in sides]))
    adjusted = [
        replace(one, medians=tuple(np.exp(levels + middle).tolist()))
        for one, levels in zip((a, b), left, strict=True)
    ]
    gap = float(sides[1][1].mean() - sides[0][1].mean())
    known = Paced(
        pace_slope=slope,
        pace_ratio=math.exp(gap),
        scatter=_scatter([levels for levels, _ in sides]),
        scatter_at_pace=_scatter(left),
    )
    return _widened(compare(*adjusted), _widening(gap, [paces for _, paces in sides])), known


def of_variants(a: Sample, b: Sample) -> bool:
    """Tell whether the paces of launches in the same rounds differ by more than chance would have it.

    Rounds are shuffled, so that a difference of that kind is the variants' own doing, and no change of the
    machine that their times could be rid of.
    """
    sides = [dict(zip(one.repeats, one.paces, strict=True)) for one in (a, b)]
    apart = np.array([sides[1][repeat] - pace for repeat, pace in sides[0].items() if repeat in sides[1]])
    return len(apart) > 1 and (p_value(level(apart)) or 0.0) < _CERTAIN


def _slope(sides: Sequence[tuple[Vector, Vector]]) -> float:
    slopes, weights = [], []
    for levels, paces in sides:
        one, other = np.triu_indices(len(levels), 1)
        slopes.append(levels[other] - levels[one])
        weights.append(paces[other] - paces[one])
    return slope(np.concatenate(slopes), np.concatenate(weights))


def slope(levels: Vector, paces: Vector) -> float:
    """Return the median slope of pairs of launches, given how far their levels and paces differ."""
    differ = paces != 0
    if not differ.any():
        return 0.0
    values = levels[differ] / paces[differ]
    order = np.argsort(values)
    below = np.cumsum(np.abs(paces[differ])[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def _widening(gap: float, paces: Sequence[Vector]) -> float:
    """Return by what factor the interval widens, as the slope is known from the launches alone.

    A slope that follows them takes one degree of freedom of their scatter. Where the sides' paces are apart,
    there is its own error: over the variance of a difference of means, 1/n + 1/m, that of slope times gap is
    gap^2 over the sum of squares within the sides.
    """
    within = sum(float(((one - one.mean()) ** 2).sum()) for one in paces)
    if not within > 0:
        return 1.0
    degrees = sum(map(len, paces)) - len(paces)
    apart = 1 + gap**2 / within / sum(1 / len(one) for one in paces)
    return math.sqrt(apart * degrees / (degrees - 1))


def _widened(found: Difference, factor: float) -> Difference:
    ratio = found.ratio
    if found.p is None or ratio.low is None or ratio.high is None:
        return found
    low, high = (ratio.value * (bound / ratio.value) ** factor for bound in (ratio.low, ratio.high))
    score = -_NORMAL.inv_cdf(max(found.p, _LEAST_P) / 2)
    return replace(
        found,
        ratio=Estimate(value=ratio.value, low=low, high=high),
        p=2 * _NORMAL.cdf(-score / factor),
    )


def _scatter(sides: Sequence[Vector]) -> float:
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in sides)
    return math.sqrt(squares / (sum(map(len, sides)) - len(sides)))


_OF_RANKS = {
    "blas": "BLAS",
    "blas_version": "BLAS",
    "blas_architecture": "BLAS",
    "blas_threading": "BLAS",
    "threads": "threads",
    "kernels": "kernels",
    "kernel_threads": "threads",
    "cpus": "pinning",
}
_OF_LAUNCH = {"bind": "pinning", "omp": "pinning", "kernels": "kernels", "env": "environment"}


def unlike(a: Run, case: str, b: Run, other: str) -> tuple[str, ...]:
    """Return in what the means of a case of A differ from those of one of B, in words."""
    return tuple(dict.fromkeys(_differences(a, case, b, other)))


def _differences(a: Run, case: str, b: Run, other: str) -> Iterator[str]:
    if a.machine.get("cpu_model") != b.machine.get("cpu_model"):
        yield "processor"
    left, right = (run.ranks[run.ranks["case"] == name] for run, name in ((a, case), (b, other)))
    if set(left["rank"]) != set(right["rank"]):
        yield "ranks"
    for column, word in _OF_RANKS.items():
        if _values(left[column]) != _values(right[column]):
            yield word
    launches = [run.planned.get(name, {}).get("launch", {}) for run, name in ((a, case), (b, other))]
    for field, word in _OF_LAUNCH.items():
        if launches[0].get(field) != launches[1].get(field):
            yield word


def _values(column: Any) -> set[str]:
    return set(column.dropna().astype(str))
