"""What is written of a launch of a workload: its figures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pscale.config import Case
from pscale.config.program import SECONDS, WALL
from pscale.launch.journal import Journal
from pscale.launch.outcome import RESULT, Outcome
from pscale.launch.runner import CaseLaunch
from pscale.results.store import write_part


def program_columns(journal: Journal, launch: CaseLaunch, outcome: Outcome) -> dict[str, Any]:
    """Write the tables of a launch of a workload; return what its row says of it."""
    case, folder = launch.case, journal.case_folder(launch.key)
    if outcome.status != "ok":
        return {}
    figures = json.loads((folder / RESULT).read_text(encoding="utf-8"))["figures"]
    if figures:
        rows = [_figure_row(case, name, value) for name, value in figures.items()]
        write_part(journal.data, "figures", *launch.key, rows)
    return {"step_s": _step_s(case, figures, outcome.wall_s)}


def _figure_row(case: Case, name: str, value: float) -> dict[str, Any]:
    figure = case.workload.figures[name]
    return {"figure": name, "value": value, "unit": figure.unit, "better": figure.better}


def _step_s(case: Case, figures: Mapping[str, float], wall_s: float) -> float:
    times = case.workload.times
    if times == WALL:
        return wall_s
    return figures[times] * SECONDS[case.workload.figures[times].unit]
