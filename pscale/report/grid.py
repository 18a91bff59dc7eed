"""A table of plain text cells, before anyone decides how to draw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tone = Literal["", "base", "bad", "pending", "good"]
Row = tuple[Tone, tuple[str, ...]]


@dataclass(frozen=True)
class Column:
    """One column; `wide` ones are left out where there is little room, `fold` ones may take several lines."""

    name: str
    right: bool = True
    wide: bool = False
    fold: bool = False


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table: one tone and as many cells as columns in every row."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""
