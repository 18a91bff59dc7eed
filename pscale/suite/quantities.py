"""Quantities as people write them: sizes, times, shares, and numbers with a unit."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from pscale.config.metrics import conversion

LONGEST = 60  # characters, so that no pattern and no conversion takes long
SIZE = r"([0-9]+(?:\.[0-9]+)?) ?([kKMGT]?B|[KMGT]iB)"
_PART = r"([0-9]+(?:\.[0-9]+)?) ?(min|[nuµμm]s|[smhd])"
_CLOCK = r"([0-9]+):([0-5][0-9]):([0-5][0-9])"
DURATION = rf"{_PART}( ?{_PART})*|{_CLOCK}"
SHARE = r"[0-9]+(\.[0-9]+)?%"
_MEASURED = r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?) ?([a-zA-Zµμ/]+)"


class Formula(str):
    """An expression that stands for a number; begins with "="."""

    __slots__ = ()


def size_bytes(text: str) -> int:
    """Read a size such as 4MiB, 1GB or 1.5GiB: whole bytes."""
    size = _matched(SIZE, text)
    if not size:
        raise ValueError(
            f"expected a size such as 512KiB, 4MiB or 1GB, or a number of bytes, got {quoted(text)}"
        )
    count = Fraction(size[1]) * int(conversion(size[2], "B") or 0)
    if count.denominator != 1:
        raise ValueError(f"{quoted(text)} is not a whole number of bytes")
    return int(count)


def duration_s(text: str) -> float:
    """Read a time such as 10us, 90s, 1h 30m or 01:30:00."""
    if clock := _matched(_CLOCK, text):
        hours, minutes, seconds = map(int, clock.groups())
        return float(3600 * hours + 60 * minutes + seconds)
    if not _matched(DURATION, text):
        expected = "a time such as 10us, 90s, 5 min, 1h 30m or 01:30:00, or a number of seconds"
        raise ValueError(f"expected {expected}, got {quoted(text)}")
    parts = ((number, "min" if unit == "m" else unit) for number, unit in re.findall(_PART, text))
    return sum(float(number) * (conversion(unit, "s") or 0.0) for number, unit in parts)


def share(text: str) -> float:
    """Read a share such as 3%."""
    if not _matched(SHARE, text):
        raise ValueError(f"expected a share such as 3% or 0.03, got {quoted(text)}")
    return float(text[:-1]) / 100


def quoted(text: str) -> str:
    """Quote a text of a suite in a message, shortened if it is long."""
    return f"'{text if len(text) <= LONGEST else text[: LONGEST - 3] + '...'}'"


def _matched(pattern: str, text: str) -> re.Match[str] | None:
    return re.fullmatch(pattern, text) if len(text) <= LONGEST else None


def measured(value: Any, unit: str, expected: str) -> float:
    """Read a number with a unit, such as 5us, as one in `unit`; raises ValueError with what was expected."""
    if value == "inf":
        return float(value)
    parts = _matched(_MEASURED, value) if isinstance(value, str) else None
    factor = conversion(parts[2], unit) if parts else None
    if not parts or factor is None:
        raise ValueError(f"expected {expected}, got '{value}'")
    return float(parts[1]) * factor
