"""What is wrong with a suite: pydantic's findings as sentences, each with its place, all in one error."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from pscale.errors import SuiteError
from pscale.suite.document import Path_, Place, dotted
from pscale.suite.fields import LEAVES, SHORT, groups
from pscale.suite.schema.file import Expect, File
from pscale.suite.schema.group import Group

_LISTED = 30  # names in a hint: as many as the largest group has fields, and no screenful


@dataclass(frozen=True)
class Problem:
    """What is wrong, and with which field."""

    path: Path_
    message: str


def suite_error(problems: Iterable[Problem], places: Mapping[Path_, Place]) -> SuiteError:
    """Gather problems in one error, a line each, in the order of the files."""
    lines = set()
    for problem in problems:
        place, field = place_of(problem.path, places), dotted(problem.path)
        if place.option:
            field = f"{place.option}: {field}"
        text = str(SuiteError(problem.message, file=place.file, line=place.line, field=field))
        lines.add((str(place.file), place.line or 0, text))
    return SuiteError("\n".join(text for *_, text in sorted(lines)))


def found_by_pydantic(error: ValidationError, values: Any, top: type[Group] = File) -> list[Problem]:
    """Say what is wrong with `values`, which the group `top` refused."""
    problems = []
    for found in error.errors(include_url=False):
        path = _path(found["loc"], values)
        field = (*path, "kind") if found["type"] == "union_tag_invalid" else path
        problems.append(Problem(field, _message(found, path, values, top)))
    return problems


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word that is meant, or at those that are known."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    more = len(known) > _LISTED
    return f"expected one of {', '.join(known[:_LISTED])}{', …: `pscale schema` has all' if more else ''}"


def nearest_field(name: str, others: Iterable[str] = ()) -> str:
    """Return a hint at the field that is meant, of those that can vary and of `others`."""
    several = [f"'{leaf}'" for leaf in LEAVES if leaf.endswith(f".{name}")]
    if several:
        return f"did you mean {' or '.join(several)}?"
    return nearest(name, LEAVES if "." in name else dict.fromkeys([*others, *SHORT]))


def place_of(path: Path_, places: Mapping[Path_, Place]) -> Place:
    """Return where the value at `path`, or the group around it, was written."""
    for length in range(len(path), -1, -1):
        if path[:length] in places:
            return places[path[:length]]
    return Place()


def _path(location: Path_, values: Any) -> Path_:
    """Drop the kinds that pydantic puts between the fields of a union."""
    path: Path_ = ()
    for place, part in enumerate(location):
        if isinstance(part, int) or (isinstance(values, dict) and part in values):
            values = values[part]
            path = (*path, part)
        elif place == len(location) - 1 and part not in _kinds(path):  # a field that is missing
            path = (*path, part)
    return path


def _kinds(path: Path_) -> list[str]:
    """Return the kinds of the union at `path`, if there is one."""
    return [kind for kind in groups(str(path[0])) if kind] if len(path) == 1 else []


def _message(found: Any, path: Path_, values: Any, top: type[Group]) -> str:
    kind, got, context = found["type"], found["input"], found.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_field(path, values, top)
    if kind in _SAY:
        return _SAY[kind](got, context, path)
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind].format(**context)}, got {_shown(got)}{_hint(kind, got)}"
    return f"{found['msg']}, got {_shown(got)}"


def _unknown_field(path: Path_, values: Any, top: type[Group]) -> str:
    if moved := _MOVED.get(dotted(path)):
        return moved
    holder, known = "a suite" if top is File else "the file", list(top.model_fields)
    if path[0] == "expect":
        holder, known = "'expect'", list(Expect.model_fields)
    elif len(path) > 1:
        group = dotted(path[:-1])
        kind = values[path[0]].get("kind", "")
        known = list(groups(group)[kind].model_fields)
        holder = f"'{group}'" + (f" of kind {kind}" if kind else "")
        having = [other for other, fields in groups(group).items() if path[-1] in fields.model_fields]
        if having:
            holder += f", unlike that of kind {' or '.join(having)},"
        elif leaf := SHORT.get(str(path[-1])):
            return f"{holder} has no such field; did you mean '{leaf}'?"
    return f"{holder} has no such field; {nearest(str(path[-1]), known)}"


_MOVED = {"model.dtype": "the type of a model's numbers is a field of the suite: `precision: float64`"}


def _missing(_got: Any, _context: Any, path: Path_) -> str:
    return "is missing; expected " + {
        "scaling": "one of weak, strong, throughput",
        "metric": "a metric of the report, such as efficiency",
        "name": "a short name; the results' folder is named after it",
    }.get(str(path[-1]), "a value")


def _unknown_kind(_got: Any, context: Any, path: Path_) -> str:
    return f"unknown kind {_shown(context['tag'])}; {nearest(str(context['tag']), _kinds(path))}"


def _unknown_choice(got: Any, context: Any, _path: Path_) -> str:
    choices = re.findall("'([^']*)'", context["expected"])
    hint = nearest(str(got), choices) if choices else f"expected {context['expected']}"  # of numbers
    return f"{_shown(got)} is not possible; {hint}"


_SAY: dict[str, Callable[[Any, Any, Path_], str]] = {
    "missing": _missing,
    "union_tag_not_found": lambda _, __, path: (
        f"'kind' is missing; expected one of {', '.join(_kinds(path))}"
    ),
    "union_tag_invalid": _unknown_kind,
    "literal_error": _unknown_choice,
    "value_error": lambda _, context, __: str(context["error"]),
}
_FIELDS = "fields, as in {{name: value}}"
_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "list_type": "a list, such as [1, 2]",
    "dict_type": _FIELDS,
    "model_type": _FIELDS,
    "model_attributes_type": _FIELDS,
    "greater_than": "more than {gt:.15g}",
    "greater_than_equal": "at least {ge:.15g}",
    "less_than": "less than {lt:.15g}",
    "less_than_equal": "at most {le:.15g}",
}
_NUMBER = re.compile(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?")


def _hint(kind: str, got: Any) -> str:
    if kind in ("int_type", "float_type") and isinstance(got, str) and _NUMBER.fullmatch(got):
        return "; without quotes it is a number"
    if kind == "int_type" and isinstance(got, float) and abs(got) < 1e15:
        return f"; {got:.0f} is one" if got == round(got) else "; see round, ceil and floor"
    if kind == "string_type" and isinstance(got, bool | int | float):
        return f'; in quotes it is a text: "{_shown(got)}"'
    return ""


def _shown(value: Any) -> str:
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
