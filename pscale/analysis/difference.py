"""Whether the step times of two cases differ: ratio, interval, effect, test, and detectable difference.

Launches are compared, as steps of one launch are not independent. Those of one run in the same round are
pairs, tested by Student's t on logarithms of their ratios (Yuen's of the trimmed mean, from seven pairs on):
ratio and interval are those of the report. Two sets of launches are tested by Mann and Whitney's rank test,
which assumes no distribution. The ratio is the median of all ratios of a launch to one of the other set, its
interval those ratios that the test does not reject (Hodges and Lehmann 1963,
https://doi.org/10.1214/aoms/1177704172). With too few launches for a small p-value, or too few printed
digits, the test is Welch's.

`scipy.stats` takes a second to import, so that only comparisons of two runs load it, never reports.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from pscale.analysis.stats import TRIMMED, Estimate, Level, Sample, level, pair_logs
from pscale.results.step_time import Vector

ALPHA = 0.05
POWER = 0.8
_FEWEST_RANKED = 7  # launches a side: 3,432 orders of two times seven, so that p can be as small as 0.0006
_NORMAL = NormalDist()

Answer = Literal["faster", "slower", "same", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Step times of B against those of A, in seconds; None where a side has a single launch."""

    a_s: Estimate
    b_s: Estimate
    a_launches: int
    b_launches: int
    ratio: Estimate  # B over A
    effect: float | None  # Cliff's delta: share of pairs of launches in which B is slower, less faster
    test: str
    p: float | None

    def detectable_with(self, tests: int) -> float | None:
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
        launches = 2 / (1 / self.a_launches + 1 / self.b_launches)
        return math.ceil(launches * (found / math.log1p(relevant)) ** 2)

    def _detectable_log(self, tests: int, power: float) -> float | None:
        if self.ratio.low is None or self.ratio.high is None:
            return None
        deviation = math.log(self.ratio.high / self.ratio.low) / 2 / _NORMAL.inv_cdf(1 - ALPHA / 2)
        return deviation * (_NORMAL.inv_cdf(1 - ALPHA / 2 / max(tests, 1)) + _NORMAL.inv_cdf(power))

    def judge(self, p: float | None, detectable: float | None, relevant: float) -> Answer:
        """Tell what is known, given the p-value corrected for all tests and the least relevant difference.

        A difference is believed if test and interval agree on it.
        """
        low, high = self.ratio.low, self.ratio.high
        if p is None or detectable is None or low is None or high is None:
            return "undecided"
        if p < ALPHA and not low <= 1 <= high:
            return "slower" if self.ratio.value > 1 else "faster"
        return "same" if detectable <= relevant else "undecided"


def difference(a: Sample, b: Sample) -> Difference:
    """Set the launches of one case against those of another, of any run."""
    one, other = (np.log(sample.medians) for sample in (a, b))
    ranked = min(len(one), len(other)) >= _FEWEST_RANKED and not (a.rounding or b.rounding)
    apart = b.level.over(a.level)
    return _difference(
        (a, b),
        (len(one), len(other)),
        ratio=shift(one, other) if ranked else apart.estimate(),
        p=mann_whitney(one, other) if ranked else p_value(apart),
        effect=float(np.sign(other[:, None] - one[None, :]).mean()),
        test="Mann-Whitney" if ranked else "Welch",
    )


def paired(a: Sample, b: Sample) -> Difference:
    """Set the launches of one case against those of another in the same rounds; others are left out.

    Where few rounds have both, the launches are two sets.
    """
    pairs = pair_logs(b, a)
    if pairs is None:
        return difference(a, b)
    apart = level(pairs).widened(a.rounding, b.rounding)
    return _difference(
        (a, b),
        (len(pairs), len(pairs)),
        ratio=apart.estimate(),
        p=p_value(apart),
        effect=float(np.sign(pairs).mean()),
        test="Yuen, pairs" if len(pairs) >= TRIMMED else "paired t",
    )


def _difference(
    sides: tuple[Sample, Sample],
    launches: tuple[int, int],
    *,
    ratio: Estimate,
    p: float | None,
    effect: float,
    test: str,
) -> Difference:
    return Difference(
        a_s=sides[0].estimate,
        b_s=sides[1].estimate,
        a_launches=launches[0],
        b_launches=launches[1],
        ratio=ratio,
        effect=None if p is None else effect,
        test="" if p is None else test,
        p=p,
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
    from scipy.stats import mannwhitneyu  # noqa: PLC0415 - see above

    return float(mannwhitneyu(a, b, method="asymptotic").pvalue)


def p_value(apart: Level) -> float | None:
    """Return the two-sided chance of a difference as large between equals; None where nothing is known."""
    if apart.error is None:
        return None
    if not apart.error > 0:
        return 1.0 if apart.value == 0 else 0.0
    from scipy.special import stdtr  # noqa: PLC0415 - a quarter of the time of scipy.stats, as reports use it

    return 2 * float(stdtr(apart.degrees, -abs(apart.value) / apart.error))


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979), in the same order."""
    order = np.argsort(values, kind="stable")
    steps = np.asarray(values, np.float64)[order] * np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return list(corrected.tolist())
