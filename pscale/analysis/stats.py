"""Step times and what is known of them: medians, and intervals by a hierarchical bootstrap.

The unit of repetition is the launch. A case's step time is the median over its launches of the median over
the steady steps of each; the interval resamples launches first and steps within them. Resampling works on
logarithms, as times are positive and differ by factors. From one launch nothing can be known of what differs
between launches, so that it has no interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from pscale.analysis.steady import Steady, Vector, steady, steady_parts

DRAWS = 2000
VAGUE = 4.0  # upper over lower end of an interval that says nothing: known worse than to a factor of two
_CONFIDENCE = 0.95
_NORMAL = 1.959964  # quantile of the normal distribution for 95 %
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # Student's, 1 … 9 degrees
# Of two, three or seven values too few different medians can be drawn for Student's quantile to be enough;
# these cover 95 % of medians of normally distributed launches, found by simulation.
_CALIBRATED = {2: 12.7, 3: 4.25, 7: 1.6}
_FEWEST_PARTED = 2

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
        """
        if self.low is None or self.high is None or not 0 < self.high <= VAGUE * self.low:
            return None
        return self.low, self.high

    @property
    def half_width(self) -> float | None:
        """Half of the interval over the value; None without an interval."""
        if self.low is None or self.high is None or not self.value:
            return None
        return (self.high - self.low) / 2 / abs(self.value)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """The step time of a case, in seconds, with bootstrap draws of it."""

    value: float
    draws: Vector | None  # None with a single launch
    launches: int
    steps: int  # steady ones, over all launches
    dropped: int  # measured, but before the series was steady
    medians: tuple[float, ...] = ()  # of each launch's steady steps
    repeats: tuple[int, ...] = ()  # which launches they are
    levels: tuple[float, ...] = ()  # of each launch: mean logarithm of its steady steps, if there are paces
    paces: tuple[float, ...] = ()  # likewise of a fixed piece of work beside them; empty if any has none
    unsteady: int = 0  # launches whose second half was still changing
    mean: float = float("nan")
    deviation: float = float("nan")
    fastest: float = float("nan")
    slowest: float = float("nan")
    course: tuple[float, ...] = ()  # by step, all measured ones: medians over the launches


def step_times(steps: pd.DataFrame) -> pd.DataFrame:
    """Return `case repeat step step_s`: the time between consecutive step ends of the slowest rank."""
    ends = steps.groupby(["case", "repeat", "step"], observed=True, sort=True)["end_s"].max().reset_index()
    before = ends.groupby(["case", "repeat"], observed=True)["end_s"].shift(fill_value=0.0)
    return ends.assign(step_s=ends["end_s"] - before).drop(columns="end_s")


def sample(launches: Sequence[Vector], seed: Sequence[int], parts: Sequence[Steady] | None = None) -> Sample:
    """Return the step time of the launches' steps, each a series in order; `seed` fixes the draws.

    `parts` are those that are steady, where they are known.
    """
    found = parts or [steady(times) for times in launches]
    kept = [np.sort(times[part.start :]) for times, part in zip(launches, found, strict=True)]
    medians = np.array([_median(times) for times in kept])
    pooled = kept[0] if len(kept) == 1 else np.concatenate(kept)
    return Sample(
        value=_median(np.sort(medians)),
        draws=_draws(kept, medians, seed),
        launches=len(launches),
        steps=len(pooled),
        dropped=sum(part.start for part in found),
        medians=tuple(medians.tolist()),
        unsteady=sum(not part.reached for part in found),
        mean=float(pooled.mean()),
        deviation=float(pooled.std(ddof=1)) if len(pooled) > 1 else 0.0,
        fastest=float(pooled.min()),
        slowest=float(pooled.max()),
        course=_course(launches),
    )


def _median(ordered: Vector) -> float:
    """Return the median of values in order; far quicker for few of them than what sorts them first."""
    middle = len(ordered) // 2
    return float(ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2)


def _course(launches: Sequence[Vector]) -> tuple[float, ...]:
    if len(launches) == 1:
        return tuple(launches[0].tolist())
    shortest = min(map(len, launches))
    return tuple(np.median([times[:shortest] for times in launches], axis=0).tolist())


