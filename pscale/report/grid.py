"""A table of plain text cells, before anyone decides how to draw it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

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

    def without(self, cell: str) -> Self:
        """Return the table without the columns that hold nothing but `cell` or nothing."""
        shown = [
            place
            for place in range(len(self.columns))
            if any(cells[place] not in (cell, "") for _, cells in self.rows)
        ]
        return replace(
            self,
            columns=tuple(self.columns[place] for place in shown),
            rows=tuple((tone, tuple(cells[place] for place in shown)) for tone, cells in self.rows),
        )
