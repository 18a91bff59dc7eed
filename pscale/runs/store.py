"""Tables of a run on disk: small parts, each written whole or not at all, read as one.

A part has the rows of one launch. `compact` joins the parts of a run with many launches in one file a table
when it has ended: opening a file costs more than reading a launch. Files of schema 1 are read with the names
that columns have now.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from pscale.config import Case
from pscale.config.axes import GRID_AXES, PLAN_AXES
from pscale.errors import ResultsError
from pscale.runs import atomic_files
from pscale.runs.launch_folder import LaunchFolder
from pscale.runs.run_shape import is_name_of_case, mismatch
from pscale.runs.schema import KINDS_OF_1, NAMES_OF_1, TABLES, VERSION, Table, Type

# Not events, which are read alone.
JOINED_TABLES: tuple[Table, ...] = ("cases", "steps", "calls", "ranks", "kernels", "figures")
LEAST = 16  # parts of a table that are joined: fewer are left as they are, a file a launch
_AT_A_TIME = 64  # parts that are read before they are joined
_WORTH_THREADS = 100_000  # rows
_MOST_OF_A_KEY = (1 << 31) - 1
_ROWS, _ROWS_PER_BYTE = 1_000_000, 20  # beyond these, rows are equal: made to fill memory, not measured
_LONGEST_LIST = 10_000  # of columns or groups of rows: a file that lists more was made to fill memory
_WRITTEN_AT_ONCE = 1 << 20  # bytes
_LONGEST_BYTES = 256 << 20  # of what a launch says of itself
BATCH_ROWS = 1 << 17  # read at once, at least: enough that what a batch costs beside its rows is small
_DAMAGED: tuple[type[Exception], ...] = (  # what files raise that are none of ours
    *(pa.ArrowException, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError),
)
_JOINED = b"pscale_parts"  # in the metadata of a joined file: which parts are in it
_VERSION = b"pscale_schema"
_WORDS = frozenset({"phase", "kind", "axis", "verb", "kernel"})  # pscale's own, which figures and pages show
_CODED = pa.dictionary(pa.int32(), pa.string())
_TYPES: dict[Type, pa.DataType] = {
    "text": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "texts": pa.list_(pa.string()),
    "ints": pa.list_(pa.int64()),
    "floats": pa.list_(pa.float64()),
}

Chosen = Mapping[str, Sequence[int | str]]


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """A part that cannot be read, and why."""

    table: Table
    case: str
    repeat: int
    path: Path
    why: str


def schema_of(table: Table, columns: Sequence[str] | None = None, coded: Sequence[str] = ()) -> pa.Schema:
    """Return the schema of a table, or of these columns alone; `coded` texts are dictionaries."""
    types = {column.name: _TYPES[column.type] for column in TABLES[table]}
    fields = [pa.field(name, _CODED if name in coded else types[name]) for name in columns or types]
    return pa.schema(fields, {_VERSION: str(VERSION)})


def part_path(data: Path, table: Table, case: str, repeat: int) -> Path:
    """Return where the rows of one launch go; raises ResultsError for a case that is none, as `../x`."""
    if not is_name_of_case(case):
        raise ResultsError(f"{data}: {case!r} is not a case id")
    return data / f"{table}-{case}-{repeat}.parquet"


def part_paths(data: Path, table: Table) -> list[Path]:
    """Return all parts of a table, in order of their names."""
    return sorted(data.glob(f"{table}-*.parquet"))


def write_part(data: Path, table: Table, case: str, repeat: int, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the rows of one launch; a column that is missing is null, an unknown one an error."""
    names = {name for row in rows for name in row} - {"case", "repeat"}
    columns = {name: [row.get(name) for row in rows] for name in names}
    return write_columns(data, table, case, repeat, columns)


def write_columns(
    data: Path, table: Table, case: str, repeat: int, columns: Mapping[str, Sequence[Any]]
) -> Path:
    """Write one launch given as columns of equal length; `case` and `repeat` are added."""
    length, schema = len(next(iter(columns.values()))), schema_of(table)
    unknown = sorted(set(columns) - set(schema.names))
    assert not unknown, f"{table} has no columns {unknown}"
    whole = {"case": [case] * length, "repeat": [repeat] * length, **columns}
    arrays = [
        pa.array(whole[field.name], field.type) if field.name in whole else pa.nulls(length, field.type)
        for field in schema
    ]
    path = part_path(data, table, case, repeat)
    with _made_whole(path) as file:
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), file, compression="zstd")
    return path


