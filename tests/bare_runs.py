"""Synthetic runs of bare collectives, for what is said of them and beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from synthetic import Point, write_run

from pscale.runs.store import write_part


def write_bare(
    folder: Path, ranks: int, calls: Mapping[int, Sequence[Mapping[str, Any]]], **row: Any
) -> Path:
    """Write a run of one launch of one step a size: rows of calls by size of message, on dp."""
    points = {  # whose ids differ by the letters of their series
        size: Point(ranks=ranks, label=f"message {size}", series="m" * place, row=row)
        for place, size in enumerate(calls, start=1)
    }
    write_run(folder, list(points.values()), repeats=1, steps=1, joined=False)
    document = json.loads((folder / "run.json").read_text())
    for case, size in zip(document["cases"], calls, strict=True):
        case["model"] |= {"kind": "collectives", "message_bytes": size}
    (folder / "run.json").write_text(json.dumps(document))
    for size, rows in calls.items():
        key = {"case": points[size].case.id, "repeat": 0, "step": 0}
        write_part(folder / "data", "calls", str(key["case"]), 0, [{**key, **each} for each in rows])
    return folder
