"""A run in brief: ten lines on its series, a card in a list of runs; kept in its folder until it changes.

It imports little: the command that has waited for a run prints it, and another process has worked it out.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pscale import __version__
from pscale.analysis.text import clean
from pscale.errors import ResultsError
from pscale.report.table import Table, print_topic
from pscale.runs import atomic_files
from pscale.runs.run_folders import check, prediction_file, run_folders
from pscale.runs.run_shape import mismatch, trouble_of

if TYPE_CHECKING:
    from pscale.analysis.findings import Findings
    from pscale.report.blocks import Topic

FULL = "pscale report --full"
_MOST = 10  # lines of all runs
_MOST_PAGES = 3
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
    """What a run says in brief; `sentences` compare variants, where the suite compares no sizes.

    `paragraphs` and `tables` are the evidence that the report leaves.
    """

    suite: str
    lines: tuple[Line, ...]
    sentences: tuple[tuple[str, ...], ...]  # of every headline, which may end with any of them
    concerns: str
    page: str = ""
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, findings: Findings, page: str = "", sheet: Topic | None = None) -> Self:
        """Return what a findings says first, and where its page is."""
        from pscale.report.topics.problems import concerns  # noqa: PLC0415 - its libraries take their time

        lines = tuple(_lines(findings))
        first = (findings.oversubscribed,) * bool(findings.oversubscribed)
        said = findings.answers if lines else findings.headlines
        return cls(
            suite=clean(findings.suite),
            lines=lines,
            sentences=tuple(
                tuple(map(clean, each)) for each in (first, *(line.titled for line in said)) if each
            ),
            concerns=", ".join(words for words, _ in concerns(findings)),
            page=clean(page),
            paragraphs=tuple(sheet.paragraphs(findings)) if sheet else (),
            tables=tuple(table.document() for table in sheet.tables(findings)) if sheet else (),
        )

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return what a dictionary of its fields says, as JSON has kept it."""
        lines = tuple(Line(**{name: str(cell) for name, cell in line.items()}) for line in document["lines"])
        texts = {name: str(document[name]) for name in ("suite", "concerns", "page")}
        sentences = tuple(tuple(map(str, each)) for each in document["sentences"])
        paragraphs = tuple(clean(str(words)) for words in document["paragraphs"])
        tables = tuple(Table.read(table).document() for table in document["tables"])
        return cls(lines=lines, sentences=sentences, paragraphs=paragraphs, tables=tables, **texts)


def print_evidence(answer: Answer, console: Console) -> None:
    """Print the evidence that a report left, as it was printed then."""
    print_topic(answer.paragraphs, map(Table.read, answer.tables), console, set())
    console.print()


def placed(sheet: str, folder: Path) -> str:
    """Return a sheet in LaTeX that names its figure by the folder of the run."""
    return sheet.replace("]{figures/", f"]{{{folder}/figures/")


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
    texts = [sentences for answer in answers for sentences in answer.sentences]
    lines = [
        line
        if len(answers) == 1 or line.name == answer.suite
        else replace(line, name=f"{answer.suite}, {line.name}")
        for answer in answers
        for line in answer.lines
    ]
    rows = _rows(lines, width)
    beside = [row + Text(line.causes) for row, line in zip(rows, lines, strict=True)]
    below = [
        Text(words) if place else row
        for row, line in zip(rows, lines, strict=True)
        for place, words in enumerate(["", *_wrapped(line.causes, width, _INDENT)])
    ]
    for drawn in (beside, below, rows):
        for line in drawn:
            line.rstrip()
        if len(drawn) <= room and all(cell_len(line.plain) <= width for line in drawn):
            break
    if len(drawn) > room:
        urgent = sorted(range(len(lines)), key=lambda place: lines[place].answer not in _URGENT)
        drawn = [drawn[place] for place in sorted(urgent[: room - 1])]
        drawn.append(Text(f"and {len(lines) - len(drawn)} more series", style="dim"))
    return [*drawn, *_said(texts, width, room - len(drawn))]


def _said(texts: Sequence[Sequence[str]], width: int, room: int) -> list[Text]:
    """Return the first sentences of every text, and further ones where lines are left."""
    parts = [_cut(sentences, width, _SENTENCE_LINES) for sentences in texts]
    for place, sentences in enumerate(texts):
        left = room - sum(map(len, parts)) + len(parts[place])
        parts[place] = _cut(sentences, width, max(left, _SENTENCE_LINES))
    lines = [Text(line) for part in parts for line in part]
    if len(lines) > room > 0:
        lines[room - 1].append(" …")
        lines[room - 1].truncate(width, overflow="ellipsis")
    return lines[:room]


