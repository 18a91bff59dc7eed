"""A run's findings on a terminal: the verdict first, then the tables, then caveats."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.plots import plots
from pscale.report.printing import print_list, print_table
from pscale.report.topics import TOPICS
from pscale.report.topics.problems import caution, warnings


def render_terminal(summary: Summary, console: Console, *, plot: bool = False) -> None:
    """Print everything that a person wants to know; no text of the suite is taken as markup.

    With `plot` also figures made of characters.
    """
    for line in _header(summary):
        console.print(line)
    for line in _headlines(summary):
        console.print()
        console.print(line)
    if plot:
        console.print()
        render_plots(summary, console)
    render_topics(summary, console, [topic.name for topic in TOPICS])
    said = [f"{about}: {words}" if about else words for about, words in warnings(summary.warnings)]
    for title, lines in (("Warnings", said), ("Notes", summary.notes)):
        print_list(title, lines, console)
    console.print()
    console.print(Text(f"Data and logs: {text.clean(summary.path)}", style="dim"), soft_wrap=True)


def render_plots(summary: Summary, console: Console) -> None:
    """Print figures made of characters."""
    for line in plots(summary, console.width):
        console.print(line, no_wrap=True)


def render_topics(summary: Summary, console: Console, names: Collection[str]) -> None:
    """Print the tables of the topics of these names; what several say in their captions once."""
    said = {""}
    for topic in TOPICS:
        for table in topic.tables(summary) if topic.name in names else ():
            print_table(replace(table, caption="") if table.caption in said else table, console)
            said.add(table.caption)


def _header(summary: Summary) -> Iterator[Text]:
    yield Text(text.clean(summary.title), style="bold")
    launches = text.plural(summary.launches, "launch")
    planned = summary.launches + summary.pending
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
    if before := caution(summary):
        yield Text(before, style="yellow")
