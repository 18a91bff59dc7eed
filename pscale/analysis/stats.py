"""Step times and what is known of them: robust means over launches, with 95 % intervals.

The unit of repetition is the launch: its value is the median over its steady steps. Over launches, and over
rounds for a ratio, the mean of logarithms counts, as times are positive and differ by factors: from seven on
without a seventh of them at either end, with Yuen's interval (1974, "The two-sample trimmed t for unequal
population variances", https://doi.org/10.1093/biomet/61.1.165). Launches of one round follow each other, so
that what the machine does meanwhile cancels in their ratio. From one launch nothing can be known of what
differs between launches: it has no interval.

Times that a program prints are known to half a unit of their last digit. Where launches scatter by less,
all of them are wrong by the same amount, which no number of launches tells: it is an uncertainty of its own
("Guide to the expression of uncertainty in measurement", 4.3.7). Where they scatter by more, digits are noise
that is part of their scatter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pscale.runs.step_time import Steady, Vector, median, steady, steady_parts, step_times

if TYPE_CHECKING:  # it takes long to load, and a list of runs does without
    import pandas as pd

DRAWS = 2000  # of a bootstrap
VAGUE = 4.0  # upper over lower end of an interval that says nothing: known worse than to a factor of two
_CONFIDENCE = 0.95
_NORMAL = 1.959964  # quantile of the normal distribution for 95 %
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # Student's, 1 … 9 degrees
TRIMMED = 7  # one in so many values is left out at either end, so none of fewer
_OF_FEW = 1.6  # of so few Yuen's interval is too narrow: found by simulation of normally distributed values
_FEWEST_PAIRS = (
    5  # of fewer the degrees of freedom that pairs lose widen the interval more than pairs narrow it
)
_COMPLETE = 0.75  # of the launches of the side that has fewer
_MOST_LOG = 700.0  # of a floating-point number
_MOST_DEGREES = 1e6
_HALF_UNIT = 0.6  # standard errors: 0.58 for an even distribution, more as ratios of two are not normal
_COARSE = 0.5  # of an error: digits of which it consists by more are the first to be improved
_LEAST_SHARE = 1e-3  # of a value: what is left of one that is all rounding

Case = TypeVar("Case", bound=Any)  # with a size in cores, and whether its suite names it as a base
Paces = Mapping[tuple[str, int], Sequence[float]]  # by case and repeat: one a measured step


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value and its 95 % interval; the bounds are None where there is nothing to resample."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def stated(self) -> tuple[float, float] | None:
        """The interval where it says something: None without one, and where its ends are `VAGUE` times apart.

        That is so for two launches that differ by more than chance lets them: all that is known is the value.
        Values that may be zero or negative have no such ends.
        """
        if self.low is None or self.high is None or 0 < VAGUE * self.low < self.high:
            return None
        return self.low, self.high

    @property
    def half_width(self) -> float | None:
        """Half of the interval over the value; None without an interval."""
        if self.low is None or self.high is None or not self.value:
            return None
        return (self.high - self.low) / 2 / abs(self.value)

    def times(self, factor: float) -> Estimate:
        """Return the same in other units: value and bounds times a factor above 0."""
        low, high = (None if bound is None else bound * factor for bound in (self.low, self.high))
        return Estimate(value=self.value * factor, low=low, high=high)

    def rate(self, amount: float) -> Estimate:
        """Return an amount over this time."""
        low, high = (amount / bound if bound else None for bound in (self.high, self.low))
        return Estimate(value=amount / self.value, low=low, high=high)

    def at_most(self, most: float) -> Estimate:
        """Return the interval within a bound that the value cannot pass."""
        if self.high is None or self.high <= most:
            return self
        return replace(self, high=max(self.value, most))


@dataclass(frozen=True, kw_only=True)
class Level:
    """A robust mean, mostly of logarithms, its standard error and the degrees of freedom of that."""

    value: float
    error: float | None  # None from a single value
    degrees: float = math.inf

    def estimate(self, factor: float = 1.0) -> Estimate:
        """Return `factor` times what it is the logarithm of, with its interval."""
        value = factor * math.exp(self.value)
        if self.error is None:
            return Estimate(value=value)
        reach = math.exp(min(student_quantile(self.degrees) * self.error, _MOST_LOG))
        return Estimate(value=value, low=value / reach, high=value * reach)

    def plain(self) -> Estimate:
        """Return it with its interval where it is no logarithm."""
        if self.error is None:
            return Estimate(value=self.value)
        reach = student_quantile(self.degrees) * self.error
        return Estimate(value=self.value, low=self.value - reach, high=self.value + reach)

    def widened(self, *errors: float) -> Level:
        """Return it with further standard errors, which are independent of the number of launches."""
        if self.error is None or not any(errors):
            return self
        total = math.hypot(self.error, *errors)
        share = (self.error / total) ** 4 / self.degrees
        return Level(
            value=self.value, error=total, degrees=min(1 / share if share else math.inf, _MOST_DEGREES)
        )

    def over(self, other: Level) -> Level:
        """Return the difference of two that have nothing in common, by Welch."""
        value = self.value - other.value
        if self.error is None or other.error is None:
            return Level(value=value, error=None)
        squares = [self.error**2, other.error**2]
        own = sum(square**2 / side.degrees for square, side in zip(squares, (self, other), strict=True))
        return Level(
            value=value, error=sum(squares) ** 0.5, degrees=sum(squares) ** 2 / own if own else math.inf
        )


def level(values: Vector) -> Level:
    """Return the mean of values, mostly logarithms: without a seventh of them at either end."""
    count = len(values)
    cut = count // TRIMMED
    ordered = np.sort(values)
    kept = ordered[cut : count - cut]
    left, value = len(kept), float(kept.mean())
    if count == 1:
        return Level(value=value, error=None)
    spread = float(np.clip(ordered, kept[0], kept[-1]).std(ddof=1))
    widen = 1 + _OF_FEW * cut / (left * (left - 1))
    return Level(value=value, error=widen * spread * math.sqrt(count) / left, degrees=left - 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """The launches of a case that ended well, with the step time of each, in seconds; or another figure."""

    medians: tuple[float, ...]  # of each launch's steady steps
    repeats: tuple[int, ...] = ()  # the round of each launch
    steps: int = 0  # steady ones, over all launches
    dropped: int = 0  # measured, but before the series was steady
    levels: tuple[float, ...] = ()  # of each launch: mean logarithm of its steady steps, if there are paces
    paces: tuple[float, ...] = ()  # likewise of a fixed piece of work beside them; empty if any has none
    unsteady: int = 0  # launches whose second half was still changing
    mean: float = float("nan")
    deviation: float = float("nan")
    fastest: float = float("nan")
    slowest: float = float("nan")
    course: tuple[float, ...] = ()  # by step, all measured ones: medians over the launches
    resolution: float = 0.0  # unit of the last digit of what a program printed; 0: known to all digits

    @property
    def launches(self) -> int:
        """How many they are."""
        return len(self.medians)

    @property
    def value(self) -> float:
        """The step time."""
        return self.estimate.value

    @cached_property
    def estimate(self) -> Estimate:
        """The figure with its interval: by logarithms, or as it is where it may be zero or negative."""
        return self.level.plain() if self.logs is None else self.level.estimate()

    @cached_property
    def level(self) -> Level:
        """The mean of the logarithms of its launches, or of its values where these have none.

        Times that a coarse clock reads as zero have none: untrimmed, their mean is right on average.
        """
        return level(np.array(self.medians) if self.logs is None else self.logs).widened(self.rounding)

    @cached_property
    def rounding(self) -> float:
        """The standard error of its level by the digits that were printed."""
        if not self.resolution:
            return 0.0
        values, unit = np.array(self.medians), self.resolution
        if self.logs is not None:
            middle, half = float(np.median(values)), unit / 2
            values = self.logs
            unit = math.log((middle + half) / max(middle - half, _LEAST_SHARE * middle))
        scatter = max(0.0, float(values.var(ddof=1)) / unit**2 - 1 / 12) if len(values) > 1 else 0.0
        return _HALF_UNIT * unit / 2 * math.exp(-4 * math.pi**2 * scatter)

    @property
    def coarse(self) -> bool:
        """Whether its error is mostly that of printed digits, so that more of them would tell more."""
        return bool(self.level.error) and self.rounding > _COARSE * (self.level.error or 0.0)

    @cached_property
    def logs(self) -> Vector | None:
        """The logarithms of its launches; None where there are none."""
        return np.log(self.medians) if min(self.medians) > 0 else None


def sample(launches: Sequence[Vector], parts: Sequence[Steady] | None = None) -> Sample:
    """Return what the launches' steps tell, each a series in order; `parts` are those that are steady."""
    found = parts or [steady(times) for times in launches]
    kept = [np.sort(times[part.start :]) for times, part in zip(launches, found, strict=True)]
    pooled = kept[0] if len(kept) == 1 else np.concatenate(kept)
    return Sample(
        medians=tuple(median(times) for times in kept),
        steps=len(pooled),
        dropped=sum(part.start for part in found),
        unsteady=sum(not part.reached for part in found),
        mean=float(pooled.mean()),
        deviation=float(pooled.std(ddof=1)) if len(pooled) > 1 else 0.0,
        fastest=float(pooled.min()),
        slowest=float(pooled.max()),
        course=_course(launches),
    )


