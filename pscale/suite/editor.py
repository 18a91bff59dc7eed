"""The schema of suite files for editors: names complete, mistakes are underlined while typing."""

from __future__ import annotations

from typing import Any

from pscale.suite.fields import BY_MEMBER, LEAVES, SHORT
from pscale.suite.schema.file import File


def editor_schema() -> dict[str, Any]:
    """Return the JSON Schema of a suite file.

    It asks for less than `load_suite` where an editor cannot see what a file extends.
    """
    schema = File.model_json_schema()
    definitions = schema["$defs"]
    for group in (schema, *definitions.values()):
        group["required"] = [name for name in group.get("required", []) if name != "kind"]
        for field in group["properties"].values():
            field.pop("title", None)  # the name of the field again
    schema["required"] = ["name"]
    schema["anyOf"] = [{"required": ["scaling"]}, {"required": ["extends"]}]
    schema["properties"]["model"] = _any_kind(schema["properties"]["model"])
    schema["properties"]["data"] = _any_kind(schema["properties"]["data"]["anyOf"][0])
    for group, member in BY_MEMBER.items():
        value = definitions[group.capitalize()]["properties"][member]
        schema["properties"][group] = {"anyOf": [value, schema["properties"][group]]}
    sweep = definitions["Sweep"]
    values = sweep["additionalProperties"]
    fields = dict.fromkeys(sorted({*LEAVES, *SHORT} - {"launch.env", "launch.extra", "env", "extra"}), values)
    sweep |= {
        "properties": {**sweep["properties"], **fields},
        "patternProperties": {r"^launch\.env\.\w+$": values},
        "additionalProperties": False,
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "pscale suite"}


def _any_kind(union: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": union["oneOf"]}
