"""A run's findings for other programs: JSON of everything, CSV of every table."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pscale.analysis.axes import AxisTree
from pscale.analysis.bandwidth import Bandwidth
from pscale.analysis.bare import Bare
from pscale.analysis.bubble import Bubble
from pscale.analysis.compression import Compressed
from pscale.analysis.efficiency import Tree
from pscale.analysis.evidence import Remark
from pscale.analysis.expect import Expectation
from pscale.analysis.fewer_bits import FewerBits
from pscale.analysis.late import Late
from pscale.analysis.losses import Losses
from pscale.analysis.memory import KINDS, Memory
from pscale.analysis.offload import Offloaded
from pscale.analysis.optimizers import Optimized
from pscale.analysis.phases import CallTime, PhaseTime, RankTime
from pscale.analysis.ranking import Place
from pscale.analysis.scaling import Failure, Point
from pscale.analysis.skipped import Skipped
from pscale.analysis.stats import Estimate
from pscale.analysis.summary import FORMAT, Summary
from pscale.analysis.threads import ThreadTime
from pscale.analysis.timeline import Span
from pscale.analysis.verdict import Verdict
from pscale.analysis.what_if import WhatIf
from pscale.report.export_models import model_tables

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet would compute

_SERIES = ("losses", "course_s")  # have a row for each step, if a table at all

Row = Mapping[str, Any]


def render_json(summary: Summary) -> str:
    """Return everything in the summary as JSON with its format's version; what is not finite is null."""
    document = {"format": FORMAT, "kind": "pscale summary", **asdict(summary)}
    return json.dumps(finite(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_csv(summary: Summary, folder: Path) -> list[Path]:
    """Write one tidy table a kind of finding into `folder`; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    return [write_text(folder / f"{name}.csv", content) for name, content in csv_tables(summary).items()]


def csv_tables(summary: Summary) -> dict[str, str]:
    """Return the text of every CSV table by name; the bounds of an interval are `_low` and `_high`."""
    labels = {point.case: point.label for point in summary.points}
    found: dict[str, tuple[type, Sequence[Any]]] = {
        "cases": (Point, summary.points),
        "efficiency": (Tree, (*summary.trees, *summary.phase_trees)),
        "axes": (AxisTree, summary.axis_trees),
        "losses": (Losses, summary.losses),
        "phases": (PhaseTime, summary.phases),
        "ranks": (RankTime, summary.ranks),
        "calls": (CallTime, summary.calls),
        "bandwidths": (Bandwidth, summary.bandwidths),
        "bare": (Bare, summary.bares),
        "threads": (ThreadTime, summary.threads),
        "late": (Late, summary.late),
        "what_if": (WhatIf, summary.what_ifs),
        "verdicts": (Verdict, summary.verdicts),
        "warnings": (Remark, summary.remarks),
        "expectations": (Expectation, summary.expectations),
        "failures": (Failure, summary.failures),
    }
    tables = {
        name: csv_text(_columns(kind), [_row(finding, labels) for finding in findings])
        for name, (kind, findings) in found.items()
    }
    tables |= _plans(summary, labels)
    tables |= {name: csv_text(*of_models) for name, of_models in model_tables(summary).items()}
    tables["wait"] = csv_text(("case", "repeat", "rank", "step", "wait_s"), list(_waits(summary)))
    spans = ("case", "label", "repeat", "step", *(field.name for field in fields(Span)))
    tables["timeline"] = csv_text(spans, list(_spans(summary, labels)))
    tables["loss"] = csv_text(("case", "label", "step", "loss"), list(_curves(summary)))
    return tables


def _plans(summary: Summary, labels: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, tuple[type, Sequence[Any]]] = {
        "ranking": (Place, summary.ranking),
        "bubbles": (Bubble, summary.bubbles),
        "compressed": (Compressed, summary.compressed),
        "precision": (FewerBits, summary.precision),
        "skipped": (Skipped, summary.skipped),
        "offloaded": (Offloaded, summary.offloaded),
        "optimizers": (Optimized, summary.optimizers),
    }
    made = {
        name: csv_text(_columns(kind), [_row(finding, labels) for finding in findings])
        for name, (kind, findings) in found.items()
    }
    of_kinds = [f"{known}_{kind}_bytes" for known in ("predicted", "counted") for kind in KINDS]
    in_a_file = ("predicted_offloaded_bytes", "counted_offloaded_bytes")
    columns = ("case", "label", "rank", *of_kinds, *in_a_file, "measured_bytes", "empty_bytes", "of_steps")
    return made | {"memory": csv_text(columns, [_memory(memory, labels) for memory in summary.memory])}


def _memory(memory: Memory, labels: Mapping[str, str]) -> Row:
    """Return a row with a column for each kind, predicted and counted."""
    row = {**_row(memory, labels)}
    for known in ("predicted", "counted"):
        row |= {f"{known}_{kind}_bytes": size for kind, size in (row.pop(known) or {}).items()}
    return row


def write_text(path: Path, content: str) -> Path:
    """Write a file under a temporary name first, so that no reader sees half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(content, encoding="utf-8", newline="")
    os.replace(temporary, path)  # noqa: PTH105 - atomic, also over an older file
    return path


def _columns(kind: type) -> tuple[str, ...]:
    names = ["case", "label"]
    for field in fields(kind):
        if field.name in _SERIES:
            continue
        names.append(field.name)
        if "Estimate" in str(field.type):
            names += [f"{field.name}_low", f"{field.name}_high"]
    return tuple(dict.fromkeys(names))


def _row(finding: Any, labels: Mapping[str, str]) -> Row:
    row: dict[str, Any] = {"label": labels.get(finding.case, "")}
    for field in fields(finding):
        value = getattr(finding, field.name)
        if isinstance(value, Estimate):
            row |= {field.name: value.value, f"{field.name}_low": value.low, f"{field.name}_high": value.high}
        elif field.name not in _SERIES:
            row[field.name] = " ".join(map(str, value)) if isinstance(value, tuple) else value
    return row


def _waits(summary: Summary) -> Iterator[Row]:
    if summary.wait is not None:
        for rank, waits in enumerate(summary.wait.wait_s):
            for step, wait_s in enumerate(waits):
                key = {"case": summary.wait.case, "repeat": summary.wait.repeat}
                yield {**key, "rank": rank, "step": step, "wait_s": wait_s}


def _spans(summary: Summary, labels: Mapping[str, str]) -> Iterator[Row]:
    for each in summary.timelines:
        key = {
            "case": each.case,
            "label": labels.get(each.case, ""),
            "repeat": each.repeat,
            "step": each.step,
        }
        for span in each.spans:
            yield key | asdict(span)


def _curves(summary: Summary) -> Iterator[Row]:
    for point in summary.points:
        for step, loss in enumerate(point.losses):
            yield {"case": point.case, "label": point.label, "step": step, "loss": loss}


def csv_text(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Return rows as CSV with a heading; what is missing is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(column)) for column in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula; nulls and what is not finite are empty."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return "" if isinstance(value, float) and not math.isfinite(value) else value


def finite(value: Any) -> Any:
    """Return nested data without numbers that JSON cannot hold: they become null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
