"""Whether the step times of two cases differ: ratio, interval, effect, test, and detectable difference.

Launches are compared, as steps of one launch are not independent. Those of one run in the same round are
pairs, tested by Student's t on logarithms of their ratios (Yuen's of the trimmed mean, from seven pairs on):
ratio and interval are those of the report. Two sets of launches are tested by Mann and Whitney's rank test,
which assumes no distribution. The ratio is the median of all ratios of a launch to one of the other set, its
interval those ratios that the test does not reject (Hodges and Lehmann 1963,
https://doi.org/10.1214/aoms/1177704172). With too few launches for a small p-value, or too few printed
digits, the test is Welch's.

`scipy.stats` takes a second to import, so that only comparisons of two runs load it, never reports.

Where a fixed piece of work was timed beside every step (`worker.measure`), launches are compared at the
same pace of the machine. On logarithms a launch's level is the mean over its steady steps, and so is its
pace: a machine that changes between two speeds moves means of both equally, while their medians jump at
different times. Adjusting by a covariate that the comparison cannot have changed is the analysis of
covariance (Fisher 1932, "Statistical methods for research workers", section 49.1).

The coefficient is that of launches of one side among each other, never of one side against the other: the
median of the slopes between any two, each with the distance of its paces for a weight (Sen 1968,
https://doi.org/10.1080/01621459.1968.10480934; weights: Jaeckel 1972). One launch in many that is slow for
a reason of its own does not change it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

from pscale.analysis.stats import TRIMMED, Estimate, Level, Sample, level, pair_logs, ratio, student_quantile
from pscale.runs.step_time import Vector

ALPHA = 0.05
POWER = 0.8
EQUAL = 0.05  # of a step time: where the interval is within, the order does not matter
RELEVANT = 0.05  # of a step time: the least difference that has to be seen to call two equal
MOST_ROUNDS = 200  # that are worth advising
_LEAST = 0.005  # of a step time: less is not slower, however certain
_FEWEST_RANKED = 7  # launches a side: 3,432 orders of two times seven, so that p can be as small as 0.0006
_FEWEST_PACED = 7  # launches a side: 42 slopes
_CERTAIN = 0.001  # chance of a difference in pace between two variants that is taken for one of theirs
_LEAST_P = 1e-300
_NORMAL = NormalDist()

Answer = Literal["faster", "slower", "equal", "undecided"]  # the only one that comparisons have


def decided(answer: str) -> bool:
    """Tell whether one of the two is faster."""
    return answer in ("faster", "slower")


def answer_of(ratio: Estimate, *, differs: bool, equal: bool) -> Answer:
    """Return what a ratio to the reference tells, whose interval has to agree that it `differs`."""
    if ratio.low is None or ratio.high is None:
        return "undecided"
    if differs and not ratio.low <= 1 <= ratio.high:
        return "slower" if ratio.value > 1 else "faster"
    return "equal" if equal else "undecided"


def _rounds_to_see(error: float, apart: float, rounds: float, tests: int = 1) -> float:
    """Return how many rounds see logarithms that are so far `apart` with probability `POWER`.

    Their difference has such an error after `rounds`; `tests` are made at once. Errors fall as the root of
    the number of rounds.
    """
    return rounds * (_seen(tests) * error / apart) ** 2


def _seen(tests: int) -> float:
    """Return how many standard errors a difference has to have."""
    return _NORMAL.inv_cdf(1 - ALPHA / 2 / max(tests, 1)) + _NORMAL.inv_cdf(POWER)


def more_rounds(half_width: float, apart: float, rounds: int) -> int | None:
    """Return how many rounds more should distinguish two values, where `rounds` give an interval so wide.

    None where no number of them that is worth advising does.
    """
    error = half_width / student_quantile(max(1, rounds - 1))
    if apart <= 0 or (needed := _rounds_to_see(error, apart, rounds)) > MOST_ROUNDS:
        return None
    return max(1, math.ceil(needed) - rounds)


class Standing(NamedTuple):
    """A step time relative to a reference: the ratio of the report, and what that tells."""

    ratio: Estimate
    answer: Answer
    rounds_to_decide: int | None = None  # None where decided or no number is known to


def standing(times: Sample, reference: Sample, factor: float = 1.0) -> Standing:
    """Set `factor` times a step time against that of a reference, by the interval of their ratio alone."""
    over = ratio(times, reference, factor)
    if over.low is None or over.high is None:
        return Standing(over, "undecided")
    apart, half_width = abs(math.log(over.value)), math.log(over.value / over.low)
    within = max(over.high, 1 / over.low) <= 1 + EQUAL
    answer = answer_of(over, differs=apart > math.log1p(_LEAST), equal=within)
    if answer != "undecided":
        return Standing(over, answer)
    rounds = min(times.launches, reference.launches)
    return Standing(over, answer, more_rounds(half_width, max(apart, math.log1p(EQUAL) - apart), rounds))


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
    scatter: float | None = None  # standard deviation of logarithms of launches about their side's mean
    scatter_at_pace: float | None = None  # at the same pace of the machine, which is what was compared
    pace_slope: float | None = None  # relative change of the step time over that of the pace
    pace_ratio: float | None = None  # time of the fixed work in B over that in A

    @property
    def _error(self) -> float | None:
        """The standard error of the logarithm of the ratio, by the width of its interval."""
        if self.ratio.low is None or self.ratio.high is None:
            return None
        return math.log(self.ratio.high / self.ratio.low) / 2 / _NORMAL.inv_cdf(1 - ALPHA / 2)

    def detectable_with(self, tests: int) -> float | None:
        """Return the relative difference that would have been seen with probability `POWER`.

        `tests` such comparisons are made at once.
        """
        return None if self._error is None else math.expm1(self._error * _seen(tests))

    def launches_for(self, relevant: float, tests: int = 1) -> int | None:
        """Return how many launches of each would see a difference of `relevant` with probability `POWER`."""
        if self._error is None:
            return None
        launches = 2 / (1 / self.a_launches + 1 / self.b_launches)
        return math.ceil(_rounds_to_see(self._error, math.log1p(relevant), launches, tests))

    def judge(self, p: float | None, tests: int = 1, relevant: float = RELEVANT) -> Answer:
        """Return the answer, given the p-value corrected for all tests and the least relevant difference.

        A difference is believed if test and interval agree on it.
        """
        detectable = self.detectable_with(tests)
        if p is None or detectable is None:
            return "undecided"
        return answer_of(self.ratio, differs=p < ALPHA, equal=detectable <= relevant)


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


def paced(a: Sample, b: Sample) -> bool:
    """Tell whether enough is known of the pace of both."""
    return min(len(a.paces), len(b.paces)) >= _FEWEST_PACED


def at_same_pace(compare: Callable[[Sample, Sample], Difference], a: Sample, b: Sample) -> Difference:
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
    return replace(
        _widened(compare(*adjusted), _widening(gap, [paces for _, paces in sides])),
        pace_slope=slope,
        pace_ratio=math.exp(gap),
        scatter=_scatter([levels for levels, _ in sides]),
        scatter_at_pace=_scatter(left),
    )


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
