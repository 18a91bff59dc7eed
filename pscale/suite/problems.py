"""What is wrong with a suite: pydantic's findings as sentences, each with its place, all in one error."""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from pscale.errors import SuiteError
from pscale.suite.document import Path_, Place, dotted
from pscale.suite.fields import (
    LEAVES,
    SHORT,
    fields_at,
    fields_of,
    fields_of_any_kind,
    group_at,
    kinds_of,
)
from pscale.suite.file import File

Read = TypeVar("Read")
_LONGEST_WORD = 100  # characters of one that is compared with others
SHOWN = 50  # problems in a message
_MOST = 1000  # that are put into words: looking for what is meant takes time
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
    texts = [text for *_, text in sorted(lines)]
    more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return SuiteError.of([*texts[:SHOWN], *more])


def validated(values: Any, places: Mapping[Path_, Place], top: type[Read], within: Path_ = ()) -> Read:
    """Return a group; raises SuiteError with all that is wrong in its values, written at `within`."""
    read = read_group(values, top)
    if isinstance(read, list):
        raise suite_error([Problem((*within, *each.path), each.message) for each in read], places)
    return read


def read_group(values: Any, top: type[Read]) -> Read | list[Problem]:
    """Return a group of values as a suite has them, or what is wrong with these."""
    problems = list(_kind_problems(values, top))
    try:
        read: Read = _adapter(cast("Any", top)).validate_python(values)
    except ValidationError as error:
        errors = itertools.islice(error.errors(include_url=False), _MOST)
        paths = ((found, _path(found["loc"], values)) for found in errors)
        return [*problems, *(Problem(path, _message(found, path, values, top)) for found, path in paths)]
    return problems or read


@cache
def _adapter(top: Any) -> TypeAdapter[Any]:
    return TypeAdapter(top)


def _kind_problems(values: Any, top: type) -> Iterator[Problem]:
    """Yield which groups of several kinds name none, and which of their fields are of another kind."""
    for name, field in fields_of_any_kind(top).items():
        kinds = kinds_of(field.group) if field.group and not field.by_name else ("",)
        written = values.get(name) if isinstance(values, dict) else None
        if kinds == ("",) or not isinstance(written, dict):
            continue
        if "kind" not in written:
            yield Problem((name,), f"'kind' is missing; expected one of {', '.join(kinds)}")
        elif written["kind"] in kinds and field.group:
            for other in written.keys() - fields_of(field.group, written["kind"]).keys():
                yield Problem((name, other), _unknown_field((name, other), values, top))


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word that is meant, or at those that are known."""
    known = list(known)
    near = difflib.get_close_matches(word[:_LONGEST_WORD], known, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    more = len(known) > _LISTED
    return f"expected one of {', '.join(known[:_LISTED])}{', …: `pscale schema` has all' if more else ''}"


def nearest_field(name: str, others: Collection[str] = ()) -> str:
    """Return a hint at the field that is meant, of those that can vary and of `others`."""
    several = [f"'{leaf}'" for leaf in LEAVES if leaf.endswith(f".{name}")]
    several += [f"'{other}'" for other in others if name.endswith(f".{other}")]
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
    """Drop the types that pydantic puts behind fields of several, and its mark of a key."""
    path: Path_ = ()
    for part in location:
        if isinstance(part, int) or (isinstance(values, dict) and part in values):
            path, values = (*path, part), values[part]
        elif isinstance(values, dict) and part != "[key]":
            path = (*path, part)  # a field that is missing
    return path


def _names(path: Path_) -> list[str]:
    return [part for part in path if isinstance(part, str)]


def _message(found: Any, path: Path_, values: Any, top: type) -> str:
    kind, got, context = found["type"], found["input"], found.get("ctx", {})
    match kind:
        case "unexpected_keyword_argument":
            text = _unknown_field(path, values, top)
        case "missing":
            text = f"is missing; expected {_MISSING.get(str(path[-1]), 'a value')}"
        case "literal_error":
            choices = re.findall("'([^']*)'", context["expected"])
            hint = (
                nearest(_OTHER_NAMES.get(str(got), str(got)), choices)
                if choices
                else f"expected {context['expected']}"
            )  # of numbers
            text = (
                f"unknown kind {_shown(got)}" if path[-1:] == ("kind",) else f"{_shown(got)} is not possible"
            )
            text += f"; {hint}"
        case "value_error":
            text = str(context["error"])
        case _ if kind in _EXPECTED:
            text = f"expected {_EXPECTED[kind].format(**context)}, got {_shown(got)}{_hint(kind, got)}"
        case _:
            text = f"{found['msg']}, got {_shown(got)}"
    return text


def _unknown_field(path: Path_, values: Any, top: type) -> str:
    if moved := _MOVED.get(dotted(path)):
        return moved
    *groups, name = _names(path)
    group = group_at(groups, top) or top
    said = values.get(groups[0], {}) if groups else values
    kind = said.get("kind", "") if kinds_of(group) != ("",) else ""
    holder = "a suite" if top is File else "the file"
    if groups:
        holder = f"'{'.'.join(groups)}'" + (f" of kind {kind}" if kind else "")
        if having := list(fields_at([*groups, name], top)):
            holder += f", unlike that of kind {' or '.join(having)},"
        elif leaf := SHORT.get(name):
            return f"{holder} has no such field; did you mean '{leaf}'?"
    return f"{holder} has no such field; {nearest(name, fields_of(group, kind))}"


_MOVED = {"model.dtype": "the type of a model's numbers is a field of the suite: `precision: float64`"}


_OTHER_NAMES = {  # of types of numbers
    **dict.fromkeys(("bfloat16", "brain"), "bf16"),
    **dict.fromkeys(("float16", "half"), "fp16"),
    **dict.fromkeys(("single", "float", "fp32"), "float32"),
    **dict.fromkeys(("double", "fp64"), "float64"),
}


_MISSING = {
    "scaling": "one of weak, strong, throughput",
    "command": "a program with its arguments, such as './a.out {n}'",
    "metric": "a metric of the report, such as efficiency",
    "name": "a short name; the results' folder is named after it",
}
_FIELDS = "fields, as in {{name: value}}"
_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "list_type": "a list, such as [1, 2]",
    "tuple_type": "a list, such as [1, 2]",
    "dict_type": _FIELDS,
    "model_type": _FIELDS,
    "dataclass_type": _FIELDS,
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