def _draws(kept: list[Vector], medians: Vector, seed: Sequence[int]) -> Vector | None:
    """Draw medians over resampled launches of medians over resampled steps."""
    if len(kept) == 1 or not all(times[0] > 0 for times in kept):
        return None
    random = np.random.default_rng(list(seed))
    count, middle = len(kept), np.log(np.median(medians))
    launches = np.log(medians)
    within = np.log([_resampled_medians(times, random) for times in kept]) - launches[:, None]
    between = (launches - middle) * _few_launches(launches, within)
    chosen = random.integers(0, count, (count, DRAWS))
    noise = within[chosen, random.integers(0, DRAWS, (count, DRAWS))]
    return np.asarray(np.exp(middle + np.median(between[chosen] + noise, axis=0)))


def _resampled_medians(ordered: Vector, random: np.random.Generator) -> Vector:
    """Draw medians of resamples: the rank of the median of n uniform draws is a Beta variate."""
    count = len(ordered)
    place = random.beta((count + 1) / 2, (count + 1) / 2, DRAWS)
    return ordered[np.minimum((place * count).astype(np.intp), count - 1)]


def _few_launches(launches: Vector, within: Vector) -> float:
    """Return the factor by which launches must spread for a bootstrap of so few of them to cover.

    Resampling n values spreads sqrt((n - 1) / n) too little, and n - 1 degrees of freedom need Student's
    quantile (Hesterberg 2015, "What teachers should know about the bootstrap", section 5.4). Only the part
    of the variance that steps within a launch do not explain is widened; two launches cannot tell the parts.
    """
    count = len(launches)
    total = launches.var(ddof=1)
    if not total > 0:
        return 1.0
    share = max(0.0, 1 - within.var(axis=1).mean() / total) if count > _FEWEST_PARTED else 1.0
    degrees = count - 1
    factor = _CALIBRATED.get(count, student_quantile(degrees) / _NORMAL * (count / degrees) ** 0.5)
    return float(np.sqrt(1 + (factor**2 - 1) * share))


def student_quantile(degrees: int) -> float:
    """Return what Student's t exceeds, to either side, 5 times in 100."""
    return _STUDENT[degrees - 1] if degrees <= len(_STUDENT) else _NORMAL + 2.372 / degrees


def estimate(value: float, draws: Vector | None) -> Estimate:
    """Return the value with the central 95 % of its draws."""
    if draws is None or not np.isfinite(draws).all():
        return Estimate(value=value)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Estimate(value=value, low=float(low), high=float(high))


def ratio(above: Sample, below: Sample, factor: float = 1.0) -> Estimate:
    """Return factor * above / below; both are resampled, unless they are one and the same."""
    if above is below:
        return Estimate(value=factor, low=factor, high=factor)
    value = factor * above.value / below.value
    if above.draws is None or below.draws is None:
        return Estimate(value=value)
    return estimate(value, factor * above.draws / below.draws)


def samples(steps: pd.DataFrame, seed: int, paces: Paces | None = None) -> dict[str, Sample]:
    """Return the step time of every case in the table of step times; reproducible case by case."""
    table = step_times(steps)
    times = table["step_s"].to_numpy(dtype=np.float64)
    case, repeat = pd.factorize(table["case"])[0], table["repeat"].to_numpy()
    new = np.flatnonzero((np.diff(case) != 0) | (np.diff(repeat) != 0)) + 1
    if table.empty:
        return {}
    launches = np.split(times, new)
    found: dict[str, list[int]] = {}
    for place, name in enumerate(table["case"].iloc[[0, *new]].astype(str)):
        found.setdefault(name, []).append(place)
    parts = _steady_parts(launches)
    repeats = repeat[[0, *new]]

    def of_case(case: str, places: Sequence[int]) -> Sample:
        own = [launches[place] for place in places]
        known = sample(own, (seed, *case.encode()), [parts[place] for place in places])
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


def _steady_parts(launches: Sequence[Vector]) -> dict[int, Steady]:
    """Return the steady part of each launch; those with equally many steps are looked at together."""
    lengths: dict[int, list[int]] = {}
    for place, times in enumerate(launches):
        lengths.setdefault(len(times), []).append(place)
    return {
        place: part
        for places in lengths.values()
        for place, part in zip(places, steady_parts(np.stack([launches[one] for one in places])), strict=True)
    }
