"""The JSON Schema of a suite, for editors, and that of the events of a run, by pydantic from declarations."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaValue

from pscale.config.choices import one_of
from pscale.runs.run_events import KINDS
from pscale.suite.fields import (
    BY_MEMBER,
    LEAVES,
    SHORT,
    documentation,
    fields_of,
    fields_of_any_kind,
    group_at,
    kinds_of,
)
from pscale.suite.file import File

_ANY_NAME = r"^[A-Za-z_]\w*$"
_NAMED = r"^(launch\.env|workload\.params|data\.hints)\.\w+$"
_NO_SINGLE_VALUE = {  # fields that hold lists or mappings: a sweep cannot set them
    *(
        *("launch.env", "launch.extra", "env", "extra", "data.hints", "hints"),
        "workload.params",
        "params",
        "workload.figures",
        "figures",
    ),
    *("workload.files.in", "in", "workload.files.out", "out"),
}
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def editor_schema() -> dict[str, Any]:
    """Return the JSON Schema of a suite file: names complete, mistakes are underlined while typing.

    It asks for less than `load_suite` where an editor cannot see what a file extends.
    """
    schema = TypeAdapter(File).json_schema()
    groups = schema["$defs"]
    _describe(File, schema, groups)
    schema["required"] = ["name"]
    schema["anyOf"] = [{"required": ["scaling"]}, {"required": ["extends"]}]
    for name in ("model", "data"):
        said = schema["properties"][name].get("description")
        schema["properties"][name] = _kinds(name, groups) | ({"description": said} if said else {})
    for name, member in BY_MEMBER.items():
        value = groups[name.capitalize()]["properties"][member]
        schema["properties"][name] = {"anyOf": [value, schema["properties"][name]]}
    groups["Launch"]["properties"]["env"]["additionalProperties"] = False
    sweep = groups["Sweep"]
    values = sweep["additionalProperties"]
    fields = dict.fromkeys(sorted({*LEAVES, *SHORT} - _NO_SINGLE_VALUE), values)
    sweep |= {
        "properties": {**sweep["properties"], **fields},
        "patternProperties": {_ANY_NAME: values, _NAMED: values},
        "additionalProperties": False,
    }
    schema |= {  # only in what a suite with a workload says, or extends, can names be those of parameters
        "if": {"not": {"anyOf": [{"required": ["workload"]}, {"required": ["extends"]}]}},
        "then": {"properties": {"sweep": {"propertyNames": one_of(sweep["properties"], _NAMED)}}},
    }
    return {"$schema": _DRAFT, **schema, "title": "pscale suite"}


def _describe(group: type, schema: JsonSchemaValue, groups: dict[str, JsonSchemaValue]) -> None:
    """Add the documentation of fields, which editors show beside them, in place of their names again."""
    said = documentation(group)
    for name, field in fields_of_any_kind(group).items():
        described = schema["properties"][name]
        described.pop("title", None)
        if field.member in said:
            described["description"] = said[field.member]
        if field.special.default is not None:
            described["default"] = field.special.default
        if field.group:
            described.pop("default", None)
            _describe(field.group, groups[field.group.__name__], groups)


def _kinds(name: str, groups: dict[str, JsonSchemaValue]) -> JsonSchemaValue:
    """Put a group of several kinds apart, each with its own fields; return the choice between them."""
    group = group_at([name])
    assert group is not None
    whole, choice = groups.pop(group.__name__), []
    for kind in kinds_of(group):
        title = f"{group.__name__}{kind.capitalize()}"
        properties = {each: whole["properties"][each] for each in fields_of(group, kind)}
        properties["kind"] = {"const": kind, "description": properties["kind"]["description"]}
        groups[title] = {**whole, "properties": properties, "title": title}
        choice.append({"$ref": f"#/$defs/{title}"})
    return {"anyOf": choice}


def event_schema() -> dict[str, Any]:
    """Return the JSON Schema of a line that `pscale run --events` writes."""
    lines = []
    for name, kind in KINDS.items():
        schema, said = TypeAdapter(kind).json_schema(), documentation(kind)
        common = {
            "event": {"const": name},
            "run": {"type": "string", "description": "Name of the run."},
        }
        fields = {field: {**each, "description": said[field]} for field, each in schema["properties"].items()}
        required = [*common, "unix_s", *schema.get("required", [])]
        properties = {**common, **fields}
        lines.append({"description": inspect.getdoc(kind), "properties": properties, "required": required})
    return {"$schema": _DRAFT, "title": "pscale events", "type": "object", "anyOf": lines}