def _rows(lines: Sequence[Line], width: int) -> list[Text]:
    """Return a line for each, without causes, as wide as the longest; a name that is too long is cut."""
    columns = [*zip(*(line.cells for line in lines), strict=True)]
    widths = [max(map(cell_len, column)) for column in columns]
    if widths:
        room = width - sum(widths[1:]) - len(_GAP) * (len(widths) - 1)
        widths[0] = min(widths[0], max(_LEAST_NAME, room))
    rows = []
    for line in lines:
        row = Text()
        styles = ("bold", "", "bold", _TONES.get(line.answer, ""))
        for cell, size, style in zip(line.cells, widths, styles, strict=True):
            part = Text(cell, style=style)
            part.truncate(size, overflow="ellipsis", pad=True)
            row += part + _GAP if size else ""
        rows.append(row)
    return rows


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


def _cut(sentences: Sequence[str], width: int, most: int) -> list[str]:
    """Return the first sentences that fit into so many lines; the first in any case."""
    first, *others = sentences
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


# What is kept of a run in its folder, until the run or what a report is made of changes

FILE = "brief.json"  # of this copy of the run alone, as it holds times of files
_FORMAT = 8
_CODE = Path(__file__).parents[1]
Stamp = list[list[str | int]]


def _kept(folder: Path) -> dict[str, Any]:
    """Return what is kept of a run; empty where that cannot be read."""
    file = folder / FILE
    try:
        known = None if file.is_symlink() else atomic_files.read_json(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) and known.get("format") == _FORMAT else {}


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What a report is made of: files of a run, this version of pscale, and what was asked for."""

    folder: Path
    asked: Sequence[object]  # the version, its newest file, and the formats of figures; None: no figures
    files: Stamp

    @classmethod
    def of(cls, folder: Path, formats: Sequence[str] | None = ()) -> Sources:
        """Look at them as they are now: before they are read."""
        data = sorted((folder / "data").glob("*"))
        beside = prediction_file(folder.absolute().parent)
        files = _stamps(folder, [*_of_run(folder), folder / "journal.jsonl", beside, *data])
        asked = [__version__, *_code(), None if formats is None else list(formats)]
        return cls(folder=folder, asked=asked, files=files)

    def drawn(self, file: str = ".") -> Answer | None:
        """Return what the last report said; None if it wrote no such file, or anything has changed since."""
        known = _kept(self.folder)
        try:
            written = [self.folder / name for name, *_ in known["written"]]
            new = self.folder / file not in (self.folder, *written)
            if new or any(known[name] != value for name, value in self._now(written).items()):
                return None
            answer = Answer.read(known["answer"])
            return replace(answer, page=answer.page and clean(str(self.folder / "report.html")))
        except (ValueError, KeyError, TypeError):
            return None

    def remember(self, written: Sequence[Path], answer: Answer) -> None:
        """Note that a report was made of these, and what it said."""
        self.keep(**self._now(written), answer=asdict(answer))

    def keep(self, **parts: Any) -> None:
        """Keep parts beside what is known of the same files, unless the folder may only be read."""
        others = known if (known := _kept(self.folder)).get("files") == self.files else {}
        kept = {**others, "format": _FORMAT, "files": self.files, **parts}
        with suppress(OSError):
            atomic_files.write_json(self.folder / FILE, kept)

    def _now(self, written: Sequence[Path]) -> dict[str, Any]:
        return {"asked": self.asked, "files": self.files, "written": _stamps(self.folder, written)}


def _of_run(folder: Path) -> list[Path]:
    """Return what changes when a run does: launches add files to its data."""
    return [folder / "run.json", folder / "data"]


def _code() -> list[int]:
    """Return number and newest time of the files that analyse and report, which may be edited in place."""
    parts = ("analysis", "report", "report/topics", "report/templates", "runs", "simulator")
    entries = [entry for part in parts for entry in os.scandir(_CODE / part) if entry.is_file()]
    return [len(entries), max(entry.stat().st_mtime_ns for entry in entries)]


def _stamps(folder: Path, paths: Iterable[Path]) -> Stamp:
    """Return name, size and time of files that are there."""
    found: Stamp = []
    for path in paths:
        with suppress(OSError):
            known = path.stat()
            found.append([os.path.relpath(path, folder), known.st_size, known.st_mtime_ns])
    return found


def is_special(path: Path) -> bool:
    """Tell whether a path is of a device or a pipe, as /dev/stdout: no file may be put in its place."""
    return path.exists() and not path.is_file() and not path.is_dir()


def write_changed(path: Path, content: str | bytes) -> Path:
    """Write a file, unless it is so already, under another name first: no reader sees half of it.

    A device or a pipe is written to.
    """
    data = content.encode() if isinstance(content, str) else content
    if is_special(path):
        path.write_bytes(data)
        return path
    if path.is_file() and not path.is_symlink() and path.read_bytes() == data:
        return path
    atomic_files.write(path, data, synced=False)
    return path


# A folder of runs, a card each: what was run when, how it went, and its best figure


@dataclass(frozen=True, kw_only=True)
class Card:
    """One run. `trouble` says what is wrong with its folder; all else is then as far as it is known."""

    run: str
    path: str
    suite: str = ""
    title: str = ""
    begun_unix_s: float | None
    cases: int = 0
    cases_ok: int = 0  # with a launch that ended well
    launches: int = 0  # that ended
    failed: int = 0  # of them
    pending: int = 0  # planned, and without a row
    ranks: int = 0  # of the largest case that ended well
    metric: str = ""  # of the best figure: efficiency samples_per_s, or empty
    value: float | None = None
    low: float | None = None  # the bounds of its interval
    high: float | None = None
    answer: str = ""  # to what the suite expects; of samples_per_s undecided where another may be as fast
    at: str = ""  # the case that it is of
    host: str = ""
    trouble: str = ""


def cards(root: Path, suite: str | None = None) -> list[Card]:
    """Return the runs in `root`, of one suite or of all, those begun last first."""
    named = [card(folder) for folder in run_folders(root) if suite in (None, folder.parent.name)]
    direct = [card(folder) for folder in run_folders(root) if folder.parent == root and suite is not None]
    found = [*named, *(one for one in direct if one.suite == suite and one not in named)]
    return sorted(found, key=lambda one: (one.begun_unix_s or 0.0, one.run), reverse=True)


def card(folder: Path, findings: Findings | None = None) -> Card:
    """Return the card of a run: as kept if the run has not changed since, else of its `findings`."""
    now, kept = _stamps(folder, _of_run(folder)), _kept(folder)
    with suppress(KeyError, TypeError):
        known = {field.name: kept["card"][field.name] for field in fields(Card)}
        if [each for each in kept["files"] if each in now] == now and not mismatch(Card, known):
            return Card(**(known | {"path": str(folder)}))  # the folder may have been moved
    sources = Sources.of(folder)
    made = _made(folder, findings)
    sources.keep(card=asdict(made))
    return made


def _made(folder: Path, findings: Findings | None) -> Card:
    from pscale.analysis.findings import Findings  # noqa: PLC0415 - a card that is kept needs no pandas
    from pscale.analysis.frames import load  # noqa: PLC0415
    from pscale.runs.store import Damaged, read_table  # noqa: PLC0415

    damaged: list[Damaged] = []
    try:
        check(folder)
        document = atomic_files.read_json(folder / "run.json")
        if trouble_of(document):
            return _unreadable(folder, "run.json is damaged")
        read_table(folder / "data", "cases", ("case",), damaged)
        findings = (findings or Findings(load(folder), short=True)).whole
        best = _best(findings)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ResultsError) as error:
        return _unreadable(folder, str(error) if isinstance(error, ResultsError) else "run.json is damaged")
    run, suite = findings.source, document.get("suite", {})
    good, begun = run.good, run.cases["started_unix_s"].dropna()
    return Card(
        run=str(document.get("run") or folder.name),
        path=str(folder),
        suite=str(suite.get("name", "")),
        title=str(suite.get("title", "")),
        begun_unix_s=float(begun.min()) if len(begun) else (folder / "run.json").stat().st_mtime,
        cases=len(run.planned),
        cases_ok=good["case"].nunique(),
        launches=findings.launches,
        failed=findings.unsuccessful,
        pending=findings.pending,
        ranks=int(good["ranks"].max()) if len(good) else 0,
        host=str(run.machine.get("host", "")),
        trouble=f"{len(damaged)} parts cannot be read" if damaged else "",
        **best,
    )


def _unreadable(folder: Path, why: str) -> Card:
    begun = next((int(time) for name, _, time in _stamps(folder, _of_run(folder))), 0)
    return Card(run=folder.name, path=str(folder), begun_unix_s=begun * 1e-9, trouble=why)


def _best(findings: Findings) -> dict[str, Any]:
    """Return the best efficiency at the largest size; without any the largest throughput, and no interval.

    The answer to an efficiency is the worst of what is expected of it, that to a throughput undecided where
    another case of as much work on as many cores may be faster.
    """
    from pscale.analysis.difference import standing  # noqa: PLC0415 - see above
    from pscale.analysis.scaling import step_samples  # noqa: PLC0415

    cases = findings.rows("cases")
    compared = [case for case in cases if case.efficiency and not case.base]
    if compared:
        best = max(compared, key=lambda case: (case.cores, case.efficiency.value))
        asked = [each for each in findings.rows("expectations") if each.metric == "efficiency"]
        answers = {each.answer for each in asked if each.case == best.case}
        answer = next((each for each in ("falls short", "undecided", "holds") if each in answers), "")
        return {
            "metric": "efficiency",
            **{name: getattr(best.efficiency, name) for name in ("value", "low", "high")},
            "at": best.label,
            "answer": answer,
        }
    trained = [case for case in cases if case.samples_per_s]
    if not trained:
        return {}
    best = max(trained, key=lambda case: case.samples_per_s.value)
    times = step_samples(findings.source)
    rivals = (case for case in trained if (case.batch, case.cores) == (best.batch, best.cores))
    undecided = any(standing(times[case.case], times[best.case]).answer == "undecided" for case in rivals)
    figure = {"metric": "samples_per_s", "value": best.samples_per_s.value, "at": best.label}
    return figure | {"answer": "undecided" * undecided}
