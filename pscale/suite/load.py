"""From a file to a suite: what it extends, what the command line overrides, what it may say."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, Any, Self

from pscale.config import Case, Data, Launch, Model, Workload, from_dict
from pscale.config.axes import DEGREES, PLAN_AXES
from pscale.config.choices import Formula, Group, Number, Scaling
from pscale.config.metrics import METRICS, OF_TRAINING, conversion
from pscale.config.workload import MATCH, ONCE, stored, without_text
from pscale.errors import SuiteError, UsageError
from pscale.runs import atomic_files
from pscale.suite.document import Document, Path_, Place, dotted, merged, read_document, read_value
from pscale.suite.fields import BY_MEMBER, PARAMS, fields_at, fields_of, full_name, params_of
from pscale.suite.file import PUBLISHED, Expect, File, References, Sweep
from pscale.suite.problems import (
    Problem,
    nearest,
    nearest_field,
    place_of,
    read_group,
    suite_error,
    validated,
)
from pscale.suite.shipped import suite_file

# With fewer launches an interval is narrow by chance too often: launching until it was narrow would leave far
# less than 95 % of the intervals with the truth in them, as simulations show.
FEWEST_AUTO = 6
# The kind of data that fits a kind of model, where a suite does not say.
DATA_OF = {"gpt": "text", "moe": "text", "block": "synthetic", "linear": "linear", "collectives": "synthetic"}


@dataclass(frozen=True, kw_only=True)
class Expectation(Expect):
    """A demand of a suite, with the ids of the cases that it is about."""

    cases: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Launches until figures are precise: `precision` is half of their interval over their value."""

    precision: float
    most: int  # launches of a case
    least: int = FEWEST_AUTO  # before precision counts
    budget_s: float | None = None
    uncounted: int = 0  # of these, the first ones, are warm-ups or watched


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """What a suite asks for on a machine: its cases, and what it expects of them."""

    cases: tuple[Case, ...]
    expect: tuple[Expectation, ...]


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One experiment, validated; `expand` makes its cases.

    `given` is the file as written; `resolved` has what it extends, overrides and defaults filled in, as JSON
    can hold it; `values` is the same without defaults, and `places` says where each was written.
    """

    name: str
    title: str
    scaling: Scaling
    given: str
    resolved: dict[str, Any]
    repeat: int  # launches of each case; with `auto` the fewest that it has for certain
    uncounted: int  # of these, the first ones, are warm-ups or watched
    auto: Auto | None
    file: Path
    folder: Path  # where files are that it names
    values: dict[str, Any] = field(repr=False)
    read: tuple[dict[str, Any], File] | None = field(repr=False)  # `resolved` of the values
    places: Mapping[Path_, Place] = field(repr=False)

    def error(self, path: Path_, message: str) -> SuiteError:
        """Return the error that says what is wrong at `path`, with the line that was written there."""
        return suite_error([Problem(path, message)], self.places)


def load_suite(
    source: Path | Document,
    overrides: Sequence[str] = (),
    site: Site | None = None,
    folder: Path | None = None,
) -> Suite:
    """Read a suite with all that it extends, above a site's profile; apply overrides such as `width=256`.

    What the file itself names is looked for in `folder`, by default that of the file. A document stands for
    a file in `folder`.

    Raises SuiteError that lists everything wrong, each with file, line, field and what would be right.
    """
    path = source if isinstance(source, Path) else Path(folder or "", f"{source.values['name']}.yaml")
    document = _with_bases(source, ()) if isinstance(source, Path) else source
    if site:
        document = document.over(site.launch)
    for override in overrides:
        document = overridden(document, override)
    read = resolved(document.values)
    if isinstance(read, list):
        raise suite_error(read, document.places)
    fields, _ = read
    rest = open_degrees(fields["plan"], document.values.get("plan", {}))
    problems = [Problem(("plan",), rest)] if isinstance(rest, str) else list(_expect_problems(fields))
    if problems:
        raise suite_error(problems, document.places)
    assert not isinstance(rest, str)
    fields = {**fields, "plan": {**fields["plan"], **rest}}
    uncounted = fields["launch"]["warmup"] + (fields["workload"]["watch"] == ONCE)
    auto = _auto(fields, uncounted) if fields["repeat"] == "auto" else None
    counted = fields["repeat"] if auto is None else 1 if auto.budget_s else auto.least - uncounted
    return Suite(
        **{name: fields[name] for name in ("name", "title", "scaling")},
        given=document.text,
        resolved=_for_json({name: value for name, value in fields.items() if name != "extends"}, document),
        repeat=counted + uncounted,
        uncounted=uncounted,
        auto=auto,
        file=path,
        folder=path.parent if folder is None else folder,
        values=document.values,
        read=read,
        places=document.places,
    )


def resolved(values: Mapping[str, Any]) -> tuple[dict[str, Any], File] | list[Problem]:
    """Return the fields of a suite with all defaults, and the suite; or what is wrong with its values.

    Fields have the names of a suite; sizes are in bytes, times in seconds, and numbers may be expressions.
    """
    model = values.get("model")
    if isinstance(model, Mapping) and "like" in model:
        published = PUBLISHED.get(str(model["like"]), {"kind": "gpt"})
        kind = str(model.get("kind", published["kind"]))
        like = {name: value for name, value in published.items() if kind in fields_at(("model", name))}
        values = {**values, "model": {**like, **model}}
    file = read_group(values, File)
    if isinstance(file, list):
        return file
    fields: dict[str, Any] = values_of(file, values)
    if file.data is None:
        fields["data"] = values_of(from_dict(Data, {"kind": DATA_OF[file.model.kind]}))
    if file.workload is None:
        fields["workload"] = values_of(Workload(command=""))
    if file.precision.type is None:
        fields["precision"]["type"] = "float64" if file.model.kind == "linear" else Model.dtype
    return fields, file


def open_degrees(plan: Mapping[str, Any], written: Collection[str]) -> dict[str, Any] | str:
    """Return the degrees that are the rest of the ranks, as expressions; or why they cannot be.

    `written` are the degrees that a suite names: data parallelism is the rest by default.
    """
    open_ = [axis for axis in PLAN_AXES if str(plan[axis]).removeprefix("=") == "rest"]
    found: dict[str, Any] = {}
    if len(open_) > 1 and "dp" not in written:
        found["dp"] = 1
        open_.remove("dp")
    if len(open_) > 1:
        return f"{' and '.join(open_)} cannot both be rest, what the others leave of the ranks"
    for axis in open_:
        others = " * ".join(other for other in DEGREES if other != axis)
        found[axis] = Formula(f"=max(1, ranks // ({others}))")
    return found


def values_of(group: Any, written: Any = ()) -> Any:
    """Return the values of a group by the names of fields in a suite, with its own defaults."""
    if isinstance(group, Sweep):
        return group.model_dump()
    if is_dataclass(group):
        found = {}
        for name, field in fields_of(group.__class__, getattr(group, "kind", "")).items():
            inner = written.get(name, ()) if isinstance(written, Mapping) else ()
            is_special = name not in written and field.special.default is not None
            value = getattr(group, field.member)
            found[name] = field.special.default if is_special else values_of(value, inner)
        return found
    if isinstance(group, Mapping):
        return {name: values_of(each) for name, each in group.items()}
    return [values_of(each) for each in group] if isinstance(group, tuple) else group


def _for_json(fields: dict[str, Any], document: Document) -> dict[str, Any]:
    """Return fields with parameters as results keep them, in the workload and in the sweep.

    Those of a model that is like a published one are as written: a sweep may name another one.
    """
    workload, model = fields["workload"], fields["model"]
    if model.get("like", "none") != "none":
        model = {name: without_text(value) for name, value in document.values["model"].items()}
    params = params_of(fields)
    kept = {name: stored(value) for name, value in workload["params"].items()}

    def swept(values: Any, name: str = "") -> Any:
        if isinstance(values, dict):
            return {inner: swept(value, inner) for inner, value in values.items()}
        if isinstance(values, list):
            return [swept(value, name) for value in values]
        is_param = (full_name(name, params) or "").startswith(PARAMS)
        return stored(values) if is_param else without_text(values)

    workload = {**workload, "params": kept}
    return {**fields, "model": model, "workload": workload, "sweep": swept(fields["sweep"])}


def _expect_problems(fields: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with the metrics of `expect`, which may be figures of the workload."""
    figures = fields["workload"]["figures"]
    for place, entry in enumerate(fields["expect"]):
        name, unit = entry["metric"], entry["unit"]
        if name not in METRICS and name not in figures:
            message = f"'{name}' is not possible; {nearest(name, [*METRICS, *figures])}"
            yield Problem(("expect", place, "metric"), message)
        elif name in figures and figures[name]["unit"] == MATCH:
            if not unit:
                message = f"is missing: {name} has the unit that the program says; expected one such as 's'"
                yield Problem(("expect", place, "unit"), message)
        elif name in figures and unit and conversion(figures[name]["unit"], unit) is None:
            message = f"{name} is not measured in '{unit}'; expected '{figures[name]['unit']}', or no unit"
            yield Problem(("expect", place, "unit"), message)
    for name in figures:
        if name in METRICS.keys() - OF_TRAINING:
            yield Problem(("workload", "figures", name), "is the name of a metric; expected another name")


