"""The combinations of values that a sweep asks for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pscale.suite.document import Path_
from pscale.suite.fields import full_name
from pscale.suite.problems import Problem, nearest_field

MOST_CASES = 10_000


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value that a case sets, and where the sweep says so."""

    field: str
    value: Any
    written: Path_


Point = tuple[Setting, ...]


def combinations(sweep: Mapping[str, Any]) -> tuple[list[Point], list[Problem]]:
    """Return the points of a validated sweep, the last field varying fastest, and what is wrong with it."""
    points_of = [_dimension(name, values) for name, values in sweep.items() if values]
    problems = _problems(points_of)
    count = math.prod(len(points) for points in points_of)
    if count > MOST_CASES:
        problems.append(Problem(("sweep",), f"asks for {count} cases; at most {MOST_CASES} are possible"))
    if problems:
        return [], problems
    return [tuple(itertools.chain(*parts)) for parts in itertools.product(*points_of)], []


def _dimension(name: str, values: Any) -> Sequence[Point]:
    if name == "cases":
        return [
            tuple(_setting(field, value, ("sweep", "cases", index, field)) for field, value in case.items())
            for index, case in enumerate(values)
        ]
    if name == "zip":
        columns = [
            [_setting(field, value, ("sweep", "zip", field, index)) for index, value in enumerate(items)]
            for field, items in values.items()
        ]
        return list(zip(*columns, strict=True))
    return [(_setting(name, value, ("sweep", name, index)),) for index, value in enumerate(values)]


def _setting(name: str, value: Any, written: Path_) -> Setting:
    return Setting(field=full_name(name) or "", value=value, written=written)


def _problems(points_of: Sequence[Sequence[Point]]) -> list[Problem]:
    """Find names that are no field, and fields that are set in two ways."""
    problems = []
    owners: dict[str, tuple[int, str]] = {}
    for dimension, points in enumerate(points_of):
        for setting in itertools.chain(*points):
            # The name of a field is the last text of its place: an index may follow it.
            depth = max(place for place, part in enumerate(setting.written) if isinstance(part, str))
            name, written = str(setting.written[depth]), setting.written[: depth + 1]
            if not setting.field:
                problems.append(Problem(written, f"is no field that can vary; {nearest_field(name)}"))
            elif owners.setdefault(setting.field, (dimension, name)) != (dimension, name):
                problems.append(Problem(written, f"{setting.field} is set in two ways"))
    return problems
