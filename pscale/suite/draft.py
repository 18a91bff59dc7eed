"""The cases that a sweep asks for: its combinations, the fields of each, their expressions computed."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import glob
import itertools
import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from pscale.config import Case, Data, Inject, Jitter, Model, Precision, Workload
from pscale.config.choices import AnyValue, Formula, Number
from pscale.config.expressions import evaluate, names_in
from pscale.config.workload import stored
from pscale.config.workload_command import with_program
from pscale.errors import UsageError
from pscale.suite.document import Path_
from pscale.suite.fields import BY_MEMBER, PARAMS, SHORT, VARIABLE, field_at, full_name, params_of
from pscale.suite.file import File
from pscale.suite.load import Suite, open_degrees, resolved, values_of
from pscale.suite.problems import (
    SHOWN,
    Problem,
    nearest_field,
    place_of,
    read_group,
    suite_error,
)

MOST_CASES = 10_000
_KINDS = ("model.kind", "model.like", "data.kind")  # fields that decide which others there are, or defaults
Job = TypeVar("Job")
_GROUPS = ("scaling", "require", *VARIABLE)  # fields of a suite that make its cases
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
    drafts, draft_of = [], _Drafts(suite, machine)
    for point in points:
        made = draft_of(point)
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


def put(fields: dict[str, Any], field: str, value: Any) -> None:
    """Give a dotted field a value, in copies of its groups: those of all points stay as they are."""
    *groups, last = field.split(".")
    for group in groups:
        fields[group] = fields = dict(fields.get(group, {}))
    fields[last] = value


class _Drafts:
    """Makes drafts: values of a point are put over the suite's, expressions computed, groups validated."""

    def __init__(self, suite: Suite, machine: Mapping[str, float]):
        self._suite, self._machine = suite, machine
        self._shared: dict[Point, Any] = {}  # by kinds of groups: the fields, or what is wrong
        self._groups: dict[str, tuple[Any, Any]] = {}  # of each the last values, and what was made of them
        self._no_program = values_of(Workload(command=""))

    def __call__(self, point: Point) -> Draft | list[Problem]:
        """Return the draft of a point, or what is wrong with it."""
        shared = self._of_kinds(tuple(setting for setting in point if setting.field in _KINDS))
        if isinstance(shared, list):
            return shared
        fields = dict(shared)
        for setting in point:
            put(fields, setting.field, _read(setting.field, setting.value))
        named = [*(self._suite.values.get("plan") or ()), *(setting.field[5:] for setting in point)]
        rest = open_degrees(fields["plan"], named)
        problems = [Problem(("plan",), rest)] if isinstance(rest, str) else []
        for axis, formula in {} if isinstance(rest, str) else rest.items():
            put(fields, f"plan.{axis}", formula)
        problems = problems or _resolve(fields, self._machine)
        groups = self._validated(fields)
        if isinstance(groups, list):
            return groups
        if problems:
            return problems
        runs_program = bool(fields["workload"]["command"])
        place = written(point, ("workload", "command") if runs_program else ("data", "source"))
        source, suite = place_of(place, self._suite.places), self._suite
        folder = suite.folder if source.file == suite.file else source.file.parent if source.file else Path()
        case = _program_case(fields, groups, folder) if runs_program else _case(fields, groups, folder)
        return Draft(point=point, names=_names_of(fields, self._machine), case=case)

    def _of_kinds(self, kinds: Point) -> Any:
        """Return the fields that all cases with these kinds of groups share, or what is wrong with them."""
        if kinds not in self._shared:
            values = dict(self._suite.values)
            for kind in kinds:
                group, _, name = kind.field.partition(".")
                values[group] = {**(values.get(group) or {}), name: kind.value}
            found = self._suite.read if self._suite.read and not kinds else resolved(values)
            self._shared[kinds] = found
            if isinstance(found, tuple):  # its groups are made, but for those that others decide about
                fields, file = found
                self._shared[kinds] = fields
                made = {*_GROUPS} - {"data", "precision"}
                self._groups |= {name: (fields[name], getattr(file, name)) for name in made}
        return self._shared[kinds]

    def _validated(self, fields: Mapping[str, Any]) -> dict[str, Any] | list[Problem]:
        """Return the groups of a case by name, or what is wrong with any; one like the last is made once."""
        groups = ((name, fields[name]) for name in _GROUPS if fields[name] != self._no_program)
        changed = {name: value for name, value in groups if self._groups.get(name, (None,))[0] != value}
        if changed:
            read = read_group({name: fields[name] for name in ("name", "scaling")} | changed, File)
            if isinstance(read, list):
                return read
            self._groups |= {name: (value, getattr(read, name)) for name, value in changed.items()}
        return {name: made for name, (_, made) in self._groups.items()}


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


