"""Numbers and names as people read them; what a suite says is untrusted and never becomes markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pscale.analysis import wording
from pscale.analysis.wording import digits, unit_of

if TYPE_CHECKING:  # `pscale show` writes numbers too, and has no use for pandas
    from pscale.analysis.scaling import Point
    from pscale.analysis.stats import Estimate
    from pscale.analysis.summary import Summary

MISSING, VAGUE = "-", "too wide"
KINDS = {"together": "wait + transfer"}  # kinds of time that are written otherwise than they are called
_BYTES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_RATES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def duration(seconds: float | None, count: int = 4) -> str:
    """Return a time with the unit that suits it."""
    return MISSING if seconds is None else wording.duration(seconds, count)


def duration_interval(value: Estimate | None, count: int = 4) -> str:
    """Return the bounds of a time in the unit of its value."""
    bounds = value.stated if value else None
    if value is None or bounds is None:
        return _unstated(value)
    factor, _ = unit_of(value.value)
    return f"{digits(bounds[0] * factor, count)}–{digits(bounds[1] * factor, count)}"


def percent(value: float | None, places: int = 0) -> str:
    """Return a fraction in percent."""
    return MISSING if value is None else f"{value:.{places}%}"


def percent_interval(value: Estimate | None) -> str:
    """Return the bounds of a fraction in percent."""
    bounds = value.stated if value else None
    return _unstated(value) if bounds is None else f"{100 * bounds[0]:.1f}–{bounds[1]:.1%}"


def _unstated(value: Estimate | None) -> str:
    """Return what stands for bounds: nothing is known, or so little that numbers would mislead."""
    return MISSING if value is None or value.low is None else VAGUE


def ratio(value: float | None) -> str:
    """Return a ratio to something that may not be there."""
    return MISSING if value is None else f"{value:.3g}"


def size_of(count: float | None) -> str:
    """Return a number of bytes."""
    if count is None:
        return MISSING
    for factor, unit in _BYTES:
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def rate(value: float | None, unit: str = "") -> str:
    """Return a number per second with k, M or G."""
    if value is None:
        return MISSING
    for factor, prefix in _RATES:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}".rstrip()
    return f"{value:.3g} {unit}".rstrip()


def number(value: float | None, count: int = 4) -> str:
    """Return a plain number."""
    return MISSING if value is None else digits(value, count)


def clean(text: str) -> str:
    """Return text without control characters, which could move a terminal's cursor or break a line."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def size(point: Point) -> str:
    """Return the size of a case as a table shows it; with lateness on purpose it never looks healthy."""
    ranks = f"{point.ranks}" if point.threads == 1 else f"{point.ranks}×{point.threads}"
    return f"{ranks} injected" if point.injected else ranks


def label(point: Point) -> str:
    """Return the name of a case as a table shows it."""
    return clean(point.label)


def heading(summary: Summary) -> str:
    """Return the title of a figure of times, which says so where ranks share cores."""
    return f"{summary.title} (ranks share cores)" if summary.oversubscribed else summary.title


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{ending}"
