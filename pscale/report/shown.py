"""Tables and lists on a terminal, whatever they are of."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from pscale.report import text
from pscale.report.grid import Grid, Tone

_LEAST = 8  # characters of a column that takes several lines, if its texts are as long
_STYLES: dict[Tone, str] = {"": "", "base": "bold", "bad": "red", "pending": "dim", "good": "green"}


def show_grid(grid: Grid, console: Console) -> None:
    """Print a table with its title and caption."""
    console.print()
    console.print(Text(grid.title, style="bold"))
    console.print(_fitted(grid, console))
    if grid.caption:
        console.print(Text(grid.caption, style="dim"))


def show_list(title: str, lines: Sequence[str], console: Console) -> None:
    """Print lines under a title, if there are any."""
    if lines:
        console.print()
        console.print(Text(title, style="bold"))
        for line in lines:
            console.print(_item(line))


def _fitted(grid: Grid, console: Console) -> Table:
    """Return the table with as many of its wide columns as the console has room for."""
    shown = list(range(len(grid.columns)))
    widths = [_width(grid, place) for place in shown]
    wide = [place for place in shown if grid.columns[place].wide]
    while wide and not _fits(widths, shown, console):
        shown.remove(wide.pop())
    return _table(grid, shown, widths if _fits(widths, shown, console) else None)


def _width(grid: Grid, place: int) -> int:
    """Return the cells of a terminal that the longest text of a column takes."""
    return max(cell_len(grid.columns[place].name), _longest(grid, place))


def _longest(grid: Grid, place: int) -> int:
    return max((cell_len(cells[place]) for _, cells in grid.rows), default=0)


def _fits(widths: Sequence[int], shown: Sequence[int], console: Console) -> bool:
    """Tell whether columns fit side by side, each with a space behind it and one between any two."""
    return sum(widths[place] for place in shown) + 2 * len(shown) - 1 <= console.width


def _table(grid: Grid, shown: Sequence[int], widths: Sequence[int] | None) -> Table:
    """Return the table of some columns; with `widths`, which rich would work out again and again, as wide."""
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for place in shown:
        column = grid.columns[place]
        justify: JustifyMethod = "right" if column.right else "left"
        table.add_column(
            Text(column.name),
            justify=justify,
            overflow="fold" if column.fold else "ellipsis",
            width=widths[place] if widths else None,
            min_width=min(_LEAST, _longest(grid, place)) if column.fold else None,
            no_wrap=not column.fold,
        )
    for tone, cells in grid.rows:
        table.add_row(*(Text(cells[place]) for place in shown), style=_STYLES[tone])
    return table


def _item(line: str) -> Table:
    item = Table.grid(padding=(0, 1))
    item.add_row(Text("•"), Text(text.clean(line)))
    return item
