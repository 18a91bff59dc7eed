"""A run in ten lines: how the largest case of every series does, caveats, where the rest is.

It imports little: the command that has waited for a run prints it, and another process has worked it out.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pscale.report.text import clean

if TYPE_CHECKING:
    from pscale.analysis.findings import Findings

FULL = "pscale report --full"
_MOST = 10  # lines of all runs
_MOST_PAGES = 3
_SENTENCE = re.compile(r"(?<=[.?!]) (?=[A-Z0-9])")
_SENTENCE_LINES = 2  # of a text, where there is no room for more
_GAP, _INDENT, _BETWEEN = "   ", "  ", " · "
_BOUND = "\xa0±\xa0"  # at which no line breaks
_LEAST_NAME = 12  # characters
_TONES = {"holds": "green", "undecided": "yellow", "falls short": "bold red"}
_URGENT = ("falls short", "undecided")


@dataclass(frozen=True, kw_only=True)
class Line:
    """The largest case of a series: its name and size, its figure, whether that is enough, what is lost."""

    name: str
    size: str
    figure: str
    answer: str
    judged: str
    causes: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The columns but for the last."""
        return self.name, self.size, self.figure, self.judged


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a run says in brief; `sentences` compare variants, where the suite compares no sizes."""

    suite: str
    folder: str
    lines: tuple[Line, ...]
    sentences: tuple[str, ...]
    concerns: str
    page: str = ""

    @classmethod
    def of(cls, findings: Findings, page: str = "") -> Self:
        """Return what a findings says first, and where its page is."""
        from pscale.report.topics.problems import concerns  # noqa: PLC0415 - its libraries take their time

        lines = tuple(_lines(findings))
        said = [] if lines else [f"{topic}: {text}" if topic else text for topic, text in findings.headlines]
        return cls(
            suite=clean(findings.suite),
            folder=clean(findings.path),
            lines=lines,
            sentences=tuple(map(clean, filter(None, (findings.oversubscribed, *(said or findings.answers))))),
            concerns=", ".join(words for words, _ in concerns(findings)),
            page=clean(page),
        )

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return what `document` has made."""
        lines = tuple(Line(**{name: str(cell) for name, cell in line.items()}) for line in document["lines"])
        sentences = tuple(map(str, document["sentences"]))
        suite, folder, concerns, page = (
            str(document[name]) for name in ("suite", "folder", "concerns", "page")
        )
        return cls(suite=suite, folder=folder, lines=lines, sentences=sentences, concerns=concerns, page=page)

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)

    def named(self, line: Line) -> Line:
        """Return one of its lines as it is called beside those of other suites."""
        return line if line.name == self.suite else replace(line, name=f"{self.suite}, {line.name}")


def _lines(findings: Findings) -> Iterator[Line]:
    """Yield a line a series; none for variants side by side, which a ranking compares."""
    from pscale.analysis import messages  # noqa: PLC0415 - its libraries take their time

    verdicts = [] if findings.side_by_side or len(findings.bandwidths) else findings.rows("verdicts")
    lost = findings.of_case("lost_time")
    for row in verdicts:
        yield Line(
            name=clean((row.series if len(verdicts) > 1 else "") or findings.suite),
            size=messages.largest(row),
            figure=messages.figure(row),
            answer=row.answer,
            judged=messages.judged(row),
            causes=clean(messages.causes(row, lost.get(row.case))),
        )


def print_answers(
    answers: Sequence[Answer],
    console: Console,
    *,
    full: str = "",
    before_pages: Callable[[], None] = lambda: None,
) -> None:
    """Print what runs say in brief, in ten lines; `full` is the command that says everything.

    `before_pages` writes the pages, once the figures are printed and before it is said where the pages are.
    """
    ends = list(_ends(answers, console.width, full))
    for line in _body(answers, console.width, _MOST - len(ends)):
        console.print(line, soft_wrap=True)
    before_pages()
    for line in ends:
        console.print(line, soft_wrap=True)


