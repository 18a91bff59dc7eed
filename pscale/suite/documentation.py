"""The tables of docs/suites.md, made from the declarations of the fields.

`python -m pscale.suite.documentation docs/suites.md suites/suite.schema.json` writes both again.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pscale.config.choices import MOST, AnyValue, Bytes, Number, OneOf, Text
from pscale.config.metrics import METRICS
from pscale.suite.fields import Field, documentation, fields_of, fields_of_any_kind, group_at, kinds_of
from pscale.suite.file import Sweep
from pscale.suite.schema import editor_schema

_TABLE = re.compile(r"<!-- (fields|metrics)(?:: ([a-z.]+))? -->\n(?:\|.*\n)*")
_PLAIN = {str: "text", bool: "true or false", int: "whole number", float: "number", NoneType: "null"}
_UNITS = {"bytes": "size", "s": "time", "share": "share"}
_SIZES = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, ""))
_UNSAID = (MOST, get_args(Bytes)[1].le)  # bounds that the page states once, for all fields


def with_tables(page: str) -> str:
    """Return the page with each table below a mark such as `<!-- fields: plan -->` made from declarations."""

    def table(mark: re.Match[str]) -> str:
        rows = (
            _metrics() if mark[1] == "metrics" else _fields(tuple(filter(None, (mark[2] or "").split("."))))
        )
        return mark[0].partition("\n")[0] + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)

    return _TABLE.sub(table, page)


def _metrics() -> Iterator[Sequence[str]]:
    yield from (("metric", "units", "meaning"), ("---", "---", "---"))
    for name, metric in METRICS.items():
        yield f"`{name}`", ", ".join(metric.units), metric.meaning


def _fields(path: tuple[str, ...]) -> Iterator[Sequence[str]]:
    group = group_at(path)
    assert group is not None, f"the page names a group {path} that is not declared"
    kinds = kinds_of(group)
    heading = ("field", *["kinds"] * (kinds != ("",)), "type", "default", "meaning")
    yield from (heading, ["---"] * len(heading))
    said = documentation(group)
    for name, field in fields_of_any_kind(group).items():
        having = [kind for kind in kinds if name in fields_of(group, kind)]
        required = name == "kind" or field.default is dataclasses.MISSING
        default = "required" if required else f"`{default_text(field)}`"
        meaning = said.get(field.member) or _first_sentence(field.group or Sweep)
        yield f"`{name}`", *[", ".join(having)] * (kinds != ("",)), _type(field.hint), default, meaning


def _first_sentence(group: type) -> str:
    return re.split(r"[:;.]", inspect.getdoc(group) or "")[0] + "."


def _type(hint: Any) -> str:
    """Say in words what a field may hold."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        marked = [text for mark in arguments[1:] if (text := _marked(arguments[0], mark))]
        return marked[0] if marked else _type(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in arguments)
    if origin is tuple:
        return f"list, each {_type(arguments[0])}"
    if origin is Mapping:
        held = arguments[1]
        values = any(isinstance(mark, AnyValue) for mark in get_args(held))
        return f"{'groups' if dataclasses.is_dataclass(held) else 'values' if values else 'texts'} by name"
    if origin in (Union, UnionType):
        return " or ".join(map(_type, arguments))
    return _PLAIN.get(hint, "group")


def _marked(hint: Any, mark: Any) -> str:
    if isinstance(mark, Text):
        return mark.expected
    if isinstance(mark, OneOf):
        return "see the table below"
    if not isinstance(mark, Number):
        return ""
    bounds = {"≥": mark.ge, ">": mark.gt, "<": mark.lt, "≤": None if mark.le in _UNSAID else mark.le}
    said = ", ".join(f"{sign} {bound:,}" for sign, bound in bounds.items() if bound is not None)
    words = "".join(f", or `{word}`" for word, _ in mark.words)
    return f"{_UNITS.get(mark.unit) or _PLAIN.get(hint, 'number')} {said}{words}"


def default_text(field: Field) -> str:
    """Write a default as a suite would."""
    value = field.default
    if dataclasses.is_dataclass(value) or isinstance(value, Sweep):
        return f"{{kind: {value.kind}}}" if hasattr(value, "kind") else "{}"
    if isinstance(value, tuple | dict):
        return "{}" if value == {} else "[]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if field.unit:
        return _quantity(value, field.unit)
    return str(value) or '""'


def _quantity(value: float, unit: str) -> str:
    if unit == "bytes":
        return next(f"{value // size:g}{name}" for size, name in _SIZES if value % size == 0)
    if unit == "share":
        return f"{100 * value:g}%"
    return f"{value / 60:g}m" if value and value % 60 == 0 else f"{value:g}s"


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        schema = json.dumps(editor_schema(), indent=2) + "\n" if file.suffix == ".json" else ""
        file.write_text(schema or with_tables(file.read_text(encoding="utf-8")), encoding="utf-8")
