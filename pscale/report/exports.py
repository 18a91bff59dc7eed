"""A run's findings for other programs: JSON of everything, CSV of every table."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pscale.analysis.columns import FRAMES, SERIES
from pscale.analysis.findings import FORMAT, Findings
from pscale.analysis.frames import records
from pscale.report.drawn import write_file
from pscale.report.text import clean
from pscale.runs.atomic_files import to_json

_FORMULA = ("=", "+", "-", "@")  # what a spreadsheet would compute


def render_json(findings: Findings) -> str:
    """Return all findings as JSON with its format's version; what is not finite is null."""
    document: dict[str, Any] = {"format": FORMAT, "kind": "pscale findings"}
    document |= {name: _plain(getattr(findings, name)) for name in findings.names}
    return to_json(document) + "\n"


def _plain(value: Any) -> Any:
    """Return a finding as lists and dictionaries."""
    if isinstance(value, pd.DataFrame):
        return records(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def write_csv(findings: Findings, folder: Path) -> list[Path]:
    """Write one tidy table a kind of finding into `folder`; returns the files.

    A table without rows has no file; one that an earlier report left is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, content in csv_tables(findings).items():
        file = folder / f"{name}.csv"
        if content.count("\n") > 1:
            written.append(write_file(file, content))
        else:
            file.unlink(missing_ok=True)
    return written


def csv_tables(findings: Findings) -> dict[str, str]:
    """Return the text of every CSV table by name; the bounds of an interval are `_low` and `_high`."""
    return {name: csv_text(table) for name, table in data_tables(findings).items()}


def data_tables(findings: Findings) -> dict[str, pd.DataFrame]:
    """Return every table for programs by name, with or without rows."""
    tables = {name: getattr(findings, name).drop(columns=SERIES[name]) for name in FRAMES}
    trained = findings.cases.loc[findings.cases["losses"].map(len) > 0, ["case", "label", "losses"]]
    losses = trained.explode("losses", ignore_index=True).rename(columns={"losses": "loss"})
    losses.insert(2, "step", losses.groupby("case").cumcount())
    return tables | {"loss": losses.astype({"loss": "float64"})}


def csv_text(table: pd.DataFrame) -> str:
    """Return a table as CSV with a heading; what is missing is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_cell(value) for value in row.values()] for row in records(table))
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula; nulls and what is not finite are empty."""
    if isinstance(value, tuple):
        value = " ".join(map(str, value))
    if isinstance(value, str):
        text = clean(value)
        return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
    return "" if isinstance(value, float) and not math.isfinite(value) else value
