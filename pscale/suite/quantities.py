"""Quantities as people write them: sizes, times, shares, and numbers with a unit."""

from __future__ import annotations

import re
from typing import Any

LONGEST = 60  # characters, so that no pattern and no conversion takes long
SIZE = r"([0-9]+) ?(B|KiB|MiB|GiB|TiB)"
DURATION = r"([0-9]+(\.[0-9]+)?(ms|[smhd]))+"
SHARE = r"[0-9]+(\.[0-9]+)?%"
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SECONDS = {"ms": 1e-3, "s": 1, "m": 60, "h": 3600, "d": 86400}
_MEASURED = r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?) ?([a-zA-Zµ/]+)"


class Formula(str):
    """An expression that stands for a number; begins with "="."""

    __slots__ = ()


def size_bytes(text: str) -> int:
    """Read a size such as 4MiB."""
    found = _matched(SIZE, text)
    if not found:
        raise ValueError(f"expected a size such as 512KiB or 4MiB, or a number of bytes, got {quoted(text)}")
    return int(found[1]) * _BYTES[found[2]]


def duration_s(text: str) -> float:
    """Read a time such as 90s or 1h30m."""
    if not _matched(DURATION, text):
        expected = "a time such as 10ms, 90s or 1h30m, or a number of seconds"
        raise ValueError(f"expected {expected}, got {quoted(text)}")
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall("([0-9.]+)([a-z]+)", text))


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


def measured(value: Any, units: dict[str, float], expected: str) -> float:
    """Read a number with a unit, such as 5us; raises ValueError with what was expected."""
    if value == "inf":
        return float(value)
    found = _matched(_MEASURED, value) if isinstance(value, str) else None
    if not found or found[2] not in units:
        raise ValueError(f"expected {expected}, got '{value}'")
    return float(found[1]) * units[found[2]]
