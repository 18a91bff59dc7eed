"""Measurements for Extra-P 4: its JSON lines, which `extrap --json` and its window read.

A line has `params`, `callpath`, `metric` and `value` (extrap/fileio/file_reader/jsonlines_file_reader.py of
https://github.com/extra-p/extrap); launches are its repetitions. Its parameters are the ranks and every other
number that the suite sweeps, but for those that follow from these. Cases that differ in words, or in plans on
the same ranks, have a file each. Extra-P asks for every metric at every point: a call that is not made takes
no time.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pscale.analysis.frames import Run, grouped, records
from pscale.analysis.settings import settings, varied
from pscale.config import JOINT
from pscale.errors import ResultsError
from pscale.runs import atomic_files

_TIMES = {"wall_s": "time", "compute_s": "compute", "transfer_s": "transfer", "wait_s": "wait"}
_COUNTS = {"count": "calls", "bytes": "bytes", "transfer_s": "transfer", "wait_s": "wait"}

Launch = tuple[str, int]  # case and number
Values = dict[tuple[str, str], float]  # by path and metric


def write_extrap(run: Run, folder: Path) -> list[Path]:
    """Write a file for each set of words and plans of a run; raises ResultsError if no launch succeeded."""
    launches = records(run.good)
    if not launches:
        raise ResultsError(f"{run.path}: no launch succeeded, so there is nothing to fit")
    measured, points = _measured(run), {case: _point(run, case) for case in run.planned}
    choices = _choices([*points.values()])

    def words(launch: Mapping[str, Any]) -> str:
        point = points[launch["case"]]
        return JOINT.join(f"{name.rpartition('.')[2]} {point[name]}" for name in choices)

    written: list[Path] = []
    for series, members in grouped(launches, words).items():
        name = re.sub("[^A-Za-z0-9]+", "-", series or str(run.suite.get("name", "run"))).strip("-")
        path = folder / f"{len(written) + 1}-{name[:80]}.jsonl"
        params = _parameters([points[launch["case"]] for launch in members])
        values = [measured.get((launch["case"], launch["repeat"]), {}) for launch in members]
        known = dict.fromkeys(key for each in values for key in each)
        with io.TextIOWrapper(atomic_files.create(path), encoding="utf-8") as file:
            for launch, own in zip(members, values, strict=True):
                at = {short: points[launch["case"]][setting] for short, setting in params.items()}
                whole = {("step", "time"): launch["step_s"], **{key: own.get(key, 0.0) for key in known}}
                for (place, metric), value in whole.items():
                    line = {"params": at, "callpath": place, "metric": metric, "value": value}
                    file.write(json.dumps(line) + "\n")
        written.append(path)
    return written


def _point(run: Run, case: str) -> dict[str, Any]:
    """Return the ranks of a case and its settings that vary over the run, by dotted name."""
    known = settings(run.planned[case])
    names = dict.fromkeys(["ranks", *varied(run)])
    return {name: known.get(name) for name in names if not name.startswith("program.")}


def _numbers(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings that Extra-P can model: numbers in all points; degrees of a plan are choices."""
    return [
        name
        for name in points[0]
        if not name.startswith("plan.")
        and all(
            isinstance(point[name], int | float) and not isinstance(point[name], bool) for point in points
        )
    ]


def _choices(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the other settings, but for those that follow from the ranks, as a plan of all of them."""
    numbers = _numbers(points)
    return [name for name in points[0] if name not in numbers and not _follows(name, ["ranks"], points)]


def _parameters(points: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return settings by the names of parameters: ranks, and numbers that others do not decide."""
    chosen = ["ranks"]
    for name in _numbers(points):
        if not _follows(name, chosen, points):
            chosen.append(name)
    return {name.rpartition(".")[2]: name for name in chosen}


def _follows(name: str, others: Sequence[str], points: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether others decide a setting."""
    before = {tuple(point[other] for other in others) for point in points}
    return len({(*(point[other] for other in others), repr(point[name])) for point in points}) == len(before)


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
    for row in records(run.figures):
        launch = str(row["case"]), int(row["repeat"])
        found.setdefault(launch, {})["program", str(row["figure"])] = float(row["value"])
    return found
