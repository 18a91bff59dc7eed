"""Times as people read them, in sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence

_SECONDS = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))


def digits(value: float, count: int = 4) -> str:
    """Return a number with `count` significant digits, without an exponent where that stays short."""
    text = f"{value:.{count}g}"
    if "e" not in text:
        return text
    return f"{value:.0f}" if 1 <= abs(value) < 1e7 else text


def unit_of(seconds: float) -> tuple[float, str]:
    """Return how many of the unit that suits a time are a second, and its name."""
    return next((factor, unit) for least, factor, unit in _SECONDS if abs(seconds) >= least)


def duration(seconds: float, count: int = 3) -> str:
    """Return a time with the unit that suits it."""
    if seconds == 0:
        return "0"
    factor, unit = unit_of(seconds)
    return f"{digits(seconds * factor, count)} {unit}"


_BEFORE_MINUTES_S, _BEFORE_HOURS_S, _BEFORE_DAYS_S = 100, 6000, 172_800


def rough(seconds: float) -> str:
    """Return a time that need not be precise."""
    if seconds < _BEFORE_MINUTES_S:
        return f"{seconds:.0f} s"
    if seconds < _BEFORE_HOURS_S:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < _BEFORE_DAYS_S else f"{seconds / 86_400:.0f} days"


def percent(value: float, places: int = 1) -> str:
    """Return a fraction in percent, as every table writes efficiencies and losses."""
    return f"{round(value, places + 2) + 0.0:.{places}%}"  # 0.0 where it rounds to -0.0


def number(value: float) -> str:
    """Return a ratio, as tables write them."""
    return digits(value, 3)


_RATES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def rate(value: float, unit: str = "") -> str:
    """Return a large number with k, M, G or T, such as "9.3k", or with a unit "9.3 kB/s"."""
    factor, prefix = next(((factor, name) for factor, name in _RATES if abs(value) >= factor), (1.0, ""))
    return f"{value / factor:.3g}{' ' * bool(unit)}{prefix}{unit}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def in_common(parts: Sequence[Sequence[str]]) -> list[str]:
    """Return the parts that all of several names have, in order."""
    return [part for part in parts[0] if all(part in other for other in parts)]
