"""A run's findings for other programs: JSON of everything, CSV of every table."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pscale.analysis.summary import FORMAT, Summary
from pscale.atomic_files import to_json
from pscale.report.drawn import write_file
from pscale.report.table import Table
from pscale.report.text import clean
from pscale.report.topics import TOPICS

_FORMULA = ("=", "+", "-", "@")  # what a spreadsheet would compute


def render_json(summary: Summary) -> str:
    """Return everything in the summary as JSON with its format's version; what is not finite is null."""
    document = {"format": FORMAT, "kind": "pscale summary", **asdict(replace(summary, source=None))}
    del document["source"]
    for topic in TOPICS:
        tables = topic.data(summary) if topic.computed else {}
        document |= {name: tables[name].tidy()[1] for name in topic.computed}
    return to_json(document) + "\n"


def write_csv(summary: Summary, folder: Path) -> list[Path]:
    """Write one tidy table a kind of finding into `folder`; returns the files.

    A table without rows has no file; one that an earlier report left is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, content in csv_tables(summary).items():
        file = folder / f"{name}.csv"
        if content.count("\n") > 1:
            written.append(write_file(file, content))
        else:
            file.unlink(missing_ok=True)
    return written


def csv_tables(summary: Summary) -> dict[str, str]:
    """Return the text of every CSV table by name; the bounds of an interval are `_low` and `_high`."""
    return {name: csv_text(table) for name, table in data_tables(summary).items()}


def data_tables(summary: Summary) -> dict[str, Table]:
    """Return every table for programs by name, with or without rows."""
    return {name: table for topic in TOPICS for name, table in topic.data(summary).items()}


def csv_text(table: Table) -> str:
    """Return a table as CSV with a heading; what is missing is empty."""
    text = io.StringIO()
    names, rows = table.tidy()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula; nulls and what is not finite are empty."""
    if isinstance(value, str):
        text = clean(value)
        return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
    return "" if isinstance(value, float) and not math.isfinite(value) else value
