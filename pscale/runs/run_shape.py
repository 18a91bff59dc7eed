"""What run.json and the journal of a run have to look like, so that nobody trips over those of others.

Shapes are declared as types; fields that are not declared may be anything, as those of other versions are.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pscale.config import Case
from pscale.config.choices import MOST_LAUNCHES
from pscale.config.workload import LARGEST_WHOLE
from pscale.errors import ResultsError, clean
from pscale.runs.run_events import KINDS

MOST_REPEATS = 10_000
_NAME = re.compile(r"[\w-][\w.+-]{0,99}")  # of a case or a suite, in names of files
_LONGEST = 60  # characters of a value in a message


class _Suite(TypedDict, total=False):
    name: str
    title: str
    scaling: str
    given: str
    resolved: dict[str, Any]


class _Auto(TypedDict):
    precision: float
    most: int
    least: int
    budget_s: float | None


class _Expect(TypedDict, total=False):
    metric: str
    where: str
    case: str
    cases: list[str]
    unit: str | None
    at_least: float | None
    at_most: float | None
    value: float | None
    lower: float | None
    upper: float | None


class _Provenance(TypedDict, total=False):
    git: dict[str, Any] | None
    kernel: str
    python: str
    packages: dict[str, str]
    environment: dict[str, str]
    machine: dict[str, Any]
    load_average: list[float]
    steal_s: float | None


class _Document(TypedDict, total=False):
    format: int
    run: str
    suite: _Suite
    site: str
    scheduler: str | None
    poll_s: float
    expect: list[_Expect]
    cases: list[Case]
    repeats: int
    auto: _Auto | None
    seed: int
    provenance: _Provenance


class _Record(TypedDict):
    event: str


def check_document(document: Any, file: Path) -> None:
    """Raise ResultsError for a document that is none of a run."""
    if wrong := trouble_of(document):
        raise ResultsError(f"{file}: {wrong}; it is damaged, or not written by pscale")


def trouble_of(document: Any) -> str:
    """Say the first thing that is wrong with a document; empty if it is one of a run."""
    return mismatch(_Document, document) or _inconsistent(document)


def check_records(records: list[Any], file: Path) -> None:
    """Raise ResultsError for records that are none of a journal."""
    for line, record in enumerate(records, start=1):
        wrong = mismatch(_Record, record) or "".join(_record_mismatches(record))
        if wrong:
            raise ResultsError(f"{file}: a line is damaged: record {line}: {wrong}")


def _record_mismatches(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the first thing in which a record is not what its event says; of unknown events nothing."""
    if kind := KINDS.get(record["event"]):
        lacking = next((name for name in _required(kind) if name not in record), None)
        yield f"{lacking} is missing" if lacking else mismatch(kind, record)


@cache
def _required(kind: Any) -> list[str]:
    return [each.name for each in dataclasses.fields(kind) if each.default is each.default_factory]


def mismatch(hint: Any, value: Any) -> str:
    """Say the first thing in which a value from JSON is not what its type says; empty if it is."""
    return next(_mismatches(hint, value, ""), "")


def is_name_of_case(text: str) -> bool:
    """Tell whether a text can be the id of a case: it is part of names of files."""
    return _NAME.fullmatch(text) is not None


def _inconsistent(document: Mapping[str, Any]) -> str:
    """Say what is wrong with a document of the right shape."""
    cases = document.get("cases")
    if cases is None:
        return "lists no cases"
    name = document.get("suite", {}).get("name", "")
    if name and not is_name_of_case(name):
        return f"suite.name: expected a name, got {_shown(name)}"
    for place, case in enumerate(cases):
        if not is_name_of_case(str(case.get("id", ""))):
            return f"cases[{place}].id: expected a name, got {_shown(case.get('id'))}"
        if min(case.get("ranks", 1), case.get("threads", 1)) < 1:
            return f"cases[{place}]: ranks and threads must be at least 1"
    auto = document.get("auto") or {}
    for name, count in (("repeats", document.get("repeats", 1)), ("auto.most", auto.get("most", 1))):
        most = min(MOST_REPEATS, MOST_LAUNCHES // max(1, len(cases)))
        if not 0 <= count <= most or not most:
            return f"{name}: expected at most {most} with {len(cases)} cases, got {_shown(count)}"
    return ""


def _mismatches(hint: Any, value: Any, at: str) -> Iterator[str]:
    """Yield where a value is not what its type says."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from _mismatches(arguments[0], value, at)
    elif origin is Literal:  # words; other versions have others
        yield from _mismatches(type(arguments[0]), value, at)
    elif origin in (Union, UnionType):
        if all(next(_mismatches(each, value, at), "") for each in arguments):
            yield _wrong(at, value, " or ".join(_NAMES.get(each, "fields") for each in arguments))
    elif origin in (list, tuple, Sequence):
        yield from _in_list(value, at, arguments)
    elif isinstance(value, dict) and (_has_fields(hint) or origin in (dict, Mapping)):
        yield from _in_fields(value, at, _hints(hint) if origin is None else arguments[1])
        for name in sorted(getattr(hint, "__required_keys__", frozenset()) - {*value}):
            yield f"{at}.{name}: is missing".removeprefix(".")
    elif _has_fields(hint) or origin in (dict, Mapping):
        yield _wrong(at, value, "fields")
    elif hint in _TESTS and not _TESTS[hint](value):
        yield _wrong(at, value, _NAMES[hint])


def _has_fields(hint: Any) -> bool:
    return dataclasses.is_dataclass(hint) or is_typeddict(hint)


def _in_list(value: Any, at: str, types: Sequence[Any]) -> Iterator[str]:
    is_long = len(types) == 1 or types[1] is ...
    if not isinstance(value, list) or (not is_long and len(value) != len(types)):
        yield _wrong(at, value, "a list" if is_long else f"a list of {len(types)}")
        return
    for place, (each, hint) in enumerate(zip(value, itertools.cycle(types[:1] if is_long else types))):
        yield from _mismatches(hint, each, f"{at}[{place}]")


def _in_fields(value: Mapping[str, Any], at: str, types: Mapping[str, Any] | Any) -> Iterator[str]:
    for name, each in value.items():
        hint = types.get(name, Any) if isinstance(types, dict) else types
        yield from _mismatches(hint, each, f"{at}.{name}".removeprefix("."))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_WHOLE


def _is_float(value: Any) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


_TESTS: Mapping[Any, Callable[[Any], bool]] = {
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    int: _is_int,
    float: _is_float,
    type(None): lambda value: value is None,
}
_NAMES: Mapping[Any, str] = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _wrong(at: str, value: Any, expected: str) -> str:
    return f"{clean(at)[:_LONGEST] or 'it'}: expected {expected}, got {_shown(value)}"


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
