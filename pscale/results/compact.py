"""Many small parts joined in one file a table, once a run has ended."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from pscale import durable
from pscale.results.schema import TABLES, Table
from pscale.results.store import BATCH_ROWS, JOINED, Damaged, batches, joined_parts, joined_path, part_paths

JOINED_TABLES: tuple[Table, ...] = (
    "cases",
    "steps",
    "calls",
    "ranks",
)  # events are few, large and read alone
LEAST = 16  # parts of a table: fewer are left as they are, a file a launch


def compact(data: Path) -> None:
    """Join the parts of every table that has many.

    Nothing is lost or read twice after a crash: parts are removed when the joined file has its name, and
    readers leave out parts that are in it. Parts that cannot be read stay as they are.
    """
    for table in JOINED_TABLES:
        if len(part_paths(data, table)) >= LEAST:
            _join(data, table)


def _join(data: Path, table: Table) -> None:
    path, parts = joined_path(data, table), part_paths(data, table)
    before = joined_parts(path) if path.exists() else frozenset()
    damaged: list[Damaged] = []
    temporary, schema = path.with_suffix(".tmp"), TABLES[table]
    with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for rows in batches(data, table, damaged=damaged):
            writer.write_table(rows, row_group_size=max(len(rows), BATCH_ROWS))
        lost = {part.path for part in damaged}
        joined = [part for part in parts if part not in lost]
        names = sorted(before.union(part.name for part in joined))
        writer.add_key_value_metadata({JOINED.decode(): json.dumps(names)})
    durable.rename(temporary, path)
    for part in joined:
        part.unlink()
