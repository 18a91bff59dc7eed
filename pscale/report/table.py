"""A table of values, before anyone decides how to write it; and on a terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, Union

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from pscale.analysis import text
from pscale.analysis.text import MISSING, clean

if TYPE_CHECKING:
    from pscale.analysis.stats import Estimate


class Written(NamedTuple):
    """A number whose text says more than it, such as `30 of 31`."""

    value: float | None
    text: str


Value = Union[str, float, "Estimate", Written, None]  # also numbers with their bounds; None: not known
Tone = Literal["", "base", "bad", "pending", "good"]
_KEPT = ("name", "right", "wide", "fold", "note")  # of a column in a document
TableRow = tuple[Tone, tuple[Value, ...]]

_UNIT = re.compile("_(per_s|s|bytes)$")  # at the end of a column's name
_WRITERS: dict[str, Callable[[Any], str]] = {  # of the numbers of a unit
    "count": str,
    "number": text.number,
    "ratio": text.number_3,
    "share": text.percent,
    "change": text.change,
    "s": text.duration_3,
    **dict.fromkeys(("bytes", "size"), text.size_of),
    **dict.fromkeys(("bytes_per_s", "per_s", "flops"), text.rate),
    "gflops": text.number_3,
}
_INTERVALS: dict[str, Callable[[Any], str]] = {
    "number": text.number_interval,
    "ratio": text.ratio_interval,
    "share": text.percent_interval,
    "change": text.change_interval,
    "s": text.duration_interval,
}


@dataclass(frozen=True)
class Column:
    """One column: its heading, and how `write` turns a number of it into text; a column of text has none.

    `wide` ones are left out where there is little room, `fold` ones may take several lines. `interval` ones
    write the bounds of an Estimate, all others its value. A page colours `band` ones, efficiencies, writes
    the bounds of `bounded` ones below the value, and draws `bar` ones, shares. `get` takes the value out of a
    finding, by the name of its attribute or a function of it: see `listed`. Of a declared column, heading,
    `write` and the `hint` of a page follow from that. A `note` is part of what stands below the table.
    """

    name: str = ""
    write: Callable[[Any], str] | None = None
    wide: bool = False
    fold: bool = False
    interval: bool = False
    band: bool = False
    bounded: bool = False
    bar: bool = False
    get: str | Callable[[Any], Value] = ""
    hint: str = ""
    note: str = ""

    def declared(self, rows: Sequence[Any], explain: Collection[str] = ()) -> Column:
        """Return the column as the frame of these rows declares it."""
        declared = getattr(rows[0], "declared", {}).get(self.get) if rows else None
        if declared is None:
            return self
        name = "95% interval" if self.interval else _UNIT.sub("", str(self.get)).replace("_", " ")
        return replace(
            self,
            name=self.name or name,
            write=self.write or (_INTERVALS if self.interval else _WRITERS).get(declared.unit),
            hint=declared.meaning,
            note=declared.meaning if self.get in explain and not self.interval else self.note,
        )

    def value(self, finding: Any) -> Value:
        """Return what the column says of a finding."""
        found: Value = getattr(finding, self.get) if isinstance(self.get, str) else self.get(finding)
        return found

    @property
    def right(self) -> bool:
        """Whether it holds numbers, which are aligned at their ends."""
        return self.write is not None

    def cell(self, value: Value) -> str:
        """Return a value as people read it."""
        if value is None:
            return MISSING
        if isinstance(value, Written):
            value = value.text
        elif not self.interval:
            value = plain(value)
        return self.write(value) if self.write and not isinstance(value, str) else clean(str(value))


CASE = Column("case", fold=True, get="label")
Columns = Sequence[Column | str]  # a text is the name of a declared column


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: one tone and as many values as columns in every row.

    In a `grouped` one several rows in turn are about what the first of them begins with. `cases` are those
    that the rows are about, empty for a row about several.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    caption: str = ""
    grouped: bool = False
    cases: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """The caption, then what its columns mean."""
        notes = "; ".join(f"{column.name}: {column.note}" for column in self.columns if column.note)
        return (" " if self.caption.endswith(".") else "; ").join(filter(None, (self.caption, notes)))

    def document(self) -> dict[str, Any]:
        """Return the table as JSON keeps it, as people read it: what its cells hold besides is left out."""
        columns = [{name: getattr(each, name) for name in _KEPT} for each in self.columns]
        rows = [[tone, list(texts)] for tone, texts in self.texts()]
        return {"title": self.title, "caption": self.caption, "columns": columns, "rows": rows}

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return the table of a document; raises KeyError, TypeError or ValueError where it is none."""
        columns = tuple(
            Column(clean(str(name)), str if right else None, bool(wide), bool(fold), note=clean(str(note)))
            for name, right, wide, fold, note in (
                [each[key] for key in _KEPT] for each in document["columns"]
            )
        )
        rows: Any = tuple(
            (tone if tone in _STYLES else "", tuple(Written(None, str(cell)) for cell in cells))
            for tone, cells in document["rows"]
        )
        title, caption = (clean(str(document[name])) for name in ("title", "caption"))
        return cls(title=title, caption=caption, columns=columns, rows=rows)

    def filled(self) -> Self:
        """Return the table without the columns that no row has a value for."""
        cells = zip(*(texts for _, texts in self.texts()), strict=True)
        return self._of([not {MISSING, ""}.issuperset(column) for column in cells])

    def narrow(self) -> Self:
        """Return the table without the columns for wide screens."""
        return self._of([not column.wide for column in self.columns])

    def _of(self, chosen: Sequence[bool]) -> Self:
        rows = tuple((tone, tuple(compress(values, chosen))) for tone, values in self.rows)
        return replace(self, columns=tuple(compress(self.columns, chosen)), rows=rows)

    def texts(self) -> Iterator[tuple[Tone, tuple[str, ...]]]:
        """Yield the rows as people read them; what a group is about stands in its first row alone."""
        before = None
        for tone, values in self.rows:
            texts = tuple(column.cell(value) for column, value in zip(self.columns, values, strict=True))
            yield tone, ("", *texts[1:]) if self.grouped and texts[0] == before else texts
            before = texts[0]