def _body(answers: Sequence[Answer], width: int, room: int) -> list[Text]:
    """Return a line for every series, and sentences; where there is no room for all, the most urgent."""
    texts = [text for answer in answers for text in answer.sentences]
    lines = [line for answer in answers for line in answer.lines]
    if len(answers) > 1:
        lines = [line for answer in answers for line in map(answer.named, answer.lines)]
    for layout in (_side_by_side, _stacked):
        drawn = layout(lines, width)
        if len(drawn) <= room and all(cell_len(line.plain) <= width for line in drawn):
            return [*drawn, *_said(texts, width, room - len(drawn))]
    drawn = _rows(lines, width)
    if len(drawn) > room:
        urgent = sorted(range(len(lines)), key=lambda place: lines[place].answer not in _URGENT)
        drawn = [drawn[place] for place in sorted(urgent[: room - 1])]
        drawn.append(Text(f"and {len(lines) - len(drawn)} more series", style="dim"))
    return [*drawn, *_said(texts, width, room - len(drawn))]


def _said(texts: Sequence[str], width: int, room: int) -> list[Text]:
    """Return the first sentences of every text, and further ones where lines are left."""
    parts = [_cut(text, width, _SENTENCE_LINES) for text in texts]
    for place, text in enumerate(texts):
        left = room - sum(map(len, parts)) + len(parts[place])
        parts[place] = _cut(text, width, max(left, _SENTENCE_LINES))
    lines = [Text(line) for part in parts for line in part]
    if len(lines) > room > 0:
        lines[room - 1].append(" …")
        lines[room - 1].truncate(width, overflow="ellipsis")
    return lines[:room]


def _rows(lines: Sequence[Line], width: int) -> list[Text]:
    """Return a line for each, without causes; a name that is too long is cut."""
    if not lines:
        return []
    widths = [max(map(cell_len, column)) for column in zip(*(line.cells for line in lines), strict=True)]
    widths[0] = min(widths[0], max(_LEAST_NAME, width - sum(widths[1:]) - len(_GAP) * (len(widths) - 1)))
    return [_row(line, widths) for line in lines]


def _row(line: Line, widths: Sequence[int]) -> Text:
    row = Text()
    for place, (cell, size) in enumerate(zip(line.cells, widths, strict=True)):
        part = Text(cell, style=("bold", "", "bold", _TONES.get(line.answer, ""))[place])
        part.truncate(size, overflow="ellipsis", pad=True)
        row.append_text(part)
        row.append(_GAP)
    row.rstrip()
    return row


def _side_by_side(lines: Sequence[Line], width: int) -> list[Text]:
    """Return a line for each, its causes at the end."""
    rows = _rows(lines, width)
    longest = max((row.cell_len for row in rows), default=0)
    return [
        Text.assemble(row, " " * (longest - row.cell_len), _GAP, line.causes) if line.causes else row
        for row, line in zip(rows, lines, strict=True)
    ]


def _stacked(lines: Sequence[Line], width: int) -> list[Text]:
    """Return a line for each, its causes below."""
    found: list[Text] = []
    for row, line in zip(_rows(lines, width), lines, strict=True):
        found.append(row)
        found += map(Text, _wrapped(line.causes, width, _INDENT))
    return found


def _ends(answers: Sequence[Answer], width: int, full: str) -> Iterator[Text]:
    """Yield caveats, the command that prints all tables, and the pages, in as few lines as they fit into."""
    several = len(answers) > 1
    concerns = [
        f"{answer.suite}: {answer.concerns}" if several else answer.concerns
        for answer in answers
        if answer.concerns
    ]
    pages = [answer.page for answer in answers if answer.page]
    if len(pages) > _MOST_PAGES:
        pages = ["report.html in the folder of each run: pscale list"]
    parts = [Text(line, style="yellow") for line in _wrapped("; ".join(concerns), width)]
    parts += [Text(f"full tables: {full}", style="dim")] * bool(full)
    parts += [Text(f"page: {page}", style="dim") for page in pages]
    line = Text()
    for part in parts:
        if line and line.cell_len + cell_len(_BETWEEN) + part.cell_len > width:
            yield line
            line = Text()
        line = Text.assemble(line, (_BETWEEN, "dim"), part) if line else part
    if line:
        yield line


def _cut(text: str, width: int, most: int) -> list[str]:
    """Return the first sentences of a text that fit into so many lines; the first in any case."""
    first, *others = _SENTENCE.split(text)
    for other in others:
        if len(_wrapped(f"{first} {other}", width)) > most:
            break
        first = f"{first} {other}"
    return _wrapped(first, width)


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Return lines that end between words, and not inside a number with its interval."""
    lines = textwrap.wrap(
        text.replace(" ± ", _BOUND),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_BOUND, " ± ") for line in lines]
