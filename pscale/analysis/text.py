"""Numbers, times and names as people read them; what a suite says is untrusted and never becomes markup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from pscale import errors

if TYPE_CHECKING:  # `pscale show` writes numbers too, and has no use for NumPy
    from pscale.analysis.stats import Estimate

clean = errors.clean
MISSING, VAGUE = "-", "too wide"
WAIT_OR_TRANSFER = "wait + transfer"
KINDS = {"wait_or_transfer": WAIT_OR_TRANSFER}  # kinds of time that are not written as they are called
_SECONDS = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))
_BEFORE_MINUTES_S, _BEFORE_HOURS_S, _BEFORE_DAYS_S = 100, 6000, 172_800
_RATES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_HEIGHTS = "▁▂▃▄▅▆▇█"
_MEDIAN = 3  # the block of the median, and of what is less than half a block away


def number(value: float, count: int = 4) -> str:
    """Return a number with `count` significant digits, without an exponent where that stays short."""
    text = f"{value:.{count}g}"
    if "e" not in text:
        return text
    return f"{value:.0f}" if 1 <= abs(value) < 1e7 else text


number_2, number_3 = (partial(number, count=count) for count in (2, 3))


def unit_of(seconds: float) -> tuple[float, str]:
    """Return how many of the unit that suits a time are a second, and its name."""
    return next((factor, unit) for least, factor, unit in _SECONDS if abs(seconds) >= least)


def amount(seconds: float, count: int = 4) -> tuple[str, str]:
    """Return a time as a number and the unit that suits it."""
    factor, unit = unit_of(seconds) if seconds else (1.0, "")
    return number(seconds * factor, count), unit


def duration(seconds: float, count: int = 4) -> str:
    """Return a time with the unit that suits it."""
    return " ".join(filter(None, amount(seconds, count)))


duration_3 = partial(duration, count=3)


def rough(seconds: float) -> str:
    """Return a time that need not be precise."""
    if seconds < _BEFORE_MINUTES_S:
        return f"{seconds:.0f} s"
    if seconds < _BEFORE_HOURS_S:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < _BEFORE_DAYS_S else f"{seconds / 86_400:.0f} days"


def percent(value: float, places: int = 1) -> str:
    """Return a fraction in percent."""
    return f"{round(value, places + 2) + 0.0:.{places}%}"  # 0.0 where it rounds to -0.0


percent_0, percent_2 = (partial(percent, places=places) for places in (0, 2))


def change(value: float) -> str:
    """Return a fraction by which something is more or less."""
    return f"{value:+.1%}"


def size_of(count: float) -> str:
    """Return a number of bytes."""
    for factor, unit in _BYTES:
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def rate(value: float, unit: str = "") -> str:
    """Return a large number with k, M, G or T, such as "9.3k", or with a unit "9.3 kB/s"."""
    factor, prefix = next(((factor, name) for factor, name in _RATES if abs(value) >= factor), (1.0, ""))
    return f"{value / factor:.3g}{' ' * bool(unit)}{prefix}{unit}"


def _bounds(value: Estimate | None, write: Callable[[float, float], str]) -> str:
    """Return the bounds of an interval; unknown ones, and such as would mislead, say so."""
    if value is None or value.low is None:
        return MISSING
    return write(*value.stated) if value.stated else VAGUE


def duration_interval(value: Estimate | None, count: int = 4) -> str:
    """Return the bounds of a time in the unit of its value."""
    factor = unit_of(value.value)[0] if value else 1.0
    return _bounds(value, lambda low, high: f"{number(low * factor, count)}–{number(high * factor, count)}")


# The bounds of a fraction in percent, of a ratio, and of a number.
percent_interval = partial(_bounds, write=lambda low, high: f"{100 * low:.1f}–{high:.1%}")
ratio_interval = partial(_bounds, write=lambda low, high: f"{number_3(low)}–{number_3(high)}")
number_interval = partial(_bounds, write=lambda low, high: f"{number(low)}–{number(high)}")


def change_interval(value: Estimate | None) -> str:
    """Return the bounds of a relative change."""
    if value is None or value.low is None or value.high is None:
        return MISSING
    return f"{value.low:+.1%} to {value.high:+.1%}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def split_name(ranks: int, threads: int) -> str:
    """Return ranks and threads as a split of cores: 4 ranks × 1 thread."""
    return f"{plural(ranks, 'rank')} × {plural(threads, 'thread')}"


def in_common(parts: Sequence[Sequence[str]]) -> list[str]:
    """Return the parts that all of several names have, in order."""
    return [part for part in parts[0] if all(part in other for other in parts)]


def sparkline(values: Sequence[float], cells: int = 10, per_block: float = 1 / 8) -> str:
    """Return at most `cells` blocks, each as high as the largest of its values beside the median of all.

    Heights mean the same in every line: the median is ▄, and each block `per_block` of it.
    """
    middle = median(values) if values else 0.0
    if not middle > 0:
        return ""
    count = min(cells, len(values))
    edges = [place * len(values) // count for place in range(count + 1)]
    tops = [max(values[start:stop]) for start, stop in pairwise(edges)]
    heights = [_MEDIAN + round((top / middle - 1) / per_block) for top in tops]
    return "".join(_HEIGHTS[min(len(_HEIGHTS) - 1, max(0, height))] for height in heights)
