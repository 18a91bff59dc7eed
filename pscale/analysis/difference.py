"""Whether two sets of launches differ in step time: ratio, interval, effect, test, and what could be seen.

Launches are what is compared, as steps of one launch are not independent. The test is Mann and Whitney's,
which asks nothing of the distribution, and the ratio is the median of all ratios of a launch to one of the
other set, with those that the test would not refuse for its interval (Hodges and Lehmann 1963,
https://doi.org/10.1214/aoms/1177704172): it scatters a fifth less than the ratio of the medians. Of so few
launches that no order of them would be unlikely enough, the test is Welch's on logarithms, which takes them
as normally distributed, and the ratio that of the medians.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from pscale.analysis.stats import Estimate, Sample, estimate, ratio
from pscale.analysis.steady import Vector

ALPHA = 0.05
POWER = 0.8
_FEWEST_RANKED = 7  # launches a side: 3,432 orders of two times seven, so that p can be as small as 0.0006
_NORMAL = NormalDist()

Answer = Literal["faster", "slower", "same", "unclear"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Step times of B against those of A, in seconds; None where a side has a single launch."""

    a: Estimate
    b: Estimate
    launches: tuple[int, int]
    ratio: Estimate  # B over A
    effect: float | None  # Cliff's delta: share of pairs of launches in which B is slower, less faster
    test: str
    p: float | None

    def detectable(self, tests: int) -> float | None:
        """Return the relative difference that would have been seen with probability `POWER`.

        It follows from the width of the interval; `tests` such comparisons are made at once.
        """
        found = self._detectable_log(tests, POWER)
        return None if found is None else math.expm1(found)

    def launches_for(self, relevant: float, tests: int = 1, power: float = POWER) -> int | None:
        """Return how many launches of each would see a difference of `relevant` with probability `power`.

        Intervals narrow as the root of the number of launches.
        """
        found = self._detectable_log(tests, power)
        if found is None:
            return None
        launches = 2 / sum(1 / count for count in self.launches)
        return math.ceil(launches * (found / math.log1p(relevant)) ** 2)

    def _detectable_log(self, tests: int, power: float) -> float | None:
        if self.ratio.low is None or self.ratio.high is None:
            return None
        deviation = math.log(self.ratio.high / self.ratio.low) / 2 / _NORMAL.inv_cdf(1 - ALPHA / 2)
        return deviation * (_NORMAL.inv_cdf(1 - ALPHA / 2 / max(tests, 1)) + _NORMAL.inv_cdf(power))

    def answer(self, p: float | None, detectable: float | None, relevant: float) -> Answer:
        """Tell what is known, given the p-value corrected for all tests and the least relevant difference.

        A difference is believed if test and interval agree on it.
        """
        low, high = self.ratio.low, self.ratio.high
        if p is None or detectable is None or low is None or high is None:
            return "unclear"
        if p < ALPHA and not low <= 1 <= high:
            return "slower" if self.ratio.value > 1 else "faster"
        return "same" if detectable <= relevant else "unclear"


def difference(a: Sample, b: Sample) -> Difference:
    """Set the launches of one case against those of another."""
    first, second = (np.log(np.asarray(sample.medians)) for sample in (a, b))
    testable = min(len(first), len(second)) > 1
    ranked = min(len(first), len(second)) >= _FEWEST_RANKED
    return Difference(
        a=estimate(a.value, a.draws),
        b=estimate(b.value, b.draws),
        launches=(a.launches, b.launches),
        ratio=shift(first, second) if ranked else ratio(b, a),
        effect=_cliff(first, second) if testable else None,
        test=("Mann-Whitney" if ranked else "Welch") if testable else "",
        p=(mann_whitney(first, second) if ranked else welch(first, second)) if testable else None,
    )


def shift(a: Vector, b: Vector) -> Estimate:
    """Return the ratio of `b` to `a`, from logarithms of launches, with the interval of the rank test."""
    apart = np.sort((b[:, None] - a[None, :]).ravel())
    deviation = math.sqrt(len(apart) * (len(a) + len(b) + 1) / 12)
    cut = max(1, round(len(apart) / 2 - _NORMAL.inv_cdf(1 - ALPHA / 2) * deviation))
    known = np.exp([np.median(apart), apart[cut - 1], apart[-cut]])
    return Estimate(value=float(known[0]), low=float(known[1]), high=float(known[2]))


def mann_whitney(a: Vector, b: Vector) -> float:
    """Return the two-sided p-value of the rank test, by the normal approximation with ties and continuity."""
    count = len(a) + len(b)
    _, places, times = np.unique(np.concatenate([a, b]), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(times) - (times - 1) / 2)[places]
    above = float(ranks[: len(a)].sum()) - len(a) * (len(a) + 1) / 2
    ties = float((times**3 - times).sum()) / (count * (count - 1))
    variance = len(a) * len(b) / 12 * (count + 1 - ties)
    if not variance > 0:
        return 1.0
    score = max(0.0, abs(above - len(a) * len(b) / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(score / math.sqrt(2))


def welch(a: Vector, b: Vector) -> float:
    """Return the two-sided p-value of the t-test for unequal variances."""
    parts = [float(side.var(ddof=1)) / len(side) for side in (a, b)]
    apart = abs(float(a.mean() - b.mean()))
    if not sum(parts) > 0:
        return 0.0 if apart > 0 else 1.0
    degrees = sum(parts) ** 2 / sum(
        part**2 / (len(side) - 1) for part, side in zip(parts, (a, b), strict=True)
    )
    return student_tails(apart / math.sqrt(sum(parts)), degrees)


def student_tails(score: float, degrees: float) -> float:
    """Return how likely Student's t is at least `score` away from zero.

    With t = sqrt(degrees) tan(angle) the density becomes a power of the cosine, integrated here by the
    trapezoidal rule.
    """
    powers = np.cos(np.linspace(0, math.pi / 2, 20001)) ** (degrees - 1)
    start = math.atan(score / math.sqrt(degrees))
    tail = np.cos(np.linspace(start, math.pi / 2, 20001)) ** (degrees - 1)
    whole = float(np.trapezoid(powers)) * (math.pi / 2)
    return float(np.trapezoid(tail)) * (math.pi / 2 - start) / whole


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979), in the same order."""
    corrected = [0.0] * len(values)
    largest = 0.0
    for place, index in enumerate(sorted(range(len(values)), key=lambda index: values[index])):
        largest = max(largest, min(1.0, values[index] * (len(values) - place)))
        corrected[index] = largest
    return corrected


def _cliff(a: Vector, b: Vector) -> float:
    return float(np.sign(b[:, None] - a[None, :]).mean())
