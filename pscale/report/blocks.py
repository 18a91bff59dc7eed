"""What a page is made of, before the templates write it; topics, of which every format is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pscale.analysis import text
from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.analysis.stats import Estimate
from pscale.report.figure_style import Vector
from pscale.report.table import Column, Columns, Table, TableRow, Tone, Value, listed, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OPEN = 24  # rows that are not folded away
_FILTERED = 8  # rows; for more there is a box to filter them
_LONG = 40  # characters of a text that takes several lines
Band = Literal["", "high", "good", "fair", "low"]  # of an efficiency
_BANDS: tuple[tuple[float, Band], ...] = ((0.9, "high"), (0.8, "good"), (0.6, "fair"))


class Attachment(NamedTuple):
    """A file inside the page; without `address` it was too large for that, and the page says where it is."""

    name: str
    size: int  # bytes
    address: str


class Cell(NamedTuple):
    """One cell of a table: its text, the number that it is sorted by, and how it is drawn."""

    text: str
    order: str = ""
    classes: str = ""
    note: str = ""  # a second, smaller line
    bar: float | None = None  # drawn under the number, as a share of the cell
    prose: bool = False


class Listing(NamedTuple):
    """A table on the page: `most` rows of it."""

    name: str
    table: Table
    most: int = 400

    @property
    def rows(self) -> Sequence[TableRow]:
        """Those that are on the page."""
        return self.table.rows[: self.most]

    @property
    def left_out(self) -> str:
        """How many rows are not on the page, in words."""
        total = len(self.table.rows)
        return f"{self.most:,} of {total:,} rows are listed here." if self.most < total else ""

    @property
    def folded(self) -> bool:
        """Whether a reader has to ask for it."""
        return len(self.rows) > _OPEN

    @property
    def long(self) -> bool:
        """Whether a box to filter rows is worth its place."""
        return len(self.rows) > _FILTERED

    def cells(self, values: Sequence[Value]) -> list[Cell]:
        """Return the cells of a row."""
        return [_cell(column, value) for column, value in zip(self.table.columns, values, strict=True)]


class Picture(NamedTuple):
    """A figure with the table of what it shows."""

    name: str
    title: str
    description: str  # what it shows, for those who do not see it
    vector: Vector
    data: tuple[Listing, ...] = ()
    case: str = ""  # that all of it is about


class Words(NamedTuple):
    """A list of sentences."""

    title: str
    lines: tuple[str, ...]


class Headlines(NamedTuple):
    """Topics and sentences in large letters; `more` of them are folded, `left_out` are not on the page."""

    warning: str
    lines: tuple[tuple[str, str], ...]
    more: tuple[tuple[str, str], ...] = ()
    left_out: int = 0
    concerns: tuple[tuple[str, Tone], ...] = ()  # failures and doubts, described in a section of their own


class Tile(NamedTuple):
    """One figure in large letters, with its name and a note."""

    name: str
    value: str
    unit: str = ""
    note: str = ""
    band: Band = ""


class Tiles(NamedTuple):
    """Figures side by side."""

    items: tuple[Tile, ...]


class Part(NamedTuple):
    """A part of a whole; `lost` is where it begins and ends among all that is lost, as shares of that."""

    kind: str
    name: str
    share: float
    text: str
    time: str
    lost: tuple[float, float] | None


class Stack(NamedTuple):
    """A bar whose parts add up to one, and below it a waterfall of those that are lost."""

    title: str
    description: str
    parts: tuple[Part, ...]


class Files(NamedTuple):
    """The text of the suite, and tables for programs."""

    suite: str
    tables: tuple[Attachment, ...]


Block = Files | Listing | Picture | Words | Headlines | Tiles | Stack


class Section(NamedTuple):
    """A chapter of the page."""

    name: str
    title: str
    lead: str
    blocks: Sequence[Block]


def listings(tables: Iterable[Table], name: str, most: int = 400) -> list[Listing]:
    """Return tables for the page, `most` rows of each."""
    return [Listing(f"{name}-{place}", table, most) for place, table in enumerate(tables)]


def band(value: float | None) -> Band:
    """Return the band of an efficiency."""
    if value is None:
        return ""
    return next((name for least, name in _BANDS if value >= least), "low")


def _shown(column: Column, value: Value) -> float | None:
    """Return the number that a cell shows, the first of several."""
    known = value.low if column.interval and isinstance(value, Estimate) else plain(value)
    shown = any(map(str.isdigit, column.cell(value)))
    return float(known) if shown and isinstance(known, int | float) else None


def _cell(column: Column, value: Value) -> Cell:
    words, number = column.cell(value), _shown(column, value)
    order = "" if number is None else f"{number:.6g}"
    level = band(number) if column.band else ""
    left = "" if column.right else "w" if column.fold and len(words) > _LONG else "l"
    stated = column.bounded and isinstance(value, Estimate) and value.low is not None
    bounds = text.percent_interval(value) if stated else ""  # type: ignore[arg-type]
    return Cell(
        text=words,
        order="" if order == words else order,
        classes=" ".join(filter(None, (left, f"b-{level}" if level else "", "x" * column.wide))),
        note="" if bounds == f"{words[:-1]}–{words}" else bounds,
        bar=min(number, 1.0) if column.bar and number is not None else None,
        prose=column.fold and not column.right,
    )


# Topics

Wording = str | Callable[[Findings], str]
Tables = Callable[[Findings], Iterable[Table]]


def show(
    title: str, frame: str, columns: Columns, only: Callable[[Row], Any] = lambda _: True, **how: Any
) -> Tables:
    """Return the table of the rows of a frame, or `only` some; `how` it is `listed`."""
    return lambda findings: listed(title, filter(only, findings.rows(frame)), columns, **how)


@dataclass(frozen=True, kw_only=True)
class TopicFigure:
    """A figure: `draw` returns None where a run has nothing to show; it imports what it draws with."""

    name: str
    title: str
    description: str  # for those who do not see it
    draw: Callable[[Findings], Figure | None]


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One topic, from which all formats follow; the order of topics is that of the list in this package.

    * `paragraphs` stand before all else;
    * `tables` are for people: on the terminal, in Markdown and LaTeX, and on the page;
    * `lists` of sentences by title stand behind them;
    * `details` are on the page alone, as what its figure shows; without them its tables are that;
    * `figure` is its figure;
    * `head` is what a page has above all of them.
    """

    name: str  # of its section
    title: Wording
    lead: Wording = ""
    paragraphs: Callable[[Findings], Iterable[str]] = lambda _: ()
    tables: Tables = lambda _: ()
    lists: Callable[[Findings], Mapping[str, Sequence[str]]] = lambda _: {}
    details: Tables = lambda _: ()
    figure: TopicFigure | None = None
    most: int = 400  # rows of a table on the page
    head: Callable[[Findings], Iterable[Block]] = lambda _: ()

    def section(self, findings: Findings, vectors: Mapping[str, Vector]) -> Section | None:
        """Return the section of the page, with its figure by name; None where there is nothing to say."""
        data = listings(self.details(findings), f"{self.name}-data", self.most)
        shown = listings(self.tables(findings), self.name, self.most)
        if not data:
            data, shown = shown, []
        figure = self.figure
        drawn: Sequence[Block] = data
        if figure and (vector := vectors.get(figure.name)):
            drawn = [Picture(figure.name, figure.title, figure.description, vector, tuple(data))]
        paragraphs = [Words("", (words,)) for words in self.paragraphs(findings)]
        lists = [Words(title, tuple(lines)) for title, lines in self.lists(findings).items() if lines]
        blocks = [*self.head(findings), *paragraphs, *drawn, *shown, *lists]
        if not blocks:
            return None
        title, lead = (each(findings) if callable(each) else each for each in (self.title, self.lead))
        return Section(name=self.name, title=title, lead=lead, blocks=blocks)
