"""Times as people read them, in sentences and tables."""

from __future__ import annotations

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
