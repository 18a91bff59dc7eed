"""Tables of a page, from the tables of every report, with the files that hold all of their data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from pscale.analysis.scaling import Point
from pscale.analysis.summary import Summary
from pscale.report.grid import Grid, Row
from pscale.report.page.blocks import Attachment, Cell, Head, Sheet
from pscale.report.page.cells import band
from pscale.report.page.order import order

MOST_ROWS = 400  # of a table that has several rows a case; the main table of cases has all of up to
MOST_CASES = 2000
_LARGEST_FILE = 300_000  # characters of a CSV file inside the page
_PER_CASE = (
    "trees",
    "phase_trees",
    "axis_trees",
    "phases",
    "ranks",
    "calls",
    "bares",
    "memory",
    "bubbles",
    "threads",
)
_PLAIN = " ,;:/?=+$!*'()[]|~{}_.-@"


def sheet(
    grid: Grid,
    name: str,
    *,
    files: Sequence[Attachment] = (),
    banded: Collection[str] = (),
    left_out: str = "",
    folded: bool = False,
) -> Sheet:
    """Return a table of cells for a page; `banded` are columns of efficiencies, coloured by their value."""
    heads = tuple(Head(text=column.name, right=column.right, words=column.fold) for column in grid.columns)
    rows = tuple(
        (tone, tuple(_cell(text, head, banded) for text, head in zip(cells, heads, strict=True)))
        for tone, cells in _repeated(grid.rows[:MOST_CASES], heads[0])
    )
    return Sheet(
        name=name,
        title=grid.title,
        heads=heads,
        rows=rows,
        caption=grid.caption,
        left_out=left_out or (counted(len(rows), len(grid.rows)) if len(rows) < len(grid.rows) else ""),
        files=tuple(files),
        folded=folded,
    )


def sheets(grids: Iterable[Grid], name: str, **settings: Any) -> list[Sheet]:
    """Return several tables; the files that all of them are taken from are at the last."""
    found = [sheet(grid, f"{name}-{place}", **settings) for place, grid in enumerate(grids)]
    return [replace(each, files=()) for each in found[:-1]] + found[-1:]


def counted(listed: int, total: int) -> str:
    """Say how many rows are listed."""
    return f"{listed:,} of {total:,} rows are listed here."


def chosen(summary: Summary, rows_per_case: float) -> tuple[Summary, str]:
    """Return the run with as many cases as a table has room for, and what was left out, in words.

    Where not all fit, they are the smallest and the largest of each series, as far as these fit.
    """
    most = max(2, int(MOST_ROWS / max(rows_per_case, 1)))
    measured = [point for point in summary.points if point.steps]
    if len(measured) <= most:
        return summary, ""
    ends: list[Point] = []
    for points in summary.series.values():
        known = [point for point in points if point.steps]
        ends += dict.fromkeys(known[:1] + known[-1:])
    kept = ends[:most]
    if summary.side_by_side:
        kept = measured[:most]
        which = "the first"
    else:
        which = "the smallest and the largest case of each series" + (
            "" if len(kept) == len(ends) else " that there is room for"
        )
    said = f"Listed: {which}, {len(kept):,} of {len(measured):,} measured cases."
    return narrowed(summary, kept), said


def narrowed(summary: Summary, points: Sequence[Point]) -> Summary:
    """Return the run as if these were its only cases."""
    cases = {point.case for point in points}
    kept: dict[str, Any] = {
        name: tuple(finding for finding in getattr(summary, name) if finding.case in cases)
        for name in _PER_CASE
    }
    return replace(summary, points=tuple(points), **kept)


def attachments(tables: Mapping[str, str], *names: str) -> tuple[Attachment, ...]:
    """Return CSV tables as files inside the page; what has no rows is left out."""
    return tuple(
        Attachment(
            name=f"{name}.csv",
            size=len(tables[name]),
            address=_address(tables[name]) if len(tables[name]) <= _LARGEST_FILE else "",
        )
        for name in names
        if tables[name].count("\n") > 1
    )


def _address(text: str) -> str:
    return f"data:text/csv;charset=utf-8,{quote(text, safe=_PLAIN.strip())}"


def _repeated(rows: Sequence[Row], first: Head) -> Iterator[Row]:
    """Yield rows that say what they are about, where a table says it in the first of several alone."""
    about = ""
    for tone, cells in rows:
        about = cells[0] or about
        yield tone, cells if first.right else (about, *cells[1:])


def _cell(text: str, head: Head, banded: Collection[str]) -> Cell:
    value = order(text) if head.right else None
    return Cell(text=text, order=value, band=band(value) if head.text in banded else "")