def _course(launches: Sequence[Vector]) -> tuple[float, ...]:
    if len(launches) == 1:
        return tuple(launches[0].tolist())
    shortest = min(map(len, launches))
    return tuple(np.median([times[:shortest] for times in launches], axis=0).tolist())


def lower_median(values: Iterable[float | None]) -> float:
    """Return the median of the values that are known, of two the lower; 0 without any.

    Of resolutions: programs that leave out last zeros print some values with fewer digits than they have.
    """
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    return known[(len(known) - 1) // 2] if known else 0.0


def student_quantile(degrees: float) -> float:
    """Return what Student's t exceeds, to either side, 5 times in 100."""
    if degrees <= len(_STUDENT):
        known = range(len(_STUDENT), 0, -1)
        logs = np.log(_STUDENT[::-1])
        return float(np.exp(np.interp(1 / max(degrees, 1), [1 / each for each in known], logs)))
    return _NORMAL + 2.372 / degrees + 2.823 / degrees**2


def estimate(value: float, draws: Vector) -> Estimate:
    """Return the value with the central 95 % of the draws of a bootstrap."""
    if not np.isfinite(draws).all():
        return Estimate(value=value)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Estimate(value=value, low=float(low), high=float(high))


def ratio(above: Sample, below: Sample, factor: float = 1.0) -> Estimate:
    """Return factor * above / below, from the launches of a run: in pairs where rounds are complete."""
    if above is below:
        return Estimate(value=factor, low=factor, high=factor)
    pairs = pair_logs(above, below)
    if pairs is not None:
        return level(pairs).widened(above.rounding, below.rounding).estimate(factor)
    if above.logs is None or below.logs is None:
        return Estimate(value=factor * above.value / below.value)
    return above.level.over(below.level).estimate(factor)


def work_ratio(
    scaling: str,
    cores: tuple[int, int],
    flops: tuple[float | None, float | None],
    stated: tuple[float | None, float | None] = (None, None),
) -> float:
    """Return the work of a case's step over that of its base: as stated, else by FLOPs, else by size.

    Times this and the cores of the base over its own, the ratio of their step times is its efficiency.
    """
    if stated[0] and stated[1]:
        return stated[0] / stated[1]
    if scaling == "strong":
        return 1.0
    own, base = flops
    return own / base if own and base else cores[0] / cores[1]


def base_of(cases: Iterable[Case]) -> Case | None:
    """Return the base of a series: the case that the suite names, else the smallest.

    `cases` are all that were planned: one that failed is not replaced by the next, whose 100 % are others.
    """
    members = list(cases)
    named = [case for case in members if case.base]
    return min(named or members, key=lambda case: case.cores, default=None)


def pair_logs(above: Sample, below: Sample) -> Vector | None:
    """Return the logarithms of the ratios of launches of the same rounds, in order.

    None where too few rounds have both: those of one side alone would be lost.
    """
    if above.logs is None or below.logs is None:
        return None
    other = dict(zip(below.repeats, below.logs.tolist(), strict=False))
    own = zip(above.repeats, above.logs.tolist(), strict=False)
    found = [log - other[repeat] for repeat, log in own if repeat in other]
    complete = len(found) >= _COMPLETE * min(above.launches, below.launches)
    return np.array(found) if complete and len(found) >= _FEWEST_PAIRS else None


def samples(steps: pd.DataFrame, paces: Paces | None = None) -> dict[str, Sample]:
    """Return the launches of every case.

    `steps` has a row a step and launch, `case repeat step end_s`: when it ended on the last rank.
    """
    table = steps.sort_values(["case", "repeat", "step"], kind="stable")
    case, repeat = table["case"].factorize()[0], table["repeat"].to_numpy()
    new = np.flatnonzero((np.diff(case) != 0) | (np.diff(repeat) != 0)) + 1
    if table.empty:
        return {}
    launches = [step_times(ends_s) for ends_s in np.split(table["end_s"].to_numpy(dtype=np.float64), new)]
    lengths: dict[int, list[int]] = {}
    for place, times in enumerate(launches):
        lengths.setdefault(len(times), []).append(place)
    parts: dict[int, Steady] = {}
    for places in lengths.values():  # those with equally many steps are looked at together
        same = steady_parts(np.stack([launches[place] for place in places]))
        parts |= zip(places, same, strict=True)
    found: dict[str, list[int]] = {}
    for place, name in enumerate(table["case"].iloc[[0, *new]].astype(str)):
        found.setdefault(name, []).append(place)
    repeats = repeat[[0, *new]]

    def of_case(case: str, places: Sequence[int]) -> Sample:
        own = [launches[place] for place in places]
        known = sample(own, [parts[place] for place in places])
        beside = [(paces or {}).get((case, int(repeats[place])), ()) for place in places]
        known = replace(known, repeats=tuple(repeats[places].tolist()))
        if list(map(len, beside)) != list(map(len, own)):
            return known
        starts = [parts[place].start for place in places]
        return replace(known, levels=_levels(own, starts), paces=_levels(beside, starts))

    return {case: of_case(case, places) for case, places in found.items()}


def _levels(launches: Sequence[Sequence[float] | Vector], starts: Sequence[int]) -> tuple[float, ...]:
    """Return the mean logarithm of each launch's steady values; nothing if any value has none."""
    kept = [np.asarray(values)[start:] for values, start in zip(launches, starts, strict=True)]
    if not all((values > 0).all() for values in kept):
        return ()
    return tuple(float(np.log(values).mean()) for values in kept)
