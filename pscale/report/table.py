"""A table of values, before anyone decides how to write it: for people, or for programs in full."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, Union

from pscale.report import text
from pscale.report.text import MISSING, clean

if TYPE_CHECKING:  # tables of other things need no library that computes
    from pscale.analysis.stats import Estimate


class Written(NamedTuple):
    """A number whose text says more than it, such as `30 of 31`."""

    value: float | None
    text: str


Value = Union[str, float, "Estimate", Written, None]  # also numbers with their bounds; None: not known
Tone = Literal["", "base", "bad", "pending", "good"]
TableRow = tuple[Tone, tuple[Value, ...]]


_UNIT = re.compile("_(per_s|s|bytes)$")  # at the end of a column's name
_WRITERS: dict[str, Callable[[Any], str]] = {  # of the numbers of a unit
    "count": str,
    "number": text.number,
    "ratio": text.number_3,
    "share": text.percent_1,
    "change": text.change,
    "s": text.duration_3,
    **dict.fromkeys(("bytes", "size"), text.size_of),
    **dict.fromkeys(("bytes_per_s", "per_s", "flops"), text.rate),
    "gflops": text.number_3,
}
_INTERVALS: dict[str, Callable[[Any], str]] = {
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
    the bounds of `bounded` ones below the value, and draws `bar` ones, shares. `key` is the name for
    programs, with the unit; a column without any other is for programs alone. `case` is what all of the
    column is about. `get` takes the value out of a finding, by the name of its attribute or a function of
    it: see `listed`. Of a declared column, heading, `write` and the `hint` of a page follow from that.
    """

    name: str = ""
    write: Callable[[Any], str] | None = None
    wide: bool = False
    fold: bool = False
    interval: bool = False
    band: bool = False
    bounded: bool = False
    bar: bool = False
    key: str = ""
    case: str = ""
    get: str | Callable[[Any], Value] = ""
    hint: str = ""

    def declared(self, rows: Sequence[Any]) -> Column:
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


Columns = Sequence[Column | str]  # a text is the name of a declared column


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: one tone and as many values as columns in every row.

    In a `grouped` one several rows in turn are about what the first of them begins with. `cases` are those
    that the rows are about, empty for a row about several. `files` are names of the data for programs, where
    these differ from the topic's.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    caption: str = ""
    grouped: bool = False
    cases: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[Sequence[Value]], *names: str, bounded: Collection[str] = ()) -> Self:
        """Return rows for programs under the names of their columns; of `bounded` ones with the bounds."""
        columns = tuple(Column("", key=name, interval=name in bounded) for name in names)
        return cls(title="", columns=columns, rows=tuple(("", tuple(row)) for row in rows))

    def filled(self) -> Self:
        """Return the table without the columns that no row has a value for."""
        return self._of([any(self._known(row, place) for row in self.rows) for place in self._places])

    def narrow(self) -> Self:
        """Return the table without the columns for wide screens."""
        return self._of([not column.wide for column in self.columns])

    def for_people(self) -> Self:
        """Return the table without the columns for programs."""
        return self._of([bool(column.name) or not column.key for column in self.columns])

    def texts(self) -> Iterator[tuple[Tone, tuple[str, ...]]]:
        """Yield the rows as people read them; what a group is about stands in its first row alone."""
        before = None
        for tone, values in self.rows:
            texts = tuple(column.cell(value) for column, value in zip(self.columns, values, strict=True))
            yield tone, ("", *texts[1:]) if self.grouped and texts[0] == before else texts
            before = texts[0]

    def tidy(self) -> tuple[list[str], list[dict[str, Any]]]:
        """Return names and rows for programs; bounds of an interval are in `_low` and `_high`."""
        names: list[str] = []
        for column in self.columns:
            if column.key:
                names += [column.key, *((f"{column.key}_low", f"{column.key}_high") * column.interval)]
        return names, [self._record(values) for _, values in self.rows]

    def _record(self, values: Sequence[Value]) -> dict[str, Any]:
        record: dict[str, Any] = {}
        for column, value in zip(self.columns, values, strict=True):
            if column.key:
                record[column.key] = plain(value)
            if column.key and column.interval:
                bounds = (getattr(value, "low", None), getattr(value, "high", None))
                record |= {f"{column.key}_low": bounds[0], f"{column.key}_high": bounds[1]}
        return record

    @property
    def _places(self) -> range:
        return range(len(self.columns))

    def _known(self, row: TableRow, place: int) -> bool:
        return self.columns[place].cell(row[1][place]) not in (MISSING, "")

    def _of(self, chosen: Sequence[bool]) -> Self:
        kept = [place for place in self._places if chosen[place]]
        return replace(
            self,
            columns=tuple(self.columns[place] for place in kept),
            rows=tuple((tone, tuple(values[place] for place in kept)) for tone, values in self.rows),
        )


def listed(
    title: str,
    findings: Iterable[Any],
    columns: Columns,
    *,
    caption: str = "",
    grouped: bool = False,
    filled: bool = False,
    tone: Callable[[Any], Tone] = lambda _: "",
    case: Callable[[Any], str] = lambda finding: getattr(finding, "case", ""),
    files: tuple[str, ...] = (),
) -> Iterator[Table]:
    """Yield a table with a row for each finding, of what its columns get; none without findings.

    The name of a declared column is one too. A `filled` table has no columns that no finding has a value for.
    """
    found = list(findings)
    named = (Column(get=column) if isinstance(column, str) else column for column in columns)
    shown = tuple(column.declared(found) for column in named)
    rows = tuple((tone(each), tuple(column.value(each) for column in shown)) for each in found)
    if rows:
        table = Table(
            title=title,
            columns=shown,
            rows=rows,
            caption=caption,
            grouped=grouped,
            cases=tuple(map(case, found)),
            files=files,
        )
        yield table.filled() if filled else table


def plain(value: Value) -> str | float | None:
    """Return the number or the text in a value."""
    return value if isinstance(value, str | float | int | None) else value.value


def table_of(
    findings: Iterable[Any],
    kind: type,
    labels: Mapping[str, str] | None = None,
    left_out: Sequence[str] = (),
) -> Table:
    """Return findings of one dataclass for programs: a column a field, but for those `left_out`.

    With `labels` of the cases that findings are about, case and label come first.
    """
    known = [each.name for each in fields(kind) if each.name not in left_out]
    names = dict.fromkeys((*(("case", "label") if labels is not None else ()), *known))
    bounded = {each.name for each in fields(kind) if "Estimate" in str(each.type)}

    def value(finding: Any, name: str) -> Value:
        if name == "label" and name not in known:
            return (labels or {}).get(finding.case, "")
        found: Any = getattr(finding, name)
        return " ".join(map(str, found)) if isinstance(found, tuple) else found

    return Table.of(([value(each, name) for name in names] for each in findings), *names, bounded=bounded)