def listed(
    title: str,
    findings: Iterable[Any],
    columns: Columns,
    *,
    caption: str = "",
    explain: Collection[str] = (),
    grouped: bool = False,
    filled: bool = False,
    tone: Callable[[Any], Tone] = lambda _: "",
    case: Callable[[Any], str] = lambda finding: getattr(finding, "case", ""),
) -> Iterator[Table]:
    """Yield a table with a row for each finding, of what its columns get; none without findings.

    The name of a declared column is one too. A `filled` table has no columns that no finding has a value for.
    Below it stands what the columns of `explain` mean.
    """
    found = list(findings)
    named = (Column(get=column) if isinstance(column, str) else column for column in columns)
    shown = tuple(column.declared(found, explain) for column in named)
    rows = tuple((tone(each), tuple(column.value(each) for column in shown)) for each in found)
    if rows:
        table = Table(
            title=title,
            columns=shown,
            rows=rows,
            caption=caption,
            grouped=grouped,
            cases=tuple(map(case, found)),
        )
        yield table.filled() if filled else table


def plain(value: Value) -> str | float | None:
    """Return the number or the text in a value."""
    return value if isinstance(value, str | float | int | None) else value.value


# Tables and lists on a terminal

_LEAST = 8  # characters of a column that takes several lines, if its texts are as long
_STYLES: dict[Tone, str] = {"": "", "base": "bold", "bad": "red", "pending": "dim", "good": "green"}


def print_table(table: Table, console: Console, *, explained: bool = True) -> None:
    """Print a table with its title and caption, and as many of its wide columns as there is room for."""
    rows = [*table.texts()]
    columns = [*zip(table.columns, zip(*(cells for _, cells in rows), strict=True), strict=True)]
    while not _fits(columns, console) and any(column.wide for column, _ in columns):
        columns.remove([each for each in columns if each[0].wide][-1])
    fits = _fits(columns, console)
    whole: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}  # words of a heading
    drawn = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column, cells in columns:
        longest = max(map(cell_len, cells))
        drawn.add_column(
            Text(
                "\n".join(
                    [column.name] if fits else textwrap.wrap(column.name, max(longest, _LEAST), **whole)
                )
            ),
            justify="right" if column.right else "left",
            overflow="fold" if column.fold else "ellipsis",
            width=_width(column, cells) if fits else None,  # which rich would work out again and again
            min_width=min(_LEAST, longest) if column.fold else longest,  # a number is never cropped
            no_wrap=not column.fold,
        )
    for place, (tone, _) in enumerate(rows):
        drawn.add_row(*(Text(cells[place]) for _, cells in columns), style=_STYLES[tone])
    console.print()
    console.print(Text(table.title, style="bold"))
    console.print(drawn)
    note = replace(table, columns=tuple(column for column, _ in columns)).note
    if explained and note:
        console.print(Text(note, style="dim"))


def print_topic(
    paragraphs: Iterable[str], tables: Iterable[Table], console: Console, notes: set[str]
) -> None:
    """Print paragraphs and tables; notes that were printed already are left out, others added to them."""
    for paragraph in paragraphs:
        console.print()
        console.print(Text(paragraph))
    for table in tables:
        print_table(table, console, explained=table.note not in notes)
        notes.add(table.note)


def print_list(title: str, lines: Sequence[str], console: Console) -> None:
    """Print lines under a title, if there are any."""
    if lines:
        console.print()
        console.print(Text(title, style="bold"))
    for line in lines:
        item = RichTable.grid(padding=(0, 1))
        item.add_row(Text("•"), Text(clean(line)))
        console.print(item)


def _width(column: Column, cells: Sequence[str]) -> int:
    """Return the cells of a terminal that the longest text of a column takes."""
    return max(map(cell_len, (column.name, *cells)))


def _fits(columns: Sequence[tuple[Column, Sequence[str]]], console: Console) -> bool:
    """Tell whether columns fit side by side, each with a space behind it and one between any two."""
    widths = sum(_width(column, cells) for column, cells in columns)
    return widths + 2 * len(columns) - 1 <= console.width
