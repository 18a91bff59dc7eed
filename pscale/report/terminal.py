"""A run's findings on a terminal: the verdict first, then the tables, then caveats."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from pscale.analysis.findings import Findings
from pscale.report import text
from pscale.report.plots import plots
from pscale.report.printing import print_list, print_table
from pscale.report.topics import TOPICS
from pscale.report.topics.problems import caution, warnings


def render_terminal(findings: Findings, console: Console, *, plot: bool = False) -> None:
    """Print everything that a person wants to know; no text of the suite is taken as markup.

    With `plot` also figures made of characters.
    """
    for line in _header(findings):
        console.print(line)
    for line in _headlines(findings):
        console.print()
        console.print(line)
    if plot:
        console.print()
        render_plots(findings, console)
    render_topics(findings, console, [topic.name for topic in TOPICS])
    said = [f"{about}: {words}" if about else words for about, words in warnings(findings.rows("warnings"))]
    for title, lines in (("Warnings", said), ("Notes", findings.notes)):
        print_list(title, lines, console)
    console.print()
    console.print(Text(f"Data and logs: {text.clean(findings.path)}", style="dim"), soft_wrap=True)


def render_plots(findings: Findings, console: Console) -> None:
    """Print figures made of characters."""
    for line in plots(findings, console.width):
        console.print(line, no_wrap=True)


def render_topics(findings: Findings, console: Console, names: Collection[str]) -> None:
    """Print the topics of these names; what several say in their captions once."""
    said = {""}
    for topic in TOPICS:
        if topic.name not in names:
            continue
        for paragraph in topic.paragraphs(findings):
            console.print()
            console.print(Text(paragraph))
        for table in topic.tables(findings):
            print_table(replace(table, caption="") if table.caption in said else table, console)
            said.add(table.caption)


def _header(findings: Findings) -> Iterator[Text]:
    yield Text(text.clean(findings.title), style="bold")
    launches = text.plural(findings.launches, "launch")
    planned = findings.launches + findings.pending
    counted = launches if planned == findings.launches else f"{findings.launches} of {planned} launches"
    yield Text(f"run {text.clean(findings.run)} · {counted}", style="dim")
    for name, value in findings.machine:
        yield Text(f"{name}: {text.clean(value)}", style="dim")


def _headlines(findings: Findings) -> Iterator[Text]:
    if findings.oversubscribed:
        yield Text(findings.oversubscribed, style="bold yellow")
    for headline in findings.headlines:
        line = Text(f"{text.clean(headline.topic)}: " if headline.topic else "", style="bold")
        line.append(text.clean(headline.text), style="bold cyan")
        yield line
    if before := caution(findings):
        yield Text(before, style="yellow")
