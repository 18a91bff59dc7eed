"""From a file to a suite: what it extends, what the command line overrides, what it may say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pscale.config import Case
from pscale.config.choices import Scaling
from pscale.config.metrics import METRICS, OF_TRAINING, conversion
from pscale.config.workload import MATCH, ONCE, stored, without_text
from pscale.errors import SuiteError, UsageError
from pscale.suite.document import Document, Path_, Place, read_document
from pscale.suite.fields import BY_MEMBER, PARAMS, full_name, params_of
from pscale.suite.file import Expect, References
from pscale.suite.override import overridden
from pscale.suite.problems import Problem, nearest, place_of, suite_error, validated
from pscale.suite.shipped import suite_file
from pscale.suite.site import Site

# With fewer launches an interval is narrow by chance too often: launching until it was narrow would leave far
# less than 95 % of the intervals with the truth in them, as simulations show.
FEWEST_AUTO = 6


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
    places: Mapping[Path_, Place] = field(repr=False)

    def error(self, path: Path_, message: str) -> SuiteError:
        """Return the error that says what is wrong at `path`, with the line that was written there."""
        return suite_error([Problem(path, message)], self.places)


@dataclass(frozen=True, kw_only=True)
class ReferenceFile:
    """The entries of a file, each as `expect:` of a suite has them; `suite` is empty if it names none."""

    file: Path
    suite: str
    entries: tuple[Mapping[str, Any], ...]
    places: Mapping[Path_, Place]

    def place(self, entry: int) -> str:
        """Return file, line and field of an entry, for messages."""
        line = place_of(("expect", entry), self.places).line
        return f"{self.file}:{line}: expect[{entry}]"


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
        document = site.below(document)
    for override in overrides:
        document = overridden(document, override)
    fields = validated(document.values, document.places)
    if problems := list(_expect_problems(fields)):
        raise suite_error(problems, document.places)
    uncounted = fields["launch"]["warmup"] + (fields["workload"]["watch"] == ONCE)
    auto = _auto(fields, uncounted) if fields["repeat"] == "auto" else None
    counted = fields["repeat"] if auto is None else 1 if auto.budget_s else auto.least - uncounted
    return Suite(
        **{name: fields[name] for name in ("name", "title", "scaling")},
        given=document.text,
        resolved=_for_json({name: value for name, value in fields.items() if name != "extends"}),
        repeat=counted + uncounted,
        uncounted=uncounted,
        auto=auto,
        file=path,
        folder=path.parent if folder is None else folder,
        values=document.values,
        places=document.places,
    )


def _for_json(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields with parameters as results keep them, in the workload and in the sweep."""
    workload = fields["workload"]
    params = params_of(fields)
    kept = {name: stored(value) for name, value in workload["params"].items()}

    def swept(values: Any, name: str = "") -> Any:
        if isinstance(values, dict):
            return {inner: swept(value, inner) for inner, value in values.items()}
        if isinstance(values, list):
            return [swept(value, name) for value in values]
        is_param = (full_name(name, params) or "").startswith(PARAMS)
        return stored(values) if is_param else without_text(values)

    return {**fields, "workload": {**workload, "params": kept}, "sweep": swept(fields["sweep"])}


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


def load_references(path: Path) -> ReferenceFile:
    """Read a file of reference values; raises SuiteError with all that is wrong in it."""
    document = read_document(path)
    known = validated(document.values, document.places, References)
    entries = tuple(known["expect"])
    return ReferenceFile(file=path, suite=known["suite"], entries=entries, places=document.places)


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