def _auto(fields: Mapping[str, Any], uncounted: int) -> Auto:
    most = fields["max_repeats"]
    return Auto(
        precision=fields["known_to"],
        most=most + uncounted,
        least=min(FEWEST_AUTO, most) + uncounted,
        budget_s=fields["budget"],
        uncounted=uncounted,
    )


def load_references(path: Path) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """Return the suite that a file of reference values names, and its entries as `expect:` has them.

    They have file, line and field for keys. Raises SuiteError with all that is wrong in the file.
    """
    document = read_document(path)
    read = validated(document.values, document.places, References)
    lines = (place_of(("expect", number), document.places).line for number in range(len(read.expect)))
    named = (f"{path}:{line}: expect[{number}]" for number, line in enumerate(lines))
    return read.suite, dict(zip(named, map(values_of, read.expect), strict=True))


def _spelled_out(document: Document) -> Document:
    """Make a group of a single value that stands for one."""
    values = dict(document.values)
    for group, member in BY_MEMBER.items():
        if isinstance(values.get(group), str):
            values[group] = {member: values[group]}
    return replace(document, values=values)


def _with_bases(path: Path, extending: tuple[Path, ...]) -> Document:
    """Read a file and, below it, the chain of files that it extends."""
    document = _spelled_out(read_document(path))
    base = document.values.get("extends")
    if not isinstance(base, str) or not base:
        return document  # `File` says what is wrong with it
    chain = (*extending, path.resolve())
    place = document.places["extends",]
    try:
        found = suite_file(Path(base), beside=path.parent)
    except UsageError as error:
        raise SuiteError(str(error), file=path, line=place.line, field="extends") from None
    if found.resolve() in chain:
        names = " -> ".join(file.name for file in (*chain, found))
        raise SuiteError(f"goes in a circle: {names}", file=path, line=place.line, field="extends")
    if not os.path.isfile(found):  # noqa: PTH113 - its name may be too long
        raise SuiteError(f"there is no file '{found}'", file=path, line=place.line, field="extends")
    below = _with_bases(found, chain)
    inherited = {name: value for name, value in below.values.items() if name not in ("name", "extends")}
    return document.over(replace(below, values=inherited), whole=[("sweep",)])


