"""The step time of a launch: the median over its steady steps.

A step lasts from the end of the one before on the slowest rank to its own end there. The warm-up ends as by
MSER, the marginal standard error rule (White 1997, "An effective truncation heuristic for bias reduction in
simulation output"; compared with others by Hoad, Robinson and Davies 2010): leave out as many leading steps
as makes the standard error of the mean of the rest least, and never more than half. Single slow steps are no
warm-up and would mislead it, so times enter only as far as the spread of the second half allows; and in a
series of noise alone the rule leaves out a few steps as well, so those left out have to differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DEVIATIONS = 3.0
_OF_MAD = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
_OF_MEDIAN = 1.2533  # standard error of a median over that of a mean, for a normal distribution
_ERRORS = 2.5  # standard errors by which the mean of the steps left out differs at least
_CERTAIN_ERRORS = 5.0
_FEWEST = 5  # steps that have a level
_LEAST_SPREAD = 1e-3  # of the median, where most steps last equally long
_CHANGED = 0.01  # of the median

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Steady:
    """The first steady step of a series; `reached` is false where it still changes in its second half."""

    start: int
    reached: bool


def step_times(ends_s: Vector) -> Vector:
    """Return how long each step of a launch took, given when it ended on the last rank, in order."""
    return np.diff(ends_s, prepend=0.0)


def step_time(times: Vector) -> float:
    """Return the step time of a launch, given the times of its measured steps in order."""
    return median(np.sort(times[steady(times).start :]))


def step_time_of(steps_s: Sequence[float]) -> float:
    """Return the step time of a launch, given the times of its steps in order as plain numbers."""
    return step_time(np.array(steps_s))


def median(ordered: Vector) -> float:
    """Return the median of values in order; far quicker for few of them than what sorts them first."""
    middle = len(ordered) // 2
    return float(ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2)


def steady(times: Vector) -> Steady:
    """Return the steady part of a launch's step times, in order; linear in their number."""
    return steady_parts(times[None])[0]


def steady_parts(times: Vector) -> list[Steady]:
    """Find the steady parts of launches with equally many steps, a row each."""
    most = times.shape[1] // 2
    late = times[:, most:]
    centre, spread = np.median(late, axis=1), _spread(late)
    limit = (_DEVIATIONS * spread)[:, None]
    clipped = np.clip(times - centre[:, None], -limit, limit)
    start = np.argmin(_squared_errors(clipped)[:, : most + 1], axis=1)
    sums = np.cumsum(clipped, axis=1)[np.arange(len(times)), np.maximum(start - 1, 0)]
    change = np.where(start > 0, np.abs(sums) / np.maximum(start, 1), 0.0)
    start = np.where(change <= _ERRORS * spread / np.sqrt(np.maximum(start, 1)), 0, start)
    reached = ((start < most) | (change < _CHANGED * centre)) & ~_jumps(late)
    return [Steady(start=int(first), reached=bool(well)) for first, well in zip(start, reached, strict=True)]


def _jumps(late: Vector) -> NDArray[np.bool_]:
    """Tell whether the later half of some steps is another level than the earlier one, beyond chance."""
    count = late.shape[1] // 2
    early, late = late[:, :count], late[:, count:]
    if count < _FEWEST:
        return np.zeros(len(late), np.bool_)
    level = np.median(late, axis=1)
    error = _OF_MEDIAN * (_spread(early) + _spread(late)) / 2 * math.sqrt(2 / count)
    difference = np.abs(np.median(early, axis=1) - level)
    return np.asarray(difference > np.maximum(_CERTAIN_ERRORS * error, _CHANGED * level))


def _spread(times: Vector) -> Vector:
    """Return, by row, a standard deviation that single slow steps do not change."""
    centre = np.median(times, axis=1)
    deviation = np.median(np.abs(times - centre[:, None]), axis=1)
    return np.maximum(_OF_MAD * deviation, _LEAST_SPREAD * centre)


def _squared_errors(values: Vector) -> Vector:
    """Return, by row and number of values left out in front, the squared standard error of the mean."""
    left = np.arange(values.shape[1], 0, -1)
    sums, squares = (np.cumsum(powers[:, ::-1], axis=1)[:, ::-1] for powers in (values, values**2))
    return np.asarray(np.maximum(squares - sums**2 / left, 0.0) / left**2)