def _read(field: str, value: Any) -> Any:
    """Return a value of a sweep as a plain number or an expression, if it is one; else as it is."""
    mark = _mark(field)
    try:
        return mark.read(value) if mark else value
    except ValueError:  # which its group raises once more
        return value


@functools.cache
def _mark(field: str) -> Number | AnyValue | None:
    found = None if field.startswith(PARAMS) else field_at(field)
    return AnyValue() if field.startswith(PARAMS) else found.number if found else None


def _resolve(fields: dict[str, Any], machine: Mapping[str, float]) -> list[Problem]:
    """Put the values of formulas in their place, each after those that it reads; return what is wrong."""
    pending = dict(_formulas(fields, ""))
    while pending:
        params = frozenset(fields["workload"]["params"])
        ready = {f: text for f, text in pending.items() if not _reads(text, params) & pending.keys()}
        if not ready:
            circle = ", ".join(sorted(pending))
            return [Problem(_path(field), f"goes in a circle: {circle} need each other") for field in pending]
        names, problems = _names_of(fields, machine), []
        for field, text in ready.items():
            try:
                value = evaluate(text[1:], names)
            except UsageError as error:
                problems.append(Problem(_path(field), str(error)))
                continue
            if not isinstance(value, int | float) or isinstance(value, bool):
                message = f"expression '{text[1:]}' gives {value!r}, not a number"
                problems.append(Problem(_path(field), message))
            else:
                put(fields, field, int(value) if value == int(value) else value)
        if problems:
            return problems
        pending = {field: text for field, text in pending.items() if field not in ready}
    return []


def _formulas(fields: Mapping[str, Any], above: str) -> Iterator[tuple[str, Formula]]:
    """Yield the fields that are still formulas, by dotted name."""
    for name, value in fields.items():
        if type(value) is dict:
            yield from _formulas(value, f"{above}{name}.")
        elif type(value) is Formula:
            yield above + name, value


@functools.cache  # the cases of a sweep share it
def _reads(text: str, params: frozenset[str]) -> set[str]:
    return {full_name(name, params) or name for name in names_in(text[1:])}


def _path(field: str) -> Path_:
    return tuple(field.split("."))


def _case(fields: Mapping[str, Any], groups: Mapping[str, Any], folder: Path) -> Case:
    """Return the case of one point, without label; a relative `data.source` is looked for in `folder`."""
    model, data, train, plan = (groups[name] for name in ("model", "data", "train", "plan"))
    precision, inject, jitter = groups["precision"], groups["inject"], groups["jitter"]
    data, absent = (
        replace(data, **_ABSENT.get(("data", data.kind), {})),
        _ABSENT.get(("model", model.kind), {}),
    )
    save = replace(train.save, folder=_absolute(train.save.folder, folder))
    train = replace(train, save=save, load=_absolute(train.load, folder))
    if fields["scaling"] == "weak":  # which gives the batch of one replica
        train = replace(train, batch=train.batch * plan.dp * plan.ep)
    made = {
        "model": replace(_of_job(Model, model), **absent, dtype=precision.type),
        "data": replace(data, source=_found(data.source, folder)) if data.source else data,
        "train": train,
        "precision": _of_job(Precision, precision),
        "inject": inject if inject.delay_s else Inject(),  # so that healthy cases are equal
        "jitter": replace(jitter, ranks=tuple(sorted({*jitter.ranks}))) if jitter.mean_s else Jitter(),
        "workload": Workload(command=""),
    }
    return Case(suite=fields["name"], label="", **{**groups, **made})


def _of_job(kind: type[Job], group: Any) -> Job:
    """Return a group as a job has it, without fields of a suite alone."""
    return kind(**{each.name: getattr(group, each.name) for each in dataclasses.fields(cast("Any", kind))})


def _program_case(fields: Mapping[str, Any], groups: Mapping[str, Any], folder: Path) -> Case:
    """Return the case of a program, which trains nothing; its command names files relative to `folder`."""
    workload = groups["workload"]
    params = {name: stored(value) for name, value in workload.params.items()}
    workload = replace(workload, params=params, work=1.0 if workload.rate else workload.work)
    kept = {name: groups[name] for name in ("scaling", "ranks", "threads", "timing", "launch")}
    return with_program(Case(suite=fields["name"], label="", workload=workload, **kept), folder)


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
