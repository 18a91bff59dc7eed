"""Where the warm-up of a series of step times ends.

MSER, the marginal standard error rule (White 1997, "An effective truncation heuristic for bias reduction in
simulation output"; compared with others by Hoad, Robinson and Davies 2010): leave out as many leading steps
as makes the standard error of the mean of the rest least, and never more than half. Single slow steps are no
warm-up and would mislead it, so times enter only as far as the spread of the second half allows; and in a
series of noise alone the rule leaves out a few steps as well, so those left out have to differ.
"""

from __future__ import annotations

import math
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


def steady(times: Vector) -> Steady:
    """Find the steady part of a launch's step times, in order; linear in their number."""
    most = len(times) // 2
    late = times[most:]
    centre, spread = float(np.median(late)), _spread(late)
    clipped = np.clip(times - centre, -_DEVIATIONS * spread, _DEVIATIONS * spread)
    start = int(np.argmin(_squared_errors(clipped)[: most + 1]))
    change = abs(float(clipped[:start].mean())) if start else 0.0
    if change <= _ERRORS * spread / math.sqrt(max(start, 1)):
        start = 0
    reached = start < most or change < _CHANGED * centre
    return Steady(start=start, reached=reached and not _jumps(late))


def _jumps(late: Vector) -> bool:
    """Tell whether the later half of some steps is another level than the earlier one, beyond chance."""
    early, late = late[: len(late) // 2], late[len(late) // 2 :]
    if len(early) < _FEWEST:
        return False
    level = float(np.median(late))
    error = _OF_MEDIAN * (_spread(early) + _spread(late)) / 2 * math.sqrt(2 / len(early))
    return abs(float(np.median(early)) - level) > max(_CERTAIN_ERRORS * error, _CHANGED * level)


def _spread(times: Vector) -> float:
    """Return a standard deviation that single slow steps do not change."""
    centre = np.median(times)
    return float(max(_OF_MAD * np.median(np.abs(times - centre)), _LEAST_SPREAD * centre))


def _squared_errors(values: Vector) -> Vector:
    """Return, for each number of leading values left out, the squared standard error of the others' mean."""
    left = np.arange(len(values), 0, -1)
    sums, squares = (np.cumsum(powers[::-1])[::-1] for powers in (values, values**2))
    return np.maximum(squares - sums**2 / left, 0.0) / left**2
