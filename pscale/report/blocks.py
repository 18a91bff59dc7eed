"""What a page is made of, before the templates write it; topics, of which every format is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

from pscale.analysis import text
from pscale.analysis.columns import FRAMES, Row
from pscale.analysis.findings import Findings
from pscale.analysis.stats import Estimate
from pscale.report.figure_style import Vector
from pscale.report.table import Column, Columns, Table, Tone, Value, listed, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATA = (*FRAMES, "loss")  # names of CSV files
MOST_ROWS = 400  # of a table; that of all cases has up to MOST_CASES
MOST_CASES = 2000
_LARGEST_FILE = 300_000  # bytes of a CSV file inside the page
_OPEN = 24  # rows that are not folded away
_FILTERED = 8  # rows; for more there is a box to filter them
_LONG = 40  # characters of a text that takes several lines
_PLAIN = ",;:/?=+$!*'()[]|~{}_.-@"  # in an address
Band = Literal["", "high", "good", "fair", "low"]  # of an efficiency
_BANDS: tuple[tuple[float, Band], ...] = ((0.9, "high"), (0.8, "good"), (0.6, "fair"))


class Attachment(NamedTuple):
    """A file inside the page; without `address` it was too large for that, and the page says where it is.

    `again`: it is inside the page above already.
    """

    name: str
    size: int  # bytes
    address: str = ""
    again: bool = False


class Cell(NamedTuple):
    """One cell of a table: its text, the number that it is sorted by, and how it is drawn."""

    text: str
    order: str = ""
    classes: str = ""
    note: str = ""  # a second, smaller line
    bar: float | None = None  # drawn under the number, as a share of the cell
    prose: bool = False
    case: str = ""


class Listing(NamedTuple):
    """A table on the page, with the files that hold all of its data."""

    name: str
    table: Table
    left_out: str = ""
    files: tuple[Attachment, ...] = ()
    folded: bool = False
    ordered: bool = True  # rows may be put in another order; not those of a tree

    @property
    def long(self) -> bool:
        """Whether a box to filter rows is worth its place."""
        return self.ordered and len(self.table.rows) > _FILTERED

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


class Facts(NamedTuple):
    """Names with their values."""

    title: str
    items: tuple[tuple[str, str], ...]
    folded: bool = False


class Quote(NamedTuple):
    """Text as it is in a file."""

    title: str
    text: str


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


class Bands(NamedTuple):
    """What the colours of efficiencies mean."""


class Downloads(NamedTuple):
    """Files for programs alone."""

    title: str
    files: tuple[Attachment, ...]


Block = Downloads | Listing | Picture | Words | Facts | Quote | Headlines | Tiles | Stack | Bands


class Section(NamedTuple):
    """A chapter of the page."""

    name: str
    title: str
    lead: str
    blocks: Sequence[Block]


@dataclass(frozen=True, kw_only=True)
class Context:
    """What every section is made from: the findings of a run, its figures by name, the text of a CSV file.

    `offered` are the files that are inside the page so far.
    """

    findings: Findings
    vectors: Mapping[str, Vector]
    csv: Callable[[str], str]  # by name
    offered: set[str] = field(default_factory=set)

    def files(self, *names: str) -> tuple[Attachment, ...]:
        """Return CSV tables as files inside the page, each once; what has no rows is left out."""
        return tuple(self._file(name) for name in names if self.csv(name).count("\n") > 1)

    def others(self) -> tuple[Attachment, ...]:
        """Return the files that no table of the page so far has."""
        return self.files(*(name for name in DATA if name not in self.offered))

    def _file(self, name: str) -> Attachment:
        text = self.csv(name)
        size, again = len(text.encode()), name in self.offered
        self.offered.add(name)
        if size > _LARGEST_FILE:
            return Attachment(name=f"{name}.csv", size=size)
        address = "" if again else f"data:text/csv;charset=utf-8,{quote(text, safe=_PLAIN)}"
        return Attachment(name=f"{name}.csv", size=size, address=address, again=again)

    def listings(self, tables: Iterable[Table], name: str, *, most: int = MOST_ROWS) -> list[Listing]:
        """Return tables for the page, `most` rows of each, with their files."""
        found = []
        for place, table in enumerate(tables):
            total, rows = len(table.rows), table.rows[:most]
            cut = f"{len(rows):,} of {total:,} rows are listed here." if len(rows) < total else ""
            listing = Listing(
                name=f"{name}-{place}",
                table=replace(table, rows=rows),
                left_out=cut,
                folded=len(rows) > _OPEN,
                files=self.files(*table.files),
            )
            found.append(listing)
        return found


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
        case=column.case,
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
    * `details` are on the page alone, as what its figure shows; without them its tables are that;
    * `figure` is its figure;
    * `blocks` is its section of the page, where that has more than figure and tables.
    """

    name: str  # of its section
    title: Wording
    lead: Wording = ""
    paragraphs: Callable[[Findings], Iterable[str]] = lambda _: ()
    tables: Tables = lambda _: ()
    details: Tables = lambda _: ()
    figure: TopicFigure | None = None
    blocks: Callable[[Context], Sequence[Block]] | None = None

    def section(self, context: Context) -> Section | None:
        """Return the section of the page; None where there is nothing to say."""
        blocks = self.blocks(context) if self.blocks else self._blocks(context)
        if not blocks:
            return None
        title, lead = (said(context.findings) if callable(said) else said for said in (self.title, self.lead))
        return Section(name=self.name, title=title, lead=lead, blocks=blocks)

    def _blocks(self, context: Context) -> Sequence[Block]:
        findings = context.findings
        said = (Words(title="", lines=(words,)) for words in self.paragraphs(findings))
        data = context.listings(self.details(findings), f"{self.name}-data")
        shown = context.listings(self.tables(findings), self.name)
        if not data:
            data, shown = shown, []
        return [*said, *with_picture(context, self.figure, data), *shown]


def with_picture(context: Context, figure: TopicFigure | None, data: Sequence[Listing]) -> Sequence[Block]:
    """Return a figure with its data; the data alone where it was not drawn."""
    if figure is None or figure.name not in context.vectors:
        return data
    said = {"name": figure.name, "title": figure.title, "description": figure.description}
    folded = (each._replace(folded=each.folded or each.long) for each in data)
    return [Picture(**said, vector=context.vectors[figure.name], data=tuple(folded))]
