"""A run's findings as Markdown, for pull requests and for reading beside the figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pscale.analysis.findings import Findings
from pscale.report import text
from pscale.report.table import Table
from pscale.report.topics import TOPICS
from pscale.report.topics.problems import caution, warnings
from pscale.report.topics.topic import Topic

_CODE = re.compile(r"(`[\w.:= -]+`)")  # of what pscale says; other backticks are somebody's text
_ANSWERS = 10  # that a pull request lists
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}  # the ampersand first


def render_markdown(findings: Findings, figures: Sequence[str] = ()) -> str:
    """Return the report; `figures` are paths of pictures, relative to where the text will lie."""
    return "\n".join(_lines(findings, figures)) + "\n"


def _lines(findings: Findings, figures: Sequence[str]) -> Iterator[str]:
    yield f"# {escaped(findings.title)}"
    yield ""
    facts = " · ".join(f"{name}: {escaped(value)}" for name, value in findings.machine)
    yield f"Run {escaped(findings.run)} · {text.plural(findings.launches, 'launch')}" + (
        f" · {facts}" if facts else ""
    )
    if findings.oversubscribed:
        yield from ("", f"> **{escaped(findings.oversubscribed)}**")
    for headline in findings.headlines:
        about = f"{escaped(headline.topic)}: " if headline.topic else ""
        yield from ("", f"**{about}{escaped(headline.text)}**")
    if before := caution(findings):
        yield from ("", before)
    captions = {topic.figure.name: topic.figure.description for topic in TOPICS if topic.figure}
    for figure in figures:
        name = figure.rpartition("/")[2].rpartition(".")[0]
        yield from ("", f"![{captions.get(name, name)}](<{figure}>)")
    for topic in TOPICS:
        yield from _topic_lines(findings, topic)
    said = [
        f"{escaped(about)}: {escaped(words, code=True)}" if about else escaped(words, code=True)
        for about, words in warnings(findings.rows("warnings"))
    ]
    notes = [escaped(note, code=True) for note in findings.notes]
    for title, lines in (("Warnings", said), ("Notes", notes)):
        if lines:
            yield from ("", f"## {title}", "", *(f"* {line}" for line in lines))


def render_sheet(findings: Findings, topic: Topic) -> str:
    """Return one topic alone."""
    return "\n".join([f"# {escaped(findings.title)}", *_topic_lines(findings, topic)]) + "\n"


def _topic_lines(findings: Findings, topic: Topic) -> Iterator[str]:
    for paragraph in topic.paragraphs(findings):
        yield from ("", escaped(paragraph))
    for table in topic.tables(findings):
        yield from table_lines(table)


def table_lines(table: Table) -> Iterator[str]:
    """Yield the lines of a table under its title."""
    yield from ("", f"## {escaped(table.title)}", *_grid(table))


def summary(
    verdict: str, answers: Sequence[str], tables: Iterable[Table], notes: Sequence[str] = (), about: str = ""
) -> str:
    """Return what a pull request shows: verdict, then answers that matter; tables and notes are folded."""
    lines = [f"**{escaped(verdict)}**"]
    lines += ["", escaped(about)] if about else []
    lines += ["", *(f"* {escaped(answer)}" for answer in answers[:_ANSWERS])] if answers else []
    if len(answers) > _ANSWERS:
        lines.append(f"* and {len(answers) - _ANSWERS} more, in the tables")
    for table in tables:
        lines += _folded(f"{table.title} ({text.plural(len(table.rows), 'row')})", _grid(table))
    lines += _folded("Notes", ["", *(f"* {escaped(note, code=True)}" for note in notes)]) if notes else []
    return "\n".join(lines) + "\n"


def _folded(title: str, lines: Iterable[str]) -> list[str]:
    return ["", f"<details><summary>{escaped(title)}</summary>", *lines, "", "</details>"]


def _grid(table: Table) -> Iterator[str]:
    """Yield the lines of a table and its caption."""
    yield ""
    yield _row([escaped(column.name) for column in table.columns])
    yield _row(["--:" if column.right else ":--" for column in table.columns])
    for tone, texts in table.texts():
        cells = [escaped(words) for words in texts]
        yield _row([f"**{cell}**" if cell else "" for cell in cells] if tone == "base" else cells)
    if table.caption:
        yield from ("", escaped(table.caption))


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
