"""One case on its way: the suite's fields with the settings of one point, formulas computed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pscale.config import Case
from pscale.suite.build import build
from pscale.suite.combine import Point, combinations
from pscale.suite.document import Path_
from pscale.suite.fields import VARIABLE
from pscale.suite.names import names_of, resolve
from pscale.suite.problems import Problem, found_by_pydantic, place_of, suite_error
from pscale.suite.schema.file import File
from pscale.suite.suite import Suite


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A case, what expressions may name in it, and the point of the sweep that made it."""

    point: Point
    names: Mapping[str, Any]
    case: Case

    def value(self, field: str) -> Any:
        """Return the value of a dotted field; None where this kind of model or data has no such field."""
        value: Any = self.names
        for part in [field] if field in self.names else field.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    @property
    def computed(self) -> bool:
        """Tell whether a value of the sweep was an expression."""
        return any(isinstance(s.value, str) and s.value.startswith("=") for s in self.point)


def drafts_of(suite: Suite, machine: Mapping[str, float]) -> list[Draft]:
    """Return a draft of every point of the sweep. Raises SuiteError with all that is wrong in any."""
    points, problems = combinations(suite.values.get("sweep", {}))
    drafts = []
    for point in points:
        made = _draft(suite, point, machine)
        if isinstance(made, Draft):
            drafts.append(made)
        else:
            problems += [Problem(written(point, found.path), found.message) for found in made]
    if problems:
        raise suite_error(problems, suite.places)
    return drafts


def written(point: Point, path: Path_) -> Path_:
    """Return where the value at `path` was written: in the sweep, if that sets it."""
    for setting in point:
        field = tuple(setting.field.split("."))
        if path[: len(field)] == field:
            return setting.written
    return path


def _draft(suite: Suite, point: Point, machine: Mapping[str, float]) -> Draft | list[Problem]:
    values = _values(suite, point)
    try:
        fields = File.model_validate(values).model_dump()
        problems = resolve(fields, machine)
        if problems:
            return problems
        file = File.model_validate(values := fields)
    except ValidationError as error:
        return found_by_pydantic(error, values)
    source = place_of(written(point, ("data", "source")), suite.places)
    folder = source.file.parent if source.file else Path()
    return Draft(point=point, names=names_of(fields, machine), case=build(file, folder))


def _values(suite: Suite, point: Point) -> dict[str, Any]:
    """Return what the suite says of all cases, with the settings of one."""
    names = ("name", "scaling", "require", *VARIABLE)
    values = {name: copy.deepcopy(suite.values[name]) for name in names if suite.values.get(name) is not None}
    for setting in point:
        *groups, last = setting.field.split(".")
        holder = values
        for group in groups:
            kinds = {"kind": suite.resolved[group]["kind"]} if group in ("model", "data") else {}
            holder = holder.setdefault(group, kinds)
        holder[last] = setting.value
    return values
