"""The settings of cases by dotted name, as conditions name them, and which of them a suite varies."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from pscale.analysis.frames import NAMING, Run
from pscale.config.axes import GRID_AXES, PLAN_AXES
from pscale.config.workload import numeric

DEGREES = {
    **{f"plan.{axis}": axis for axis in PLAN_AXES},
    **{f"plan.matrix.{axis}": axis for axis in GRID_AXES},
}  # names of columns by those of settings
SIZES = ("ranks", "threads")  # of a launch; other numbers are of its program
_PARAMS = "workload.params."
Case = Mapping[str, Any]  # settings by dotted name
NAMES = frozenset({*NAMING, "suite", "run"})  # of a case: no settings


def settings(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a case by dotted name: `ranks`, `model.width`, `plan.matrix.tx`."""
    return dict(_leaves({name: value for name, value in planned.items() if name not in NAMES}, ""))


def of_cases(run: Run) -> dict[str, Case]:
    """Return the settings of cases that curves may join: none of bare collectives, none of several runs."""
    planned = {} if run.origins else run.planned
    return {case: settings(known) for case, known in planned.items() if case not in run.bare}


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


def is_number(value: object) -> bool:
    """Tell whether a setting is a number, which a truth value is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def swept_numbers(run: Run, cases: Mapping[str, Case]) -> list[str]:
    """Return the numbers that vary and that all of these cases have, but for degrees of a plan."""
    return [
        name
        for name in varied(run)
        if not name.startswith("plan.") and all(is_number(case.get(name)) for case in cases.values())
    ]


def following(name: str, cases: Sequence[Case]) -> set[str]:
    """Return the numbers that the swept one decides, such as a batch of so many tokens; it is one of them."""
    values = {case[name] for case in cases}
    return {
        other
        for other, value in (cases[0] if cases else {}).items()
        if is_number(value) and len({(case[name], case.get(other)) for case in cases}) == len(values)
    }


def apart_from(case: Case, name: str, decided: Collection[str]) -> str:
    """Return what the cases of one curve over a number share; degrees that are all ranks grow with these."""
    known = {field: value for field, value in case.items() if field not in decided or field in DEGREES}
    if name == "ranks":
        known |= {degree: "ranks" for degree in DEGREES if case.get(degree) == case["ranks"]}
    return json.dumps({**known, name: None}, sort_keys=True)


def setting_columns(run: Run, cases: pd.DataFrame) -> dict[str, list[Any]]:
    """Return degrees and varying settings of every case, by the last part of a name where that is free."""
    names = dict(DEGREES)
    for name in varied(run):
        last = name.rpartition(".")[2]
        if name not in (*DEGREES, *cases.columns, "train.batch"):
            names[name] = name if last in cases.columns or last in names.values() else last
    planned = [settings(run.planned.get(case, {})) for case in cases["case"]]
    return {column: [_cell(known.get(name)) for known in planned] for name, column in names.items()}


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, str | float | int) else json.dumps(value)
