"""Where the level of a series of runs changes for good, and how sure that is.

What is left between runs is a share that keeps its own memory, half of it from run to run, and one that each
run draws anew. How large either is, nobody knows beforehand: likelihoods are averaged over shares, so that a
machine that drifts is not taken for a program that changes. The launches within runs tell the least that must
be left.

The optimal partition proposes (Jackson et al. 2005, https://doi.org/10.1109/LSP.2001.838216). A change holds
if the likelihood ratio for it passes a bound, which is set for few false alarms in histories that are judged
after each of 40 runs, however large the share that drifts is (benchmarks/history.py); and if hardly any
permutation of the same runs shows as much: what is left of them is made independent, permuted with random
signs, and made as dependent as before. A change that is not new, and at which nothing else changed, has to be
clearer: it was looked for before, and not found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Places = NDArray[np.int64]

LEAST = 2  # runs at a level: one alone may be another's fault
FEWEST = 8  # runs that say anything
CERTAIN = 0.02  # p-value of a change
_MEMORY = 0.5  # correlation of what runs keep with that of the run before
_SHARES = (0.0, 0.15, 0.35, 0.6, 0.8, 0.93, 0.99)  # of the variance between runs that has this memory
_DOUBTS = (0.0, 2.5, 5.0, 6.0, 6.0, 7.2, 9.0)  # logarithms: weight of each share if nothing has changed
_BOUND = 0.45  # logarithm of the likelihood ratio of a change
_OLD = 3.0  # as much more if the change is not new, and nothing else changed there
_FASTER = 2.0  # as much more for a faster level: to find one a run later fails no check
_REACH = 40  # runs on either side of a change that it is judged by
_PROPOSED, _MARKED = 4.5, 2.5  # cost of a change in the partition of 40 runs, over the variance of noise
_DRAWS = (49, 999)  # the first tell what is no change at all
_SPIKE = 3.0  # deviations by which one run may lie outside both of its neighbours
_TRIMMED = 0.9
_OF_TRIMMED = 0.66  # mean of the lower nine tenths of squares of normal values
_TINY = 1e-12  # of a sum of squares: what a change cannot explain is at least that
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

    `evidence` is the logarithm of the likelihood ratio, less what it has to be: it holds above 0.
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
    places = [change.at for change in found]
    more = _likeliest(known, places[-1] if places else 0, inside)
    return _certain(known, [*places, *more], inside) or found if more else found


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
        worst = max(found, key=lambda change: (change.p, -change.evidence))
        if worst.p <= CERTAIN:
            return found
        places = [place for place in places if place != worst.at]
    return []


def _judged(series: Series, before: int, at: int, after: int, marks: Sequence[int]) -> Change:
    """Return a change with its p-value between the changes before and after it."""
    start, stop = max(before, at - _REACH), min(after, at + _REACH)
    part, asked = series.part(start, stop), _asked(series, start, stop, marks)
    evidence = float(_evidence(part, asked)[at - start - LEAST])
    return Change(
        at=at, p=_p_value(part, at - start, asked, evidence) if evidence > 0 else 1.0, evidence=evidence
    )


def _likeliest(series: Series, start: int, marks: Sequence[int]) -> list[int]:
    """Return the place with most evidence of a change after the last known one, if there is any."""
    start, stop = max(start, len(series.values) - 2 * _REACH), len(series.values)
    if stop - start < 2 * LEAST:
        return []
    evidence = _evidence(series.part(start, stop), _asked(series, start, stop, marks))
    place = int(evidence.argmax())
    return [start + LEAST + place] if evidence[place] > 0 else []


def _asked(series: Series, start: int, stop: int, marks: Sequence[int]) -> Vector:
    """Return the likelihood ratios that changes between runs have to exceed, by place."""
    asked = np.full(stop - start - 2 * LEAST + 1, _BOUND + _OLD)
    asked[[mark - start - LEAST for mark in marks if start + LEAST <= mark <= stop - LEAST]] = _BOUND
    if stop == len(series.values):
        asked[-1] = _BOUND
    return asked


def _evidence(part: Series, asked: Vector) -> Vector:
    return np.asarray(_likelihood_ratios((part.values - part.values.mean())[None], part)[0] - asked)


def without_spikes(values: Vector) -> Vector:
    """Return the values with single ones that lie outside both neighbours moved towards them.

    The newest has one neighbour alone, and would make a level of the two: it becomes equal to that, unless
    that one is the spike.
    """
    if len(values) < FEWEST:
        return values
    spread = 1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)
    before, after = np.r_[values[1], values[:-1]], np.r_[values[1:], values[-2]]
    low, high = np.minimum(before, after), np.maximum(before, after)
    kept = np.clip(values, low - _SPIKE * spread, high + _SPIKE * spread)
    if kept[-2] == values[-2] and kept[-1] != values[-1]:
        kept[-1] = kept[-2]
    elif kept[-2] != values[-2]:
        kept[-1] = values[-1]
    return kept


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
    lengths = np.arange(count, 0.0, -1.0)  # of what begins at each place and ends at the last
    best, begins = np.full(count + 1, np.inf), np.zeros(count + 1, np.int64)
    best[0] = -cost[0]
    head, room = best + cost - powers, np.empty(count)
    for stop in range(LEAST, count + 1):
        last = stop - LEAST + 1
        total = np.subtract(sums[:last], sums[stop], room[:last])  # in place: a long history has many
        total *= total
        total /= lengths[count - stop : count - stop + last]
        np.subtract(head[:last], total, total)
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
    """What makes so many runs independent if this share of them drifts."""

    share: float
    whiten: Vector
    log: float  # of the likelihood, for what makes them dependent and for a common level
    level: Vector  # direction of a common level, once independent
    steps: Vector  # a column for each first run of a new level: its direction beside that


@lru_cache(maxsize=3 * _REACH)
def _models(count: int) -> tuple[_Model, ...]:
    found = []
    for share in _SHARES:
        whiten = np.asarray(np.linalg.inv(_colour(share, count)), np.float64)
        sums = np.cumsum(whiten[:, ::-1], axis=1)[:, ::-1]
        length = float(np.linalg.norm(sums[:, 0]))
        level = sums[:, 0] / length
        steps = sums[:, LEAST : count - LEAST + 1]
        steps = steps - np.outer(level, level @ steps)
        steps /= np.linalg.norm(steps, axis=0)
        log = float(np.log(np.diag(whiten)).sum()) - math.log(length)
        found.append(_Model(share=share, whiten=whiten, log=log, level=level, steps=steps))
    return tuple(found)


def _colour(share: float, count: int) -> Vector:
    """Return what makes independent runs as dependent as a drift of that share."""
    apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    return np.asarray(np.linalg.cholesky(share * _MEMORY**apart + (1 - share) * np.eye(count)))


def _likelihood_ratios(values: Vector, part: Series) -> Vector:
    """Return logarithms of likelihood ratios by series and place: of a change there to none at all.

    `values` have a row for each series, as long as `part` and as noisy within its runs. Likelihoods are
    averages over the shares that may drift.
    """
    degrees = int(part.degrees.sum())
    inner = max(part.variance, _LEAST_VARIANCE) * max(degrees, 1)
    none, some = [], []
    for model, doubt in zip(_models(values.shape[1]), _DOUBTS, strict=True):
        white = values @ model.whiten.T
        known = model.log - degrees / 2 * math.log(1 - model.share)
        own = inner / (1 - model.share) if degrees else inner
        left = (white**2).sum(axis=1) - (white @ model.level) ** 2 + own
        power = -(values.shape[1] - 1 + degrees) / 2
        none.append(known + doubt + power * np.log(left))
        along = white @ model.steps
        some.append(
            known
            + power * np.log(np.maximum(left[:, None] - along**2, _TINY * left[:, None]))
            - _FASTER * (along < 0)
        )
    return _added(np.array(some)) - _added(np.array(none))[:, None]


def _added(logs: Vector) -> Vector:
    """Return the logarithm of the sum over shares, the first axis."""
    most = logs.max(axis=0)
    return np.asarray(most + np.log(np.exp(logs - most).sum(axis=0)))


def _p_value(part: Series, place: int, asked: Vector, evidence: float) -> float:
    """Return the chance that noise shows as much evidence of a change anywhere."""
    random = np.random.default_rng(len(part.values))
    left, colour = _left(part, place)
    p = 1.0
    for draws in _DRAWS:
        drawn = random.permuted(np.tile(left, (draws, 1)), axis=1)
        drawn *= random.choice([-1.0, 1.0], drawn.shape)
        shown = (_likelihood_ratios(drawn @ colour.T, part) - asked).max(axis=1)
        p = (1 + int((shown >= evidence).sum())) / (draws + 1)
        if p > 2 / _DRAWS[0]:
            break
    return p


def _left(part: Series, place: int) -> tuple[Vector, Vector]:
    """Return what levels about a place leave of the runs, independent, and what makes it dependent again.

    The share that drifts is that of runs which are all at one level: a level that fits a drift leaves too
    small a share, and too small a one is a false alarm.
    """
    count = len(part.values)
    colour = _colour(float(_shares(part, []) @ _SHARES), count)
    design = np.linalg.solve(colour, np.column_stack([_levels(count, [place]), part.values]))
    basis, _ = np.linalg.qr(design[:, :-1])
    left: Vector = design[:, -1] - basis @ (basis.T @ design[:, -1])
    return left * math.sqrt(count / (count - basis.shape[1])), colour


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
    for model in _models(count):
        upper = np.asarray(np.linalg.qr(model.whiten @ design, mode="r"))
        squares = float(upper[-1, -1] ** 2) + (inner / (1 - model.share) if degrees else inner)
        free = count - len(places) - 1 + degrees
        logs = np.log(np.diag(model.whiten)).sum() - np.log(np.abs(np.diag(upper)[:-1])).sum()
        log = float(logs) - degrees / 2 * math.log(1 - model.share)
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
