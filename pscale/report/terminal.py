"""A run's findings on a terminal: the verdict first, then the tables, then what to distrust."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Grid, Tone
from pscale.report.plots import plots
from pscale.report.tables import tables
from pscale.report.warnings import told

_STYLES: dict[Tone, str] = {"": "", "base": "bold", "bad": "red", "pending": "dim", "good": "green"}
_FIXED, _PER_CASE = 20, 11  # characters of the phase table


def render_terminal(summary: Summary, console: Console, *, plot: bool = False) -> None:
    """Print everything that a person wants to know first; no text of the suite is taken as markup.

    With `plot` also figures made of characters.
    """
    for line in _header(summary):
        console.print(line)
    for line in _headlines(summary):
        console.print()
        console.print(line)
    if plot:
        console.print()
        for line in plots(summary, console.width):
            console.print(line, no_wrap=True)
    for grid in tables(summary, cases_across=max(1, (console.width - _FIXED) // _PER_CASE)):
        show_grid(grid, console)
    for title, lines in (("Warnings", _warnings(summary)), ("Notes", list(summary.notes))):
        show_list(title, lines, console)
    console.print()
    console.print(Text(f"Data and logs: {text.clean(summary.path)}", style="dim"), soft_wrap=True)


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


def _header(summary: Summary) -> Iterator[Text]:
    yield Text(text.clean(summary.title), style="bold")
    launches = text.plural(summary.launches, "launch")
    planned = summary.launches + sum(point.pending for point in summary.points)
    counted = launches if planned == summary.launches else f"{summary.launches} of {planned} launches"
    yield Text(f"run {text.clean(summary.run)} · {counted}", style="dim")
    for name, value in summary.machine:
        yield Text(f"{name}: {text.clean(value)}", style="dim")


def _headlines(summary: Summary) -> Iterator[Text]:
    if summary.oversubscribed:
        yield Text(summary.oversubscribed, style="bold yellow")
    for headline in summary.headlines:
        line = Text(f"{text.clean(headline.topic)}: " if headline.topic else "", style="bold")
        line.append(text.clean(headline.text), style="bold cyan")
        yield line


def _fitted(grid: Grid, console: Console) -> Table:
    """Return the table with as many of its wide columns as the console has room for."""
    shown = list(range(len(grid.columns)))
    unbounded = console.options.update(width=10_000)
    while True:
        table = _table(grid, shown)
        wide = [place for place in shown if grid.columns[place].wide]
        if not wide or Measurement.get(console, unbounded, table).maximum <= console.width:
            return table
        shown.remove(wide[-1])


def _table(grid: Grid, shown: list[int]) -> Table:
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
            no_wrap=not column.fold,
        )
    for tone, cells in grid.rows:
        table.add_row(*(Text(cells[place]) for place in shown), style=_STYLES[tone])
    return table


def _warnings(summary: Summary) -> list[str]:
    return [f"{whose}: {said}" if whose else said for whose, said in told(summary.remarks)]


def _item(line: str) -> Table:
    item = Table.grid(padding=(0, 1))
    item.add_row(Text("•"), Text(text.clean(line)))
    return item
