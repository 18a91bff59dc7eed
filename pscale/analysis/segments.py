"""Where the level of a series of runs changes for good, and how sure that is.

What is left between runs is a share that keeps its own memory, half of it from run to run, and one that each
run draws anew. How large either is, nobody knows beforehand: likelihoods are averaged over shares, so that a
machine that drifts is not taken for a program that changes. The launches within runs tell the least that must
be left.

The optimal partition proposes (Jackson et al. 2005, https://doi.org/10.1109/LSP.2001.838216); each change has
then to stand against the largest one that the same series shows by chance: what is left of the runs is made
independent, permuted with random signs, and made as dependent as before. A change at a marked place is held
against that place alone, any other against all places of its surroundings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Places = NDArray[np.int64]

LEAST = 2  # runs at a level: one alone may be another's fault
FEWEST = 8  # runs that say anything
CERTAIN = 0.008  # p-value of a change; of two unmarked ones that undo each other, half of it
_MEMORY = 0.5  # correlation of what runs keep with that of the run before
_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95, 0.995)  # of the variance between runs that has this memory
_REACH = 40  # runs on either side of a change that it is judged by
_PROPOSED, _MARKED = 4.5, 2.5  # cost of a change in the partition of 40 runs, over the variance of noise
_WORTH, _WORTH_MARKED = 3.5, 2.0  # logarithms of likelihood ratios: less is hardly ever certain
_FASTER = 2.0  # that much more evidence for a faster level: to find one a run later fails no check
_DRAWS = (49, 999)  # the first tell what is no change at all
_FINEST = 5  # times as many
_OF_MARKS = 3  # p-values of changes at marks are taken so many times, for each mark
_CAUTION = 1.0  # standard deviations by which the share is taken larger than it seems
_CHOSEN = 5.0  # degrees of freedom that the best of all places takes more than one known beforehand
_SPIKE = 2.0  # deviations by which one run may lie outside both of its neighbours
_LONGEST = 10  # runs of a bump
_TRIMMED = 0.9
_OF_TRIMMED = 0.66  # mean of the lower nine tenths of squares of normal values
_LEAST_VARIANCE = 1e-8  # of a run: times are not known better than to 0.01 %


@dataclass(frozen=True, kw_only=True)
class Series:
    """Logarithms of the runs' times; `variance` of a run by its launches alone, with degrees of freedom."""

    values: Vector
    variance: float
    degrees: Places  # of each run: its launches but one

    def part(self, start: int, stop: int) -> Series:
        """Return some runs of it."""
        return replace(self, values=self.values[start:stop], degrees=self.degrees[start:stop])


