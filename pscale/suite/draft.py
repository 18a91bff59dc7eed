"""The cases that a sweep asks for: its combinations, the fields of each, their expressions computed."""

from __future__ import annotations

import difflib
import functools
import glob
import itertools
import math
import operator
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pscale.config import Case, Data, Figure, Workload, from_dict
from pscale.config.expressions import evaluate, names_in
from pscale.config.workload import stored
from pscale.config.workload_command import with_program
from pscale.errors import UsageError
from pscale.suite.document import Formula, Path_
from pscale.suite.fields import (
    BY_MEMBER,
    SHORT,
    VARIABLE,
    fields_of,
    fields_of_any_kind,
    full_name,
    params_of,
)
from pscale.suite.load import Suite
from pscale.suite.problems import SHOWN, Problem, found_by_pydantic, nearest_field, place_of, suite_error
from pscale.suite.schema import adapter, validate

MOST_CASES = 10_000
_STDLIB = Data.source
_ABSENT: dict[tuple[str, str], dict[str, Any]] = {  # the values of fields that a kind lacks
    ("model", "block"): {"layers": 1, "vocabulary": 0},
    ("model", "linear"): {"layers": 1, "width": 5, "heads": 1, "sequence": 1, "vocabulary": 0},
    ("model", "collectives"): {"layers": 1, "width": 1, "heads": 1, "sequence": 1, "vocabulary": 0},
    ("data", "synthetic"): {"source": ""},
    ("data", "linear"): {"source": ""},
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A value that a case sets, and where the sweep says so."""

    field: str
    value: Any
    written: Path_


Point = tuple[Setting, ...]


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
    _found.cache_clear()  # files may have come since the last suite
    points, problems = combinations(suite.values.get("sweep", {}), params_of(suite.values))
    drafts, groups = [], _Groups()
    for point in points:
        made = _draft(suite, point, machine, groups)
        if isinstance(made, Draft):
            drafts.append(made)
        elif len(problems) < SHOWN:
            problems += [Problem(written(point, found.path), found.message) for found in made]
        else:
            break
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


def combinations(sweep: Mapping[str, Any], params: Collection[str] = ()) -> tuple[list[Point], list[Problem]]:
    """Return the points of a validated sweep, the last field varying fastest, and what is wrong with it.

    `params` are the parameters of the suite's workload.
    """
    points_of = [_dimension(name, values, params) for name, values in sweep.items() if values]
    problems = _problems(points_of, params)
    count = math.prod(len(points) for points in points_of)
    if count > MOST_CASES:
        problems.append(Problem(("sweep",), f"asks for {count} cases; at most {MOST_CASES} are possible"))
    if problems:
        return [], problems
    return [tuple(itertools.chain(*parts)) for parts in itertools.product(*points_of)], []


def _dimension(name: str, values: Any, params: Collection[str]) -> Sequence[Point]:
    def setting(name: str, value: Any, *place: str | int) -> Setting:
        return Setting(field=full_name(name, params) or "", value=value, written=("sweep", *place))

    if name == "cases":
        return [
            tuple(setting(field, value, "cases", index, field) for field, value in case.items())
            for index, case in enumerate(values)
        ]
    if name == "zip":
        columns = [
            [setting(field, value, "zip", field, index) for index, value in enumerate(items)]
            for field, items in values.items()
        ]
        return list(zip(*columns, strict=True))
    return [(setting(name, value, name, index),) for index, value in enumerate(values)]


def _problems(points_of: Sequence[Sequence[Point]], params: Collection[str]) -> list[Problem]:
    """Find names that are no field, and fields that are set in two ways."""
    problems = []
    owners: dict[str, tuple[int, str]] = {}
    for dimension, points in enumerate(points_of):
        for setting in itertools.chain(*points):
            # The name of a field is the last text of its place: an index may follow it.
            depth = max(place for place, part in enumerate(setting.written) if isinstance(part, str))
            name, place = str(setting.written[depth]), setting.written[: depth + 1]
            if not setting.field:
                problems.append(Problem(place, f"cannot be swept; {nearest_field(name, params)}"))
            elif owners.setdefault(setting.field, (dimension, name)) != (dimension, name):
                problems.append(Problem(place, f"{setting.field} is set in two ways"))
    return problems


class _Groups:
    """The groups of cases: one that a case has like the case before is made once."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Mapping[str, Any], Any]] = {}

    def made(self, name: str, kind: type, values: Mapping[str, Any]) -> Any:
        """Return group `name` with these values."""
        last = self._last.get(name)
        if last is None or last[0] != values:
            last = self._last[name] = values, from_dict(kind, _members(kind, values))
        return last[1]


def _draft(
    suite: Suite, point: Point, machine: Mapping[str, float], groups: _Groups
) -> Draft | list[Problem]:
    values = _values(suite, point)
    try:
        fields = validate(values)
    except ValidationError as error:
        return found_by_pydantic(error, values)
    if problems := _resolve(fields, machine):
        return problems
    runs_program = bool(fields["workload"]["command"])
    named = ("workload", "command") if runs_program else ("data", "source")
    source = place_of(written(point, named), suite.places)
    folder = suite.folder if source.file == suite.file else source.file.parent if source.file else Path()
    case = _program_case(fields, folder) if runs_program else _case(fields, folder, groups)
    return Draft(point=point, names=_names_of(fields, machine), case=case)


def _values(suite: Suite, point: Point) -> dict[str, Any]:
    """Return what the suite says of all cases, with the settings of one; other groups are its own."""
    names = ("name", "scaling", "require", *VARIABLE)
    values = {name: suite.values[name] for name in names if suite.values.get(name) is not None}
    own: set[tuple[str, ...]] = set()  # groups that are copies
    for setting in point:
        *groups, last = setting.field.split(".")
        holder = values
        for depth, group in enumerate(groups, start=1):
            kinds = (
                {"kind": suite.resolved[group]["kind"]}
                if group in ("model", "data") and group not in holder and last != "like"
                else {}
            )
            if (path := (*groups[:depth],)) not in own:
                holder[group] = dict(holder.get(group, kinds))
                own.add(path)
            holder = holder[group]
        holder[last] = setting.value
    return values


_SHORT_PARTS = [(name, full.split(".")[:-1], full.split(".")[-1]) for name, full in SHORT.items()]


def _names_of(fields: Mapping[str, Any], machine: Mapping[str, float]) -> dict[str, Any]:
    """Return the machine, the fields with their groups (`model.width`), and clear ones without (`width`)."""
    short, absent = {}, () if fields["workload"]["command"] else ("workload",)
    for name, groups_of, member in _SHORT_PARTS:
        if not groups_of or groups_of[0] in absent:
            continue
        holder = fields
        for group in groups_of:
            holder = holder[group]
        if member in holder:
            short[name] = holder[member]
    groups = {name: fields[name] for name in VARIABLE if name not in (*BY_MEMBER, *absent)}
    named = {f"{group}.{name}": value for group in BY_MEMBER for name, value in fields[group].items()}
    return {**short, **groups, **named, **fields["workload"]["params"], **machine}


def _resolve(fields: dict[str, Any], machine: Mapping[str, float]) -> list[Problem]:
    """Put the values of formulas in their place, each after those that it reads; return what is wrong."""
    pending = dict(_formulas(fields, ""))
    while pending:
        params = frozenset(fields["workload"]["params"])
        ready = {f: text for f, text in pending.items() if not _reads(text, params) & pending.keys()}
        if not ready:
            circle = ", ".join(sorted(pending))
            return [Problem(_path(field), f"goes in a circle: {circle} need each other") for field in pending]
        names = _names_of(fields, machine)
        problems = [found for field in ready for found in _compute(field, ready[field], fields, names)]
        if problems:
            return problems
        pending = {field: text for field, text in pending.items() if field not in ready}
    return []


def _compute(field: str, text: Formula, fields: dict[str, Any], names: Mapping[str, Any]) -> list[Problem]:
    try:
        value = evaluate(text[1:], names)
        if not isinstance(value, int | float) or isinstance(value, bool):
            return [Problem(_path(field), f"expression '{text[1:]}' gives {value!r}, not a number")]
        holder, member = _holder(fields, field)
        holder[member] = adapter(field).validate_python(int(value) if value == int(value) else value)
    except UsageError as error:
        return [Problem(_path(field), str(error))]
    except ValidationError as error:
        return found_by_pydantic(error, value, within=_path(field))
    return []


def _formulas(fields: Mapping[str, Any], above: str) -> Iterator[tuple[str, Formula]]:
    """Yield the fields that are still formulas, by dotted name."""
    for name, value in fields.items():
        if type(value) is dict:
            yield from _formulas(value, f"{above}{name}.")
        elif type(value) is Formula:
            yield above + name, value


def _holder(fields: Mapping[str, Any], field: str) -> tuple[Any, str]:
    """Return the group that a dotted field is in, and what it is called there."""
    *groups, member = field.split(".")
    return functools.reduce(operator.getitem, groups, fields), member


@functools.cache  # the cases of a sweep share it
def _reads(text: str, params: frozenset[str]) -> set[str]:
    return {full_name(name, params) or name for name in names_in(text[1:])}


def _path(field: str) -> Path_:
    return tuple(field.split("."))


def _case(fields: Mapping[str, Any], folder: Path, groups: _Groups) -> Case:
    """Return the case of one point, without label; a relative `data.source` is looked for in `folder`."""
    values = {name: fields[name] for name in fields_of(Case) if name in fields and name != "base"}
    for name in ("model", "data"):
        values[name] = {**_ABSENT.get((name, values[name]["kind"]), {}), **values[name]}
    precision = dict(values["precision"])
    values["model"]["dtype"], values["precision"] = precision.pop("type"), precision
    if values["data"]["source"]:
        values["data"]["source"] = _found(values["data"]["source"], folder)
    train = values["train"]
    save = {**train["save"], "folder": _absolute(train["save"]["folder"], folder)}
    values["train"] = {**train, "save": save, "load": _absolute(train["load"], folder)}
    if fields["scaling"] == "weak":  # which gives the batch of one replica
        batch = fields["train"]["batch"] * fields["plan"]["dp"] * fields["plan"]["ep"]
        values["train"] = {**values["train"], "batch": batch}
    values["jitter"] = {**values["jitter"], "ranks": sorted({*values["jitter"]["ranks"]})}
    for name, amount in (("inject", "delay"), ("jitter", "mean")):
        if not values[name][amount]:  # so that healthy cases are equal
            values[name] = {}
    known = fields_of_any_kind(Case)
    for name, value in values.items():
        if kind := known[name].group:
            values[name] = groups.made(name, kind, value)
    return Case(suite=fields["name"], label="", **values)


def _program_case(fields: Mapping[str, Any], folder: Path) -> Case:
    """Return the case of a program, which trains nothing; its command names files relative to `folder`."""
    values = {name: fields[name] for name in ("scaling", "ranks", "threads", "timing", "launch", "workload")}
    workload = _members(Workload, values.pop("workload"))
    figures = {name: _members(Figure, figure) for name, figure in workload["figures"].items()}
    workload["params"] = {name: stored(value) for name, value in workload["params"].items()}
    workload["work"] = 1.0 if workload["rate"] else workload["work"]
    known = _members(Case, {"suite": fields["name"], "label": "", **values})
    case = from_dict(Case, {**known, "workload": {**workload, "figures": figures}})
    return with_program(case, folder)


def _members(group: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by the names that the members of a group have, with units."""
    fields, found = fields_of_any_kind(group), {}
    for name, value in values.items():
        field = fields.get(name)  # none of `dtype`, which a suite has elsewhere
        inner = field.group if field and not field.by_name else None
        found[field.member if field else name] = _members(inner, value) if inner else value
    return found


def _absolute(path: str, folder: Path) -> str:
    return str((folder / os.path.expanduser(path)).absolute()) if path else ""  # noqa: PTH111 - as `_found`


@functools.lru_cache(maxsize=64)  # the cases of a suite share it
def _found(source: str, folder: Path) -> str:
    """Make a path absolute, since the job may run elsewhere; a name that is nearly a known one stays."""
    source = os.path.expanduser(source)  # noqa: PTH111 - leaves the home of an unknown user as it is
    if source == _STDLIB or Path(source).is_absolute():
        return source
    path = (folder / source).absolute()
    if os.path.exists(path):  # noqa: PTH110 - a path may be too long
        return str(path)
    misspelt = difflib.get_close_matches(source, [_STDLIB], cutoff=0.8)
    return source if misspelt else str(Path(glob.escape(str(folder.absolute())), source))
