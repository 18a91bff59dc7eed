"""A run's findings as Markdown, for pull requests and for reading beside the figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pscale.analysis.summary import Summary
from pscale.report import text
from pscale.report.grid import Grid
from pscale.report.marks import distrust
from pscale.report.tables import tables
from pscale.report.warnings import told

_CASES_ACROSS = 12  # of the phase table
_CAPTIONS = {
    "plans": "Step time of every plan, fastest first, and what it goes to.",
    "memory": "Memory of the fullest rank by kind, as predicted; the mark is what was measured.",
    "scaling": "Speed-up and efficiency with 95% intervals; the dashed line is ideal scaling from the base.",
    "breakdown": "Where the step of each case goes.",
    "wait": "Wait by rank and step in the largest case.",
    "timeline": "One step as it ran: a row a rank, waits pale, numbers are micro-batches.",
    "calls": "Communication of the largest case by axis and verb: bytes per rank and step, and bandwidth.",
    "loss": "Training loss.",
}
_CODE = re.compile(r"(`[\w.:= -]+`)")  # of what pscale says; other backticks are somebody's text
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}  # the ampersand first


def render_markdown(summary: Summary, figures: Sequence[str] = ()) -> str:
    """Return the report; `figures` are paths of pictures, relative to where the text will lie."""
    return "\n".join(_lines(summary, figures)) + "\n"


def _lines(summary: Summary, figures: Sequence[str]) -> Iterator[str]:
    yield f"# {escaped(summary.title)}"
    yield ""
    facts = " · ".join(f"{name}: {escaped(value)}" for name, value in summary.machine)
    yield f"Run {escaped(summary.run)} · {text.plural(summary.launches, 'launch')}" + (
        f" · {facts}" if facts else ""
    )
    if summary.oversubscribed:
        yield from ("", f"> **{escaped(summary.oversubscribed)}**")
    for headline in summary.headlines:
        topic = f"{escaped(headline.topic)}: " if headline.topic else ""
        yield from ("", f"**{topic}{escaped(headline.text)}**")
    if before := distrust(summary):
        yield from ("", before)
    for figure in figures:
        name = figure.rpartition("/")[2].rpartition(".")[0]
        yield ""
        yield f"![{_CAPTIONS.get(name, name)}](<{figure}>)"
    for grid in tables(summary, cases_across=_CASES_ACROSS):
        yield from table(grid)
    warnings = [
        f"{escaped(whose)}: {escaped(said, code=True)}" if whose else escaped(said, code=True)
        for whose, said in told(summary.remarks)
    ]
    notes = [escaped(note, code=True) for note in summary.notes]
    for title, lines in (("Warnings", warnings), ("Notes", notes)):
        if lines:
            yield from ("", f"## {title}", "", *(f"* {line}" for line in lines))


def table(grid: Grid) -> Iterator[str]:
    """Yield the lines of a table under its title."""
    yield from ("", f"## {escaped(grid.title)}", "")
    yield _row([escaped(column.name) for column in grid.columns])
    yield _row(["--:" if column.right else ":--" for column in grid.columns])
    for tone, cells in grid.rows:
        shown = [escaped(cell) for cell in cells]
        yield _row([f"**{cell}**" if cell else "" for cell in shown] if tone == "base" else shown)
    if grid.caption:
        yield from ("", escaped(grid.caption))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(words: str, *, code: bool = False) -> str:
    """Return text that Markdown shows as it is: no tags, mentions or columns; `code` keeps plain code."""
    if code:
        spans = _CODE.split(words)
        return "".join(span if place % 2 else escaped(span) for place, span in enumerate(spans))
    plain = text.clean(words)
    for letter, entity in _ENTITIES.items():
        plain = plain.replace(letter, entity)
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", plain)
