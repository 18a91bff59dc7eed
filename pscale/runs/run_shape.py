"""What run.json and the journal of a run have to look like, so that nobody trips over those of others.

Shapes are declared as types; fields that are not declared may be anything, as those of other versions are.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
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

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

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
        kind = None if mismatch(_Record, record) else KINDS.get(record["event"])  # other versions have others
        if wrong := mismatch(kind or _Record, record, whole=kind is not None):
            raise ResultsError(f"{file}: a line is damaged: record {line}: {wrong}")


def mismatch(hint: Any, value: Any, *, whole: bool = False) -> str:
    """Say the first thing in which a value from JSON is not what its type says; empty if it is.

    Fields of a dataclass may be missing unless it is `whole`, as what another version has written.
    """
    from pydantic_core import ValidationError  # noqa: PLC0415 - ranks start without it

    try:
        _validator(hint, whole).validate_python(value)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False)[0]
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in wrong["loc"])
        at = clean("".join(parts).removeprefix("."))[:_LONGEST] or "it"
        if wrong["type"] == "missing":
            return f"{at}: is missing"
        return f"{at}: expected {wrong['msg'].removeprefix('Input should be ')}, got {_shown(wrong['input'])}"
    return ""


@cache
def _validator(hint: Any, whole: bool) -> SchemaValidator:
    from pydantic_core import SchemaValidator  # noqa: PLC0415 - as above

    return SchemaValidator(_schema(hint, whole=whole))


def _schema(hint: Any, *, whole: bool = False) -> Any:
    """Return a type as the core of pydantic takes it, with fields that may be missing."""
    origin, arguments = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint) or is_typeddict(hint):
        required = getattr(hint, "__required_keys__", ())
        if whole:
            required = [
                each.name for each in dataclasses.fields(hint) if each.default is each.default_factory
            ]
        fields = {
            name: {"type": "typed-dict-field", "schema": _schema(each), "required": name in required}
            for name, each in get_type_hints(hint).items()
        }
        return {"type": "typed-dict", "fields": fields, "strict": True}
    if origin is Literal:  # words; other versions have others
        hint = type(arguments[0])
    if origin in (Union, UnionType):
        kinds = [_schema(each) for each in arguments if each is not type(None)]
        one = kinds[0] if len(kinds) == 1 else _union(kinds, "another kind of value")
        return {"type": "nullable", "schema": one} if len(kinds) < len(arguments) else one
    if origin in (dict, Mapping):
        return {"type": "dict", "values_schema": _schema(arguments[1]), "strict": True}
    if origin in (list, tuple, Sequence):
        if origin is tuple and ... not in arguments:
            return {"type": "tuple", "items_schema": [*map(_schema, arguments)]}
        return {"type": "list", "items_schema": _schema(arguments[0]), "strict": True}
    return _SCALARS.get(hint, {"type": "any"})


def _union(kinds: list[Any], name: str) -> Any:
    said = {"custom_error_type": "union", "custom_error_message": name}
    return {"type": "union", "choices": kinds, "mode": "left_to_right", **said}


_WHOLE = {"type": "int", "ge": -LARGEST_WHOLE, "le": LARGEST_WHOLE, "strict": True}
_REAL = {
    "type": "chain",
    "steps": [{"type": "is-instance", "cls": float}, {"type": "float", "allow_inf_nan": False}],
}
_SCALARS: Mapping[Any, Any] = {
    **{each: {"type": each.__name__, "strict": True} for each in (str, bool)},
    int: _WHOLE,
    float: _union([_WHOLE, _REAL], "a number"),
}


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


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
