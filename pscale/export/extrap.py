"""Measurements for Extra-P 4: its JSON lines, which `extrap --json` and its window read.

A line has `params`, `callpath`, `metric` and `value` (extrap/fileio/file_reader/jsonlines_file_reader.py of
https://github.com/extra-p/extrap); launches are its repetitions. Parameters are numbers, so there is a file
for each series of cases, whose plans are the same. Extra-P asks for every metric at every point: a call that
is not made takes no time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pscale.analysis.frames import Run, grouped, records
from pscale.errors import ResultsError

_NUMBERS = ("threads", "batch", "layers", "width", "sequence", "vocabulary", "micro_batches")
_TIMES = {"wall_s": "time", "compute_s": "compute", "transfer_s": "transfer", "wait_s": "wait"}
_COUNTS = {"count": "calls", "bytes": "bytes", "transfer_s": "transfer", "wait_s": "wait"}

Launch = tuple[str, int]  # case and number
Values = dict[tuple[str, str], float]  # by path and metric


def write_extrap(run: Run, folder: Path) -> list[Path]:
    """Write a file for each series of a run; raises ResultsError if no launch ended well."""
    launches = records(run.cases[run.cases["status"] == "ok"])
    if not launches:
        raise ResultsError(f"{run.path}: no launch ended well, so there is nothing to fit")
    measured = _measured(run)
    written: list[Path] = []
    for series, members in grouped(launches, lambda launch: str(launch["series"] or "")).items():
        words = series or str(run.suite.get("name", "run"))
        path = folder / f"{len(written) + 1}-{re.sub('[^A-Za-z0-9]+', '-', words).strip('-')[:80]}.jsonl"
        varying = [name for name in _NUMBERS if _varies(members, name)]
        values = [measured.get((launch["case"], launch["repeat"]), {}) for launch in members]
        known = dict.fromkeys(key for each in values for key in each)
        with path.open("w", encoding="utf-8") as file:
            for launch, own in zip(members, values, strict=True):
                params = {name: launch[name] for name in ("ranks", *varying)}
                whole = {("step", "time"): launch["step_s"], **{key: own.get(key, 0.0) for key in known}}
                for (place, metric), value in whole.items():
                    line = {"params": params, "callpath": place, "metric": metric, "value": value}
                    file.write(json.dumps(line) + "\n")
        written.append(path)
    return written


def _varies(launches: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Tell whether a number varies among launches on the same ranks: what follows them is no parameter."""
    pairs = {(launch["ranks"], launch[name]) for launch in launches}
    return len(pairs) > len({ranks for ranks, _ in pairs})


def _measured(run: Run) -> dict[Launch, Values]:
    """Return by launch what a rank's mean step took by phase, and its calls by verb and axis."""
    steps = run.seats.groupby(["case", "repeat"], observed=True)["steps"].sum()
    found: dict[Launch, Values] = {}
    for table, within, metrics in (
        (run.phases, ["phase"], _TIMES),
        (run.calls, ["verb", "axis"], _COUNTS),
    ):
        sums = table.groupby(["case", "repeat", *within], observed=True)[list(metrics)].sum().reset_index()
        for row in records(sums):
            launch = str(row["case"]), int(row["repeat"])
            path = f"step->{' '.join(str(row[name]) for name in within)}"
            for column, metric in metrics.items():
                found.setdefault(launch, {})[path, metric] = row[column] / int(steps[launch])
    return found
