"""The settings of cases by dotted name, as conditions name them, and which of them a suite varies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pscale.analysis.frames import NAMING, Run
from pscale.config.axes import GRID_AXES, PLAN_AXES
from pscale.config.workload import numeric

DEGREES = {
    **{f"plan.{axis}": axis for axis in PLAN_AXES},
    **{f"plan.matrix.{axis}": axis for axis in GRID_AXES},
}  # names of columns by those of settings
_PARAMS = "workload.params."
NAMES = frozenset({*NAMING, "suite", "run"})  # of a case: no settings


def settings(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a case by dotted name: `ranks`, `model.width`, `plan.matrix.tx`."""
    return dict(_leaves({name: value for name, value in planned.items() if name not in NAMES}, ""))


def _leaves(values: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", numeric(value) if above == _PARAMS else value


def varied(run: Run) -> list[str]:
    """Return the settings that the suite sweeps, in its order, then others in which its cases differ."""
    cases = [settings(case) for case in run.planned.values()]
    known = dict.fromkeys(name for case in cases for name in case)
    differing = [name for name in known if len({repr(case.get(name)) for case in cases}) > 1]
    return list(dict.fromkeys([*(name for name in _swept(run) if name in known), *differing]))


def _swept(run: Run) -> Iterator[str]:
    sweep = (run.suite.get("resolved") or {}).get("sweep") or {}
    yield from (name for name in sweep if name not in ("zip", "cases"))
    yield from sweep.get("zip") or {}
