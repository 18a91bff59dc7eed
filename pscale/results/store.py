"""Tables of a run on disk: small parts, each written whole or not at all, read as one.

A part has the rows of one launch. The parts of a run with many launches are joined in one file a table when
it has ended (`results.compact`): opening a file costs more than reading a launch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pscale import durable
from pscale.errors import ResultsError
from pscale.results.schema import TABLES, VERSION, Table

_AT_A_TIME = 64  # parts that are read before they are joined
_WORTH_THREADS = 100_000  # rows
BATCH_ROWS = 1 << 17  # read at once, at least: enough that what a batch costs beside its rows is small
JOINED = b"pscale_parts"  # in the metadata of a joined file: which parts are in it
_VERSION = b"pscale_schema"
_CODED = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """A part that cannot be read, and why."""

    table: Table
    case: str
    repeat: int
    path: Path
    why: str


def part_path(data: Path, table: Table, case: str, repeat: int) -> Path:
    """Return where the rows of one launch go."""
    return data / f"{table}-{case}-{repeat}.parquet"


def part_paths(data: Path, table: Table) -> list[Path]:
    """Return all parts of a table, in order of their names."""
    return sorted(data.glob(f"{table}-*.parquet"))


def joined_path(data: Path, table: Table) -> Path:
    """Return where the joined parts of a table are, if they are."""
    return data / f"{table}.parquet"


def write_part(data: Path, table: Table, case: str, repeat: int, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the rows of one launch; a column that is missing is null, an unknown one an error."""
    names = {name for row in rows for name in row} - {"case", "repeat"}
    columns = {name: [row.get(name) for row in rows] for name in names}
    return write_columns(data, table, case, repeat, columns)


def write_columns(
    data: Path, table: Table, case: str, repeat: int, columns: Mapping[str, Sequence[Any]]
) -> Path:
    """Write one launch given as columns of equal length; `case` and `repeat` are added."""
    length = len(next(iter(columns.values())))
    schema = TABLES[table]
    assert set(columns) <= set(schema.names), (
        f"{table} has no columns {sorted(set(columns) - set(schema.names))}"
    )
    whole = {"case": [case] * length, "repeat": [repeat] * length, **columns}
    arrays = [
        pa.array(whole[name], kind) if name in whole else pa.nulls(length, kind)
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    path = part_path(data, table, case, repeat)
    temporary = path.with_suffix(".tmp")
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), temporary, compression="zstd")
    durable.rename(temporary, path)
    return path


def read_part(
    data: Path, table: Table, case: str, repeat: int, chosen: Mapping[str, Sequence[int]] | None = None
) -> pa.Table:
    """Read the rows of one launch, of `chosen` columns only those with one of the values.

    Raises ResultsError where there are none that can be read.
    """
    path, schema = part_path(data, table, case, repeat), TABLES[table]
    if not path.exists() and joined_path(data, table).exists():
        return read_case(data, table, case, repeat)
    return _conform(_filtered(path, chosen) if chosen else _read(path, schema), schema)


def read_table(
    data: Path, table: Table, columns: Sequence[str] | None = None, damaged: list[Damaged] | None = None
) -> pa.Table:
    """Read all of a table, or some columns of it; empty where there is nothing. See `batches`."""
    found = list(batches(data, table, columns, damaged))
    return pa.concat_tables(found) if found else schema_of(table, columns).empty_table()


def batches(
    data: Path,
    table: Table,
    columns: Sequence[str] | None = None,
    damaged: list[Damaged] | None = None,
    coded: Sequence[str] = (),
) -> Iterator[pa.Table]:
    """Yield the rows of a table batch by batch, each of whole launches; `coded` texts as dictionaries.

    Parts that cannot be read are put into `damaged`; without it they raise ResultsError, as does whatever
    was written by a newer pscale. Arrow keeps some kilobytes for each column of a part, however few rows it
    has: parts are joined as they come.
    """
    schema, joined = schema_of(table, columns, coded), joined_path(data, table)
    parts, done = part_paths(data, table), frozenset[str]()
    if joined.exists():
        done = joined_parts(joined)
        for rows in _row_groups(joined, schema):
            yield _conform(rows, schema)
    waiting: list[pa.Table] = []
    for path in parts:
        if path.name in done:  # a crash left it behind
            continue
        rows = _part(path, table, schema, damaged)
        if rows is not None:
            waiting.append(rows)
        if len(waiting) >= _AT_A_TIME:
            waiting = [pa.concat_tables(waiting).combine_chunks()]
        if sum(map(len, waiting)) >= BATCH_ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def read_case(
    data: Path, table: Table, case: str, repeat: int | None = None, columns: Sequence[str] | None = None
) -> pa.Table:
    """Read the rows of one case, or of one launch of it; parts that cannot be read are left out."""
    import pyarrow.compute as pc  # noqa: PLC0415 - ranks write and never choose: they start without it

    schema, joined = schema_of(table, columns), joined_path(data, table)
    done = joined_parts(joined) if joined.exists() else frozenset[str]()

    def chosen(rows: pa.Table) -> pa.Table:
        of_case = pc.equal(rows["case"], case)
        return rows.filter(of_case if repeat is None else pc.and_(of_case, pc.equal(rows["repeat"], repeat)))

    found = [
        chosen(part)
        for path in sorted(data.glob(f"{table}-{case}-{'*' if repeat is None else repeat}.parquet"))
        if path.name not in done and (part := _part(path, table, schema, [])) is not None
    ]
    if done:
        found += [chosen(_conform(rows, schema)) for rows in _row_groups(joined, schema, case, repeat)]
    return pa.concat_tables(found or [schema.empty_table()])


