"""What a page is made of, before the templates write it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal
from urllib.parse import quote

from pscale.analysis.columns import Row
from pscale.analysis.findings import Findings
from pscale.analysis.stats import Estimate
from pscale.report import text
from pscale.report.table import Column, Table, Tone, Value, plain
from pscale.report.vector import Vector

MOST_ROWS = 400  # of a table that has several rows a case; that of all cases has up to MOST_CASES
MOST_CASES = 2000
_LARGEST_FILE = 300_000  # bytes of a CSV file inside the page
_OPEN = 24  # rows that are not folded away
_FILTERED = 8  # rows; for more there is a box to filter them
_LONG = 40  # characters of a text that takes several lines
_PLAIN = ",;:/?=+$!*'()[]|~{}_.-@"  # in an address
Band = Literal["", "high", "good", "fair", "low"]  # of an efficiency
_BANDS: tuple[tuple[float, Band], ...] = ((0.9, "high"), (0.8, "good"), (0.6, "fair"))


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A file inside the page; without `address` it was too large for that, and the page says where it is.

    `again`: it is inside the page above already.
    """

    name: str
    size: int  # bytes
    address: str = ""
    again: bool = False


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table: its text, the number that it is sorted by, and how it is drawn."""

    text: str
    order: str = ""
    classes: str = ""
    note: str = ""  # a second, smaller line
    bar: float | None = None  # drawn under the number, as a share of the cell
    prose: bool = False
    case: str = ""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A table on the page, with the files that hold all of its data."""

    kind: ClassVar = "listing"
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


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure with the table of what it shows."""

    kind: ClassVar = "picture"
    name: str
    title: str
    description: str  # what it shows, for those who do not see it
    vector: Vector
    data: tuple[Listing, ...] = ()
    case: str = ""  # that all of it is about


@dataclass(frozen=True, kw_only=True)
class Words:
    """A list of sentences."""

    kind: ClassVar = "words"
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names with their values."""

    kind: ClassVar = "facts"
    title: str
    items: tuple[tuple[str, str], ...]
    folded: bool = False


@dataclass(frozen=True, kw_only=True)
class Quote:
    """Text as it is in a file."""

    kind: ClassVar = "quote"
    title: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Headlines:
    """Topics and sentences in large letters; `more` of them are folded, `left_out` are not on the page."""

    kind: ClassVar = "headlines"
    warning: str
    lines: tuple[tuple[str, str], ...]
    more: tuple[tuple[str, str], ...] = ()
    left_out: int = 0
    concerns: tuple[tuple[str, Tone], ...] = ()  # failures and doubts, described in a section of their own


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One figure in large letters, with its name and a note."""

    name: str
    value: str
    unit: str = ""
    note: str = ""
    band: Band = ""


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Figures side by side."""

    kind: ClassVar = "tiles"
    items: tuple[Tile, ...]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a whole; `lost` is where it begins and ends among all that is lost, as shares of that."""

    kind: str
    name: str
    share: float
    text: str
    time: str
    lost: tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A bar whose parts add up to one, and below it a waterfall of those that are lost."""

    kind: ClassVar = "stack"
    title: str
    description: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Bands:
    """What the colours of efficiencies mean."""

    kind: ClassVar = "bands"


@dataclass(frozen=True, kw_only=True)
class Downloads:
    """Files for programs alone."""

    kind: ClassVar = "downloads"
    title: str
    files: tuple[Attachment, ...]


Block = Downloads | Listing | Picture | Words | Facts | Quote | Headlines | Tiles | Stack | Bands


@dataclass(frozen=True, kw_only=True)
class Section:
    """A chapter of the page."""

    name: str
    title: str
    lead: str
    blocks: Sequence[Block]


@dataclass(frozen=True, kw_only=True)
class Context:
    """What every section is made from: the findings of a run, its figures and its CSV files by name.

    `offered` are the files that are inside the page so far.
    """

    findings: Findings
    vectors: Mapping[str, Vector]
    csv: Mapping[str, str]
    offered: set[str] = field(default_factory=set)

    def files(self, *names: str) -> tuple[Attachment, ...]:
        """Return CSV tables as files inside the page, each once; what has no rows is left out."""
        return tuple(self._file(name) for name in names if self.csv[name].count("\n") > 1)

    def others(self) -> tuple[Attachment, ...]:
        """Return the files that no table of the page so far has."""
        return self.files(*(name for name in self.csv if name not in self.offered))

    def _file(self, name: str) -> Attachment:
        size, again = len(self.csv[name].encode()), name in self.offered
        self.offered.add(name)
        if size > _LARGEST_FILE:
            return Attachment(name=f"{name}.csv", size=size)
        address = "" if again else f"data:text/csv;charset=utf-8,{quote(self.csv[name], safe=_PLAIN)}"
        return Attachment(name=f"{name}.csv", size=size, address=address, again=again)

    def listings(
        self, tables: Iterable[Table], name: str, *files: str, left_out: str = "", most: int = MOST_CASES
    ) -> list[Listing]:
        """Return tables for the page, `most` rows of each, with their own files or else with these."""
        found = []
        for place, table in enumerate(tables):
            total, rows = len(table.rows), table.rows[:most]
            cut = f"{len(rows):,} of {total:,} rows are listed here." if len(rows) < total else ""
            found.append(
                Listing(
                    name=f"{name}-{place}",
                    table=replace(table, rows=rows),
                    left_out=" ".join(filter(None, (left_out, cut))),
                    folded=len(rows) > _OPEN,
                    files=self.files(*(table.files or files)),
                )
            )
        return found


def band(value: float | None) -> Band:
    """Return the band of an efficiency."""
    if value is None:
        return ""
    return next((name for least, name in _BANDS if value >= least), "low")


def chosen(findings: Findings, rows_per_case: float) -> tuple[Findings, str]:
    """Return the run with as many cases as a table has room for, and what was left out, in words.

    Where not all fit, they are the smallest and the largest of each series, as far as these fit.
    """
    most = max(2, int(MOST_ROWS / max(rows_per_case, 1)))
    measured = [point for point in findings.rows("cases") if point.steps]
    if len(measured) <= most:
        return findings, ""
    if findings.side_by_side:
        kept, which = measured[:most], "the first"
    else:
        ends: list[Row] = []
        for points in findings.series.values():
            known = [point for point in points if point.steps]
            ends += dict.fromkeys(known[:1] + known[-1:])
        kept, which = ends[:most], "the smallest and the largest case of each series"
        which += "" if len(kept) == len(ends) else " that there is room for"
    cases = {point.case for point in kept}
    said = f"Listed: {which}, {len(kept):,} of {len(measured):,} measured cases."
    return findings.of_cases(cases), said


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
    bounds = ""
    if column.bounded and isinstance(value, Estimate) and value.low is not None:
        bounds = text.percent_interval(value)
    return Cell(
        text=words,
        order="" if order == words else order,
        classes=" ".join(filter(None, (left, f"b-{level}" if level else "", "x" * column.wide))),
        note="" if bounds == f"{words[:-1]}–{words}" else bounds,
        bar=min(number, 1.0) if column.bar and number is not None else None,
        prose=column.fold and not column.right,
        case=column.case,
    )