@contextmanager
def _made_whole(path: Path) -> Iterator[pa.NativeFile]:
    """Open a file that gets its name at its end; Arrow's writes of some ten bytes reach the disk as few."""
    with (
        atomic_files.replacing(path) as made,
        pa.output_stream(made, compression=None, buffer_size=_WRITTEN_AT_ONCE) as file,
    ):
        yield file


class _Result(TypedDict):
    status: str
    reason: str
    columns: dict[str, Any]


def unfit(table: Table, columns: Mapping[str, Any]) -> str:
    """Say which value cannot be in a row of a table; empty if all can."""
    schema = schema_of(table)
    for name, value in columns.items():
        if name not in schema.names or name in ("case", "repeat"):
            return f"there is no column {name!r:.60}"
        try:
            pa.array([value], schema.field(name).type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return f"{name}: {error}"
    return ""


def launch_row(case: Case, folder: Path, ended: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a launch in `folder`; `ended` is how the launcher saw it end.

    Where the launcher saw nothing wrong the job's own word counts: it knows whether its figures hold.
    """
    row = {**planned_columns(case), **ended}
    if ended["status"] == "ok" and not case.workload.command:
        try:
            with LaunchFolder(folder).open("result.json") as file:
                result = json.loads(file.read(_LONGEST_BYTES))
            wrong = mismatch(_Result, result) or unfit("cases", result["columns"])
            if not wrong and result["status"] not in ("ok", "invalid"):
                wrong = f"status {result['status']!r:.60}"
        except (OSError, ValueError, RecursionError) as error:
            result, wrong = {}, str(error)
        if wrong:
            return row | {"status": "failed", "reason": f"left an invalid result.json: {wrong}"}
        row |= {**result["columns"], "status": result["status"], "reason": result["reason"]}
    return row


def compact(data: Path) -> None:
    """Join the parts of every table that has many.

    Nothing is lost or read twice after a crash: parts are removed when the joined file has its name, and
    readers leave out parts that are in it. Parts that cannot be read stay as they are.
    """
    for table in JOINED_TABLES:
        if len(part_paths(data, table)) >= LEAST:
            _join(data, table)


def _join(data: Path, table: Table) -> None:
    path, parts = _joined_path(data, table), part_paths(data, table)
    before = _joined_parts(path)
    damaged: list[Damaged] = []
    with (
        _made_whole(path) as file,
        pq.ParquetWriter(file, schema_of(table), compression="zstd") as writer,
    ):
        for rows in batches(data, table, damaged=damaged):
            writer.write_table(rows, row_group_size=max(len(rows), BATCH_ROWS))
        lost = {part.path for part in damaged}
        joined = [part for part in parts if part not in lost]
        names = sorted(before.union(part.name for part in joined))
        writer.add_key_value_metadata({_JOINED.decode(): json.dumps(names)})
    for part in joined:
        part.unlink()


def read_part(data: Path, table: Table, case: str, repeat: int, chosen: Chosen | None = None) -> pa.Table:
    """Read the rows of one launch, of `chosen` columns only those with one of the values.

    Raises ResultsError where there are none that can be read.
    """
    path, schema = part_path(data, table, case, repeat), schema_of(table)
    if not path.exists() and _joined_path(data, table).exists():
        return read_case(data, table, case, repeat)
    return _filtered(path, schema, chosen) if chosen else _read(path, schema)


def largest(data: Path, table: Table, case: str, repeat: int, column: str) -> int:
    """Return the largest value of a column in the part of one launch, by what the file says of itself."""
    path = part_path(data, table, case, repeat)
    with _reading(path):
        metadata = _file(path).metadata
        index = metadata.schema.names.index(column)
        groups = (metadata.row_group(place).column(index) for place in range(metadata.num_row_groups))
        return max((int(group.statistics.max) for group in groups), default=-1)


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
    has: parts are joined as they are read.
    """
    schema, joined = schema_of(table, columns, coded), _joined_path(data, table)
    parts, done = part_paths(data, table), _joined_parts(joined)
    if joined.exists():
        yield from _row_groups(joined, schema)
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
    """Read the rows of one case, or of one launch of it; parts that cannot be read are left out.

    `columns`, if not all, have `case` and `repeat` among them.
    """
    schema, joined = schema_of(table, columns), _joined_path(data, table)
    done = _joined_parts(joined)
    pattern = part_path(data, table, case, 0).name.replace("-0.", f"-{'*' if repeat is None else repeat}.")
    paths = [path for path in sorted(data.glob(pattern)) if _launch_of(path, table)[0] == case]
    parts = (_part(path, table, schema, []) for path in paths if path.name not in done)
    found = [part for part in parts if part is not None]
    if done:
        launches: Chosen = {} if repeat is None else {"repeat": [repeat]}
        found.append(_filtered(joined, schema, {"case": [case], **launches}))
    return pa.concat_tables(found or [schema.empty_table()])


def _joined_path(data: Path, table: Table) -> Path:
    """Return where the joined parts of a table are, if they are."""
    return data / f"{table}.parquet"


def _joined_parts(path: Path) -> frozenset[str]:
    """Return the names of the parts that are in a joined file; none without one."""
    if not path.exists():
        return frozenset()
    with _reading(path):
        return frozenset(json.loads((_file(path).metadata.metadata or {}).get(_JOINED, b"[]")))


def _launch_of(path: Path, table: Table) -> tuple[str, int]:
    case, _, repeat = path.stem.removeprefix(f"{table}-").rpartition("-")
    return case, int(repeat) if repeat.isdecimal() else 0


def _part(path: Path, table: Table, schema: pa.Schema, damaged: list[Damaged] | None) -> pa.Table | None:
    case, number = _launch_of(path, table)
    try:
        rows = _read(path, schema)
        if damaged is not None and (fault := _fault(rows, table, case, number)):
            raise ResultsError(f"{path}: {fault}")
        return rows
    except _NewerError:
        raise
    except ResultsError as error:
        if damaged is None:
            raise
        damaged.append(Damaged(table=table, case=case, repeat=number, path=path, why=str(error)))
        return None


def _fault(rows: pa.Table, table: Table, case: str, repeat: int) -> str:
    """Say what is wrong with the keys of a part: rows of another launch, or several of what there is one."""
    import pyarrow.compute as pc  # noqa: PLC0415 - ranks write and never check: they start without it

    own: dict[str, Any] = {"case": case, "repeat": repeat}
    for name in {"case", "repeat", "rank", "step"}.intersection(rows.schema.names):
        if rows[name].null_count:
            return f"{name} is missing in some rows"
        if name in own:
            if len(rows) and rows[name].unique().to_pylist() != [own[name]]:
                return f"has rows of another {name}"
        elif len(rows) and max(map(abs, pc.min_max(rows[name]).as_py().values())) > _MOST_OF_A_KEY:
            return f"has a {name} that cannot be"
    if table == "cases" and len(rows) != 1:
        return f"has {len(rows)} rows, not one"
    if table == "ranks" and "rank" in rows.schema.names and len(rows["rank"].unique()) != len(rows):
        return "has several rows of a rank"
    return ""


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    with _reading(path):
        file, names, version = _opened(path, schema)
        rows = file.read(names, use_threads=file.metadata.num_rows > _WORTH_THREADS)
        return _conform(rows, schema, version)


def _filtered(path: Path, schema: pa.Schema, chosen: Chosen) -> pa.Table:
    """Read rows by the values of columns; groups of rows that cannot hold any are left on disk."""
    filters = [(name, "in", list(values)) for name, values in chosen.items()]
    with _reading(path):
        _, names, version = _opened(path, schema)
        limit = {"thrift_container_size_limit": _LONGEST_LIST}
        rows = pq.read_table(path, columns=names, filters=filters, partitioning=None, **limit)
        return _conform(rows, schema, version)


def _row_groups(path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    with _reading(path):
        file, names, version = _opened(path, schema)
        for group in range(file.num_row_groups):
            yield _conform(file.read_row_group(group, names), schema, version)


def _opened(path: Path, schema: pa.Schema) -> tuple[pq.ParquetFile, list[str], int]:
    """Return a file, which keeps texts coded that the schema wants so, its wanted columns, its version."""
    file = _file(path, [each.name for each in schema if each.type == _CODED])
    version = _version(path, file.metadata.metadata or {})
    if file.metadata.num_rows > _ROWS + _ROWS_PER_BYTE * path.stat().st_size:
        raise ResultsError(f"{path}: says that it has {file.metadata.num_rows} rows, too many for its size")
    present = set(file.schema_arrow.names)
    return file, [name for name in _stored_names(schema, version) if name in present], version


def _file(path: Path, coded: Sequence[str] = ()) -> pq.ParquetFile:
    return pq.ParquetFile(path, read_dictionary=coded, thrift_container_size_limit=_LONGEST_LIST)


def _stored_names(schema: pa.Schema, version: int) -> list[str]:
    """Return what files of a version call the columns of a schema."""
    return [NAMES_OF_1.get(name, name) if version == 1 else name for name in schema.names]


def _conform(rows: pa.Table, schema: pa.Schema, version: int) -> pa.Table:
    """Return rows of a file with the columns of a schema; those that its version did not have are null."""
    table = _with_columns(rows, schema, version)
    words = _WORDS | {"label"} if "kind" in schema.names else _WORDS  # of a case it is a suite's
    for name in words.intersection(schema.names):
        for chunk in table[name].chunks:
            texts = chunk.dictionary if chunk.type == _CODED else chunk.unique()
            if not all(text is None or text.isprintable() for text in texts.to_pylist()):
                raise ValueError(f"has a {name} that cannot be shown")
    if "provenance" in schema.names:
        for text in table["provenance"].unique().drop_null().to_pylist():
            try:
                provenance_of(text)
            except ValueError as error:
                raise ValueError(f"has an invalid provenance: {error}") from error
    return table


def _with_columns(rows: pa.Table, schema: pa.Schema, version: int) -> pa.Table:
    if version == VERSION and rows.schema.equals(schema):  # a hundred casts for nothing
        return pa.Table.from_arrays(rows.columns, schema=schema)
    found = dict(zip(rows.column_names, rows.columns, strict=True))
    columns = [
        _cast(found[stored], field.type) if stored in found else pa.nulls(len(rows), field.type)
        for field, stored in zip(schema, _stored_names(schema, version), strict=True)
    ]
    if version == 1 and "kind" in schema.names:
        index, present = schema.names.index("kind"), {old: new for new, old in KINDS_OF_1.items()}
        kinds = [present.get(kind, kind) for kind in columns[index].to_pylist()]
        columns[index] = pa.array(kinds, schema.field(index).type)
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
    except _DAMAGED as error:
        first = (str(error).splitlines() or [""])[0]
        raise ResultsError(f"{path}: not a readable Parquet file ({first})") from error


def _version(path: Path, metadata: Mapping[bytes, bytes]) -> int:
    try:
        version = int(metadata[_VERSION])
    except (KeyError, ValueError):
        raise ResultsError(f"{path}: Parquet, but not written by pscale") from None
    if version > VERSION:
        raise _NewerError(
            f"{path}: schema {version} of a newer pscale, this one reads up to {VERSION}; upgrade pscale"
        )
    return version


PROGRAM = "program"  # in the column `model`, of a case that trains nothing
# Fields of a case that are columns under their own names.
OF_CASE = ("suite", "label", "series", "base", "scaling", "ranks", "threads")
_OF_PLAN = (
    *PLAN_AXES,
    *("sp", "zero", "shard", "virtual_stages"),
    *("checkpoint", "reduction", "bucket_bytes", "compression", "offload"),
)
_OF_TRAIN = ("micro_batches", "batch", "optimizer", "steps", "warmup")
_OF_MODEL = ("layers", "width", "heads", "sequence", "vocabulary", "dtype")


class _Provenance(TypedDict, total=False):
    mpi: dict[str, Any]
    watch: list[str]


def provenance_of(text: str) -> Mapping[str, Any]:
    """Return what a job has found, from the column of that name; raises ValueError for any other text."""
    try:
        document: Mapping[str, Any] = atomic_files.from_json(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if wrong := mismatch(_Provenance, document):
        raise ValueError(wrong)
    return document


def program_row(case: Case) -> dict[str, Any]:
    """Return what is known of a case of any program before it runs, as columns of the `cases` table."""
    of_case = {name: getattr(case, name) for name in OF_CASE}
    return {**of_case, "oversubscribed": case.launch.oversubscribe, "model": PROGRAM}


def planned_columns(case: Case) -> dict[str, Any]:
    """Return what is known of a case before it runs, as columns of the `cases` table."""
    if case.workload.command:
        return program_row(case)
    model, train, plan = case.model, case.train, case.plan
    return {
        **program_row(case),
        **{name: getattr(plan, name) for name in _OF_PLAN},
        **{name: getattr(train, name) for name in _OF_TRAIN},
        **{name: getattr(model, name) for name in _OF_MODEL},
        "delay_injection": case.injected or None,
        **{name: getattr(plan.matrix, name) for name in GRID_AXES},
        "matrix": plan.matrix.algorithm if plan.matrix.ranks > 1 else None,
        "schedule": plan.schedule if plan.pp > 1 else None,
        "context": plan.context if plan.cp > 1 else None,
        "placement": plan.placement if plan.cp > 1 else None,
        "model": model.kind,
        "loss_scale": case.loss_scale if isinstance(case.loss_scale, str) else f"{case.loss_scale:.10g}",
        "attention": None
        if model.kind in ("linear", "collectives")
        else "plain"
        if model.keeps_scores
        else "block",
    }
