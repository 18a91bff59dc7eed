"""A run's findings on a terminal: the verdict first, then the tables, then what to distrust."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.marks import distrust
from pscale.report.plots import plots
from pscale.report.shown import show_grid, show_list
from pscale.report.tables import tables
from pscale.report.warnings import told

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
    if before := distrust(summary):
        yield Text(before, style="yellow")


def _warnings(summary: Summary) -> list[str]:
    return [f"{whose}: {said}" if whose else said for whose, said in told(summary.remarks)]