@dataclass(frozen=True, kw_only=True)
class Change:
    """The first run at a new level, and the chance that noise alone shows as large a change.

    `evidence` is the logarithm of the likelihood ratio, which distinguishes changes beyond any chance.
    """

    at: int
    p: float
    evidence: float


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Variance of runs about their level, and the share of it that drifts."""

    variance: float
    share: float
    degrees: float

    def error(self, *counts: int) -> float:
        """Return the standard error of a sum or difference of the means of so many neighbouring runs each."""
        known = [self.share * _of_mean(count) + (1 - self.share) / count for count in counts]
        return math.sqrt(self.variance * sum(known))


def changes(series: Series, marks: Sequence[int] = ()) -> list[Change]:
    """Return all changes of the level in order; one at `marks` is believed sooner."""
    known, inside = _tamed(series), _inside(series, marks)
    if len(known.values) < FEWEST:
        return []
    found = _certain(known, _partition(known, inside), inside)
    if len(found) > 1 and not {change.at for change in found} & set(inside):
        found = found if _undoing(known, [change.at for change in found]) else []
    return found


def changes_at(series: Series, marks: Sequence[int]) -> list[Change]:
    """Return those of the marks at which the level changes."""
    inside = _inside(series, marks)
    known, found = _tamed(series), list[Change]()
    while inside and len(known.values) >= FEWEST:
        edges = [0, *(change.at for change in found), len(known.values)]
        judged = [
            _judged(
                known,
                max(edge for edge in edges if edge <= place - LEAST),
                place,
                min(edge for edge in edges if edge >= place + LEAST),
                inside,
            )
            for place in inside
        ]
        surest = min(judged, key=lambda change: (change.p, -change.evidence))
        if surest.p > CERTAIN:
            break
        found.append(surest)
        inside = [place for place in inside if abs(place - surest.at) >= LEAST]
    return sorted(found, key=lambda change: change.at)


def _tamed(series: Series) -> Series:
    return replace(series, values=without_spikes(series.values))


def _inside(series: Series, marks: Sequence[int]) -> list[int]:
    return [mark for mark in marks if LEAST <= mark <= len(series.values) - LEAST]


def _certain(series: Series, places: list[int], marks: Sequence[int]) -> list[Change]:
    """Return the changes that hold beside each other: the least certain is given up until all do."""
    known: dict[tuple[int, int, int], Change] = {}
    while places:
        around = list(zip([0, *places], places, [*places[1:], len(series.values)], strict=False))
        known |= {each: _judged(series, *each, marks) for each in around if each not in known}
        found = [known[each] for each in around]
        worst = max(found, key=lambda change: change.p)
        if worst.p <= CERTAIN:
            return found
        places = [place for place in places if place != worst.at]
    return []


def _judged(series: Series, before: int, at: int, after: int, marks: Sequence[int]) -> Change:
    """Return a change with its p-value between the changes before and after it."""
    start = max(before, at - _REACH)
    part = series.part(start, min(after, at + _REACH))
    near = [mark for mark in marks if at - _REACH <= mark < at + _REACH]
    count = len(near) if at in near else 0
    p, evidence = _p_value(part, [at - start], marks=count)
    return Change(at=at, p=_OF_MARKS * count * p if count else p, evidence=evidence)


def _undoing(series: Series, places: Sequence[int]) -> bool:
    """Tell whether several changes are more than the best of all pairs that noise shows."""
    start = max(0, places[-1] - 2 * _REACH, places[0] - _REACH)
    part = series.part(start, min(len(series.values), places[-1] + _REACH))
    inside = [place - start for place in places if place - start >= LEAST]
    if _p_value(part, inside)[0] <= CERTAIN:
        return True
    return _p_value(part, inside, bumps=True)[0] <= CERTAIN / 2


def without_spikes(values: Vector) -> Vector:
    """Return the values with single ones that lie outside both neighbours moved towards them."""
    if len(values) < FEWEST:
        return values
    spread = 1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)
    before, after = np.r_[values[1], values[:-1]], np.r_[values[1:], values[-2]]
    low, high = np.minimum(before, after), np.maximum(before, after)
    return np.clip(values, low - _SPIKE * spread, high + _SPIKE * spread)


def _partition(series: Series, marks: Sequence[int]) -> list[int]:
    """Return where levels begin in the partition that costs least."""
    values, count = series.values - series.values.mean(), len(series.values)
    squares = np.diff(values) ** 2
    apart = float(np.sort(squares)[: max(1, int(_TRIMMED * len(squares)))].mean()) / _OF_TRIMMED
    own = series.variance if series.degrees.any() else apart / 2
    drift = max(0.0, apart - 2 * own)
    cost = np.full(count + 1, _PROPOSED + 2 * max(0.0, math.log(count / _REACH)))
    cost[list(marks)] = _MARKED
    cost *= max(own + 3 * drift, _LEAST_VARIANCE)
    sums, powers = (np.concatenate([[0.0], np.cumsum(each)]) for each in (values, values**2))
    lengths = np.arange(count, 0, -1)  # of what begins at each place and ends at the last
    best, begins = np.full(count + 1, np.inf), np.zeros(count + 1, np.int64)
    best[0] = -cost[0]
    head = best + cost - powers
    for stop in range(LEAST, count + 1):
        last = stop - LEAST + 1
        total = head[:last] - (sums[stop] - sums[:last]) ** 2 / lengths[count - stop : count - stop + last]
        begins[stop] = place = int(total.argmin())
        best[stop] = total[place] + powers[stop]
        head[stop] = best[stop] + cost[stop] - powers[stop]
    found = []
    stop = int(begins[count])
    while stop > 0:
        found.append(stop)
        stop = int(begins[stop])
    return found[::-1]


@dataclass(frozen=True, kw_only=True)
class _Model:
    """What makes runs independent if this share of them drifts; leading blocks are of fewer runs."""

    share: float
    whiten: Vector
    logs: Vector  # of the diagonal of what makes them dependent, added up
    steps: Vector  # a column for each first run of a new level, made independent


@cache
def _models() -> tuple[_Model, ...]:
    count = 3 * _REACH
    places = np.arange(count)
    memory = _MEMORY ** np.abs(places[:, None] - places[None, :])
    found = []
    for share in _SHARES:
        colour = np.linalg.cholesky(share * memory + (1 - share) * np.eye(count))
        whiten = np.linalg.inv(colour)
        steps = np.cumsum(whiten[:, ::-1], axis=1)[:, ::-1]
        found.append(_Model(share=share, whiten=whiten, logs=np.log(np.diag(colour)).cumsum(), steps=steps))
    return tuple(found)


def _likelihoods(
    values: Vector, part: Series, *, bumps: bool = False, only: slice = slice(None)
) -> tuple[Vector, Vector]:
    """Return logarithms of likelihoods by share: without a change, and with one at each place of `only`.

    `values` have a row for each series that is as long as `part`, and as noisy within its runs.
    """
    count = values.shape[1]
    degrees = int(part.degrees.sum())
    inner = max(part.variance, _LEAST_VARIANCE) * max(degrees, 1)
    none, some = [], []
    for model in _models():
        white = values @ model.whiten[:count, :count].T
        level, steps = _directions(model, count, bumps=bumps)
        left = (white**2).sum(axis=1) - (white @ level[1]) ** 2
        known = -model.logs[count - 1] - math.log(level[0])
        known -= degrees / 2 * math.log(1 - model.share)
        within = inner / (1 - model.share) if degrees else inner
        power = -(count - 1 + degrees) / 2
        none.append(known + power * np.log(left + within))
        along = white @ steps[:, only]
        log = known + power * np.log(np.maximum(left[:, None] - along**2, 0.0) + within)
        some.append(log if bumps else log - _FASTER * (along < 0))
    return np.array(none), np.array(some)


def _directions(model: _Model, count: int, *, bumps: bool) -> tuple[tuple[float, Vector], Vector]:
    """Return length and direction of a common level, and the directions of all changes beside it."""
    steps = model.steps[:count, :count]
    length = float(np.linalg.norm(steps[:, 0]))
    level = steps[:, 0] / length
    if bumps:
        sizes = range(LEAST, min(_LONGEST, count - 2 * LEAST) + 1)
        chosen = np.hstack([steps[:, 1 : count - size] - steps[:, 1 + size :] for size in sizes])
    else:
        chosen = steps[:, LEAST : count - LEAST + 1]
    chosen = chosen - np.outer(level, level @ chosen)
    return (length, level), chosen / np.linalg.norm(chosen, axis=0)


def _added(logs: Vector) -> Vector:
    """Return the logarithm of the sum over shares, the first axis."""
    most = logs.max(axis=0)
    return np.asarray(most + np.log(np.exp(logs - most).sum(axis=0)))


def _p_value(
    part: Series,
    places: Sequence[int],
    *,
    marks: int = 0,
    bumps: bool = False,
) -> tuple[float, float]:
    """Return the chance that noise shows as large a change, and the evidence for it.

    It may be anywhere, or at the first place, which is one of so many `marks`: the finer the chance has to be
    known.
    """
    only = slice(places[0] - LEAST, places[0] - LEAST + 1) if marks else slice(None)

    def evidence(values: Vector) -> Vector:
        none, some = _likelihoods(values, part, bumps=bumps, only=only)
        return np.asarray(_added(some).max(axis=1) - _added(none))

    values = part.values - part.values.mean()
    seen = float(evidence(values[None])[0])
    if seen < (_WORTH_MARKED if marks else _WORTH):
        return 1.0, seen
    random = np.random.default_rng(len(values))
    left, colour = _left(part, places, chosen=0.0 if marks else _CHOSEN)
    p = 1.0
    for draws in (_DRAWS[0], _DRAWS[1] * min(max(marks, 1), _FINEST)):
        drawn = random.permuted(np.tile(left, (draws, 1)), axis=1) * random.choice(
            [-1.0, 1.0], (draws, len(left))
        )
        p = (1 + int((evidence(drawn @ colour.T) >= seen).sum())) / (draws + 1)
        if p > 2 / _DRAWS[0]:
            break
    return p, seen


def _left(part: Series, places: Sequence[int], chosen: float = 0.0) -> tuple[Vector, Vector]:
    """Return what levels between places leave of the runs, independent, and what makes it dependent again.

    The share that drifts is that of runs which are all at one level, and taken larger than it seems: a level
    that fits a drift leaves too small a share, and too small a one is a false alarm.
    """
    count = len(part.values)
    posterior = _shares(part, [])
    mean = float(posterior @ _SHARES)
    deviation = math.sqrt(max(0.0, float(posterior @ np.square(_SHARES)) - mean**2))
    share = min(_SHARES[-1], mean + _CAUTION * deviation)
    apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    colour = np.linalg.cholesky(share * _MEMORY**apart + (1 - share) * np.eye(count))
    design = np.linalg.solve(colour, np.column_stack([_levels(count, places), part.values]))
    basis, _ = np.linalg.qr(design[:, :-1])
    left: Vector = design[:, -1] - basis @ (basis.T @ design[:, -1])
    degrees = max(1.0, count - basis.shape[1] - chosen)
    return left * math.sqrt(count / degrees), np.asarray(colour)


def _levels(count: int, places: Sequence[int]) -> Vector:
    """Return a column of ones and zeros for each level."""
    edges = np.array([0, *places, count])
    level = np.searchsorted(edges, np.arange(count), side="right")
    return np.asarray(level[:, None] == np.arange(1, len(edges)), np.float64)


def _fits(part: Series, places: Sequence[int]) -> Iterator[tuple[float, float]]:
    """Yield, by share, the logarithm of the likelihood and the variance of runs about their levels."""
    count, degrees = len(part.values), int(part.degrees.sum())
    inner = max(part.variance, _LEAST_VARIANCE) * max(degrees, 1)
    design = np.column_stack([_levels(count, places), part.values - part.values.mean()])
    for model in _models():
        white = model.whiten[:count, :count] @ design
        upper = np.asarray(np.linalg.qr(white, mode="r"))
        squares = float(upper[-1, -1] ** 2) + (inner / (1 - model.share) if degrees else inner)
        free = count - len(places) - 1 + degrees
        own = float(np.log(np.abs(np.diag(upper)[:-1])).sum())
        log = -model.logs[count - 1] - own - degrees / 2 * math.log(1 - model.share)
        yield log - free / 2 * math.log(squares), squares / free


def _shares(part: Series, places: Sequence[int]) -> Vector:
    """Return how probable each share is."""
    logs = np.array([log for log, _ in _fits(part, places)])
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def noise(series: Series, places: Sequence[int]) -> Noise:
    """Return the noise of the newest runs about levels that begin at `places`."""
    start = max(0, len(series.values) - 3 * _REACH)
    part = _tamed(series).part(start, len(series.values))
    inside = [place - start for place in places if place > start]
    probable, variances = _shares(part, inside), np.array([each for _, each in _fits(part, inside)])
    return Noise(
        variance=float(probable @ variances),
        share=float(probable @ _SHARES),
        degrees=max(1.0, len(part.values) - len(inside) - 1.0),
    )


def _of_mean(count: int) -> float:
    """Return the variance of the mean of neighbouring values of variance 1 that have a memory."""
    across = (1 + _MEMORY) / (1 - _MEMORY) / count
    return across - 2 * _MEMORY * (1 - _MEMORY**count) / ((1 - _MEMORY) * count) ** 2
