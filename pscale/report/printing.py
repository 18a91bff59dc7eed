"""Tables and lists on a terminal, of anything: it imports little."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pscale.report.table import Column, Table, Tone
from pscale.report.text import clean

_LEAST = 8  # characters of a column that takes several lines, if its texts are as long
_STYLES: dict[Tone, str] = {"": "", "base": "bold", "bad": "red", "pending": "dim", "good": "green"}


def print_table(table: Table, console: Console) -> None:
    """Print a table with its title and caption, and as many of its wide columns as there is room for."""
    rows = [*table.texts()]
    columns = [*zip(table.columns, zip(*(cells for _, cells in rows), strict=True), strict=True)]
    while not _fits(columns, console) and any(column.wide for column, _ in columns):
        columns.remove([each for each in columns if each[0].wide][-1])
    fits = _fits(columns, console)
    drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column, cells in columns:
        longest = max(map(cell_len, cells))
        drawn.add_column(
            Text(column.name if fits else _broken(column.name, longest)),
            justify="right" if column.right else "left",
            overflow="fold" if column.fold else "ellipsis",
            width=_width(column, cells) if fits else None,  # which rich would work out again and again
            min_width=min(_LEAST, longest) if column.fold else longest,  # a number is never cropped
            no_wrap=not column.fold,
        )
    for place, (tone, _) in enumerate(rows):
        drawn.add_row(*(Text(cells[place]) for _, cells in columns), style=_STYLES[tone])
    console.print()
    console.print(Text(table.title, style="bold"))
    console.print(drawn)
    if caption := _explained(table, {column.name for column, _ in columns}):
        console.print(Text(caption, style="dim"))


def _explained(table: Table, shown: Collection[str]) -> str:
    """Return the caption without what it says of columns that are not shown."""
    left_out = {column.name for column in table.columns}.difference(shown)
    parts = table.caption.split("; ")
    return "; ".join(part for part in parts if not left_out.issuperset(part.partition(":")[0].split(", ")))


def print_list(title: str, lines: Sequence[str], console: Console) -> None:
    """Print lines under a title, if there are any."""
    if lines:
        console.print()
        console.print(Text(title, style="bold"))
    for line in lines:
        item = RichTable.grid(padding=(0, 1))
        item.add_row(Text("•"), Text(clean(line)))
        console.print(item)


def _width(column: Column, cells: Sequence[str]) -> int:
    """Return the cells of a terminal that the longest text of a column takes."""
    return max(map(cell_len, (column.name, *cells)))


def _broken(name: str, longest: int) -> str:
    """Return a heading in lines that end between words, not much wider than the `longest` text below it."""
    return textwrap.fill(name, max(longest, _LEAST), break_long_words=False, break_on_hyphens=False)


def _fits(columns: Sequence[tuple[Column, Sequence[str]]], console: Console) -> bool:
    """Tell whether columns fit side by side, each with a space behind it and one between any two."""
    widths = sum(_width(column, cells) for column, cells in columns)
    return widths + 2 * len(columns) - 1 <= console.width