def schema_of(table: Table, columns: Sequence[str] | None, coded: Sequence[str] = ()) -> pa.Schema:
    """Return the schema of a table with these columns alone, `coded` texts as dictionaries."""
    schema = TABLES[table]
    if columns is None and not coded:
        return schema
    fields = [schema.field(name) for name in columns or schema.names]
    return pa.schema(
        [each.with_type(_CODED) if each.name in coded else each for each in fields], schema.metadata
    )


def joined_parts(path: Path) -> frozenset[str]:
    """Return the names of the parts that are in a joined file."""
    with _reading(path):
        return frozenset(json.loads((pq.read_metadata(path).metadata or {}).get(JOINED, b"[]")))


def _part(path: Path, table: Table, schema: pa.Schema, damaged: list[Damaged] | None) -> pa.Table | None:
    try:
        with _reading(path):
            return _conform(_read(path, schema), schema)
    except _NewerError:
        raise
    except ResultsError as error:
        if damaged is None:
            raise
        case, _, repeat = path.stem.removeprefix(f"{table}-").rpartition("-")
        number = int(repeat) if repeat.isdecimal() else 0
        damaged.append(Damaged(table=table, case=case, repeat=number, path=path, why=str(error)))
        return None


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    with _reading(path):
        file, names = _opened(path, schema)
        return file.read(names, use_threads=file.metadata.num_rows > _WORTH_THREADS)


def _opened(path: Path, schema: pa.Schema) -> tuple[pq.ParquetFile, list[str]]:
    """Return a file, which keeps texts coded that the schema wants so, and which of its columns it has."""
    coded = [each.name for each in schema if each.type == _CODED]
    file = pq.ParquetFile(path, read_dictionary=coded)
    _check_version(path, file.metadata.metadata or {})
    present = set(file.schema_arrow.names)
    return file, [name for name in schema.names if name in present]


def _filtered(path: Path, chosen: Mapping[str, Sequence[int]]) -> pa.Table:
    """Read rows by the values of columns; groups of rows that cannot hold any are left on disk."""
    filters = [(name, "in", list(values)) for name, values in chosen.items()]
    with _reading(path):
        _check_version(path, pq.read_metadata(path).metadata or {})
        return pq.read_table(path, filters=filters, partitioning=None)


def _row_groups(
    path: Path, schema: pa.Schema, case: str | None = None, repeat: int | None = None
) -> Iterator[pa.Table]:
    """Yield the row groups of a joined file, or those that may have rows of a case or of a launch."""
    with _reading(path):
        file, names = _opened(path, schema)
        for group in range(file.num_row_groups):
            keys = (file.metadata.row_group(group).column(place).statistics for place in (0, 1))
            if all(_may_hold(key, wanted) for key, wanted in zip(keys, (case, repeat), strict=True)):
                yield file.read_row_group(group, names)


def _may_hold(key: pq.Statistics | None, wanted: str | int | None) -> bool:
    return wanted is None or key is None or key.min <= wanted <= key.max


def _conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema; those that an older version did not have are null."""
    if rows.schema.equals(schema):  # of this version: a hundred casts for nothing
        return pa.Table.from_arrays(rows.columns, schema=schema)
    found = dict(zip(rows.column_names, rows.columns, strict=True))
    columns = [
        _cast(found[field.name], field.type) if field.name in found else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == kind else column.cast(kind)


class _NewerError(ResultsError):
    """A file of a newer pscale, of which nothing can be believed."""


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what Arrow says of a file that is none of ours into a message with its name."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise ResultsError(f"{path}: not a readable Parquet file ({first})") from error


def _check_version(path: Path, metadata: Mapping[bytes, bytes]) -> None:
    try:
        version = int(metadata[_VERSION])
    except (KeyError, ValueError):
        raise ResultsError(f"{path}: Parquet, but not written by pscale") from None
    if version > VERSION:
        raise _NewerError(
            f"{path}: schema {version} of a newer pscale, this one reads up to {VERSION}; upgrade pscale"
        )