FILE = "sites.yaml"
Count = Annotated[int, Number(ge=1, computed=False)]


@dataclass(frozen=True, kw_only=True)
class Profile(Group):
    """One site: the hosts where it is meant, what a scheduler does not tell, defaults for `launch`."""

    hosts: tuple[str, ...] = ()  # patterns of their names
    poll_s: Annotated[float, Number(gt=0, unit="s", computed=False)] = (
        30.0  # between questions to the scheduler
    )
    nodes: Count | None = None
    cores_per_node: Count | None = None
    launch: Launch = Launch()


_NOTHING = Document(values={}, places={})


@dataclass(frozen=True, kw_only=True)
class Site:
    """A profile in force, and the document of what it says of `launch`; without a name there is none."""

    name: str = ""
    profile: Profile = Profile()
    launch: Document = _NOTHING


def find_site(name: str | None, folder: Path, host: str) -> Site:
    """Return the profile called `name`, or the first that is meant for `host`, or none.

    Looked for in sites.yaml in `folder`, that of the suite, then in the user's configuration. Raises
    SuiteError for a file that says something impossible, UsageError for a name that is in neither.
    """
    known = []
    for path in files(folder):
        if not path.is_file():
            continue
        document = read_document(path)
        for site in document.values:
            profile = validated(document.values[site], document.places, Profile, within=(site,))
            known.append(site)
            if site == name or (name is None and any(fnmatch(host, pattern) for pattern in profile.hosts)):
                launch = {each: value for each, value in document.values[site].items() if each == "launch"}
                places = {path[1:]: place for path, place in document.places.items() if path[:1] == (site,)}
                return Site(name=site, profile=profile, launch=Document(values=launch, places=places))
    if name is None:
        return Site()
    looked = " or ".join(map(str, files(folder)))
    raise UsageError(f"--site {name}: no such profile in {looked}; known: {', '.join(known) or 'none'}")


def files(folder: Path) -> Sequence[Path]:
    """Return where profiles are looked for, the first match wins."""
    configuration = atomic_files.user_folder("XDG_CONFIG_HOME", ".config")
    return folder / FILE, configuration / "pscale" / FILE


