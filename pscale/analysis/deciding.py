"""What would decide what is undecided: how many more rounds of launches, and how long they take."""

from __future__ import annotations

import math

from pscale.analysis.stats import student_quantile
from pscale.analysis.wording import rough

_POWERFUL = 2.8  # standard errors between two values: seen 8 times in 10
_MOST_ROUNDS = 200  # that are worth advising


def more_rounds(half_width: float, apart: float, rounds: int) -> int | None:
    """Return how many rounds more should distinguish two values, where `rounds` give an interval so wide.

    None where no number of them that is worth advising does.
    """
    scatter = half_width * math.sqrt(rounds) / student_quantile(max(1, rounds - 1))
    if apart <= 0 or (needed := (_POWERFUL * scatter / apart) ** 2) > _MOST_ROUNDS:
        return None
    return max(1, math.ceil(needed) - rounds)


def in_words(rounds: int | None, round_s: float) -> str:
    """Return what would decide, where a round takes `round_s`; that is left out where it is NaN."""
    if rounds is None:
        return "an otherwise idle machine"
    about = "" if math.isnan(round_s) else f" (about {rough(rounds * round_s)})"
    return f"{rounds} more round{'s' * (rounds > 1)}{about}"
