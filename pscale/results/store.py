"""Tables of a run on disk: small parts, each written whole or not at all, read as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pscale import durable
from pscale.errors import ResultsError
from pscale.results.schema import TABLES, VERSION, Table

_JOINED = 64  # parts at a time
_WORTH_THREADS = 100_000  # rows


def part_path(data: Path, table: Table, case: str, repeat: int) -> Path:
    """Return where the rows of one launch go."""
    return data / f"{table}-{case}-{repeat}.parquet"


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
    return _read_part(part_path(data, table, case, repeat), TABLES[table], chosen)


def read_table(data: Path, table: Table) -> pa.Table:
    """Read all parts of one table of a run; empty where there are none.

    Arrow keeps some kilobytes for each column of a part, however few rows it has: parts are joined as they
    come.
    """
    parts = sorted(data.glob(f"{table}-*.parquet"))
    joined = []
    for start in range(0, len(parts), _JOINED):
        few = [_read_part(path, TABLES[table]) for path in parts[start : start + _JOINED]]
        joined.append(pa.concat_tables(few).combine_chunks())
    return pa.concat_tables(joined) if joined else TABLES[table].empty_table()


def _read_part(path: Path, schema: pa.Schema, chosen: Mapping[str, Sequence[int]] | None = None) -> pa.Table:
    try:
        file = pq.ParquetFile(path)
        version = _version(path, file.schema_arrow.metadata or {})
        threads = file.metadata.num_rows > _WORTH_THREADS
        table = file.read(use_threads=threads) if not chosen else _filtered(path, chosen)
    except (pa.ArrowInvalid, OSError) as error:
        raise ResultsError(f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})") from error
    if version > VERSION:
        raise ResultsError(
            f"{path}: schema {version} of a newer pscale, this one reads up to {VERSION}; upgrade pscale"
        )
    if table.schema.equals(schema):  # of this version: a hundred casts for nothing
        return pa.Table.from_arrays(table.columns, schema=schema)
    columns = [
        table[name].cast(schema.field(name).type)
        if name in table.column_names
        else pa.nulls(len(table), schema.field(name).type)
        for name in schema.names
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _filtered(path: Path, chosen: Mapping[str, Sequence[int]]) -> pa.Table:
    """Read rows by the values of columns; groups of rows that cannot hold any are left on disk."""
    filters = [(name, "in", list(values)) for name, values in chosen.items()]
    return pq.read_table(path, filters=filters, partitioning=None)


def _version(path: Path, metadata: Mapping[bytes, bytes]) -> int:
    try:
        return int(metadata[b"pscale_schema"])
    except (KeyError, ValueError):
        raise ResultsError(f"{path}: Parquet, but not written by pscale") from None