class Override(str):
    """A field and its value that another option than `--set` stands for; `option` is that as it was typed."""

    option: str

    def __new__(cls, text: str, option: str) -> Self:
        """Make it."""
        made = super().__new__(cls, text)
        made.option = option
        return made


_FIXED = ("name", "extends")
_LONGEST_SHOWN = 100  # characters of an option in a message


def overridden(document: Document, override: str) -> Document:
    """Apply an override such as `model.width=256`: groups merge, the sweep and its fields are replaced."""
    name, equals, text = override.partition("=")
    typed = override.option if isinstance(override, Override) else f"--set {override}"
    option = typed if len(typed) <= _LONGEST_SHOWN else f"{typed[:_LONGEST_SHOWN]}..."
    params = params_of(document.values)
    path = _path(name.strip(), document.values.get("sweep"), params)
    if not equals or not all(path):
        raise SuiteError(f"{option}: expected field=value, as in --set model.width=256")
    _check(path, document, option, (name.strip(), text.strip()))
    value = read_value(text, option)
    whole = [path] if path[0] == "sweep" else []
    members = value if isinstance(value, dict) and not whole else None
    for part in reversed(path):
        value = {part: value}
    value = _with_kind(value, document.values)
    return Document(
        values=merged(document.values, value, whole),
        places=_places(document.places, path, members, Place(option=option)),
        text=document.text,
    )


def _path(name: str, sweep: Any, params: Collection[str]) -> tuple[str, ...]:
    """Return where a name of the command line is in the file; names in a sweep have dots themselves."""
    for group in (("sweep", "zip"), ("sweep",)):
        prefix = f"{dotted(group)}."
        if name.startswith(prefix):
            field = name.removeprefix(prefix)
            full = full_name(field, params)
            written = [place for place in _swept(sweep) if place[:-1] == group]
            same = [str(last) for *_, last in written if full and full_name(str(last), params) == full]
            return (*group, same[0] if same else field)
    return tuple((full_name(name, params) or name).split("."))


def _check(path: tuple[str, ...], document: Document, option: str, typed: tuple[str, str]) -> None:
    """Raise SuiteError where no field is at `path`, or none whose value would count."""
    if path[0] in _FIXED:
        raise SuiteError(f"{option}: '{path[0]}' cannot be overridden")
    if len(path) == 1 and path[0] not in fields_of(File):
        known = [name for name in fields_of(File) if name not in _FIXED]
        raise SuiteError(f"{option}: a suite has no such field; {nearest_field(path[0], known)}")
    for swept in _swept(document.values.get("sweep")):
        if full_name(str(swept[-1]), params_of(document.values)) == ".".join(path):
            raise SuiteError(f"{option}: {_to_change(swept, *typed)}")


def _to_change(swept: Path_, name: str, text: str) -> str:
    """Say how to change a field that the sweep sets: the values that it sweeps, or which cases run."""
    of_cases = swept[1] == "cases"
    values = "sweep.cases=[…]" if of_cases else f"{dotted(swept)}=[{text}]"
    return (
        f"the suite sweeps this field ({dotted(swept)}); use `--set {values}` instead, or "
        f'`--only "{name} == {text}"` to run only these cases'
    )


def _with_kind(above: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Say the kind of a group that the file leaves out, as its default does."""
    ((group, members),) = above.items()
    if isinstance(values.get(group), dict) or not isinstance(members, dict) or "kind" in members:
        return above
    model = values.get("model")
    kind = str(model.get("kind")) if isinstance(model, dict) else Model.kind
    default = {"model": kind, "data": DATA_OF.get(kind)}.get(group)
    return {group: {"kind": default, **members}} if default else above


def _places(
    places: Mapping[Path_, Place], path: Path_, members: Collection[str] | None, option: Place
) -> dict[Path_, Place]:
    """Return where values were written, now that an option sets `path`, or some `members` of it."""
    depth = len(path)
    above = {path[:length]: option for length in range(1, depth)}
    kept = {
        place: where
        for place, where in places.items()
        if place[:depth] != path
        or (members is not None and len(place) > depth and place[depth] not in members)
    }
    return {**above, **kept, path: option}


def _swept(sweep: Any) -> Iterator[Path_]:
    """Yield the place of every field that the sweep sets."""
    if not isinstance(sweep, dict):
        return
    yield from (("sweep", name) for name in sweep if name not in ("zip", "cases"))
    zipped, cases = sweep.get("zip"), sweep.get("cases")
    if isinstance(zipped, dict):
        yield from (("sweep", "zip", name) for name in zipped)
    for index, case in enumerate(cases if isinstance(cases, list) else []):
        yield from (("sweep", "cases", index, name) for name in (case if isinstance(case, dict) else []))
