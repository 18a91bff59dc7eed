"""The text of a suite from its values: what a person would write, with numbers as they were written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pscale.config.workload import plain

_BARE = re.compile(r"(?!(true|false|null)$)[A-Za-z0-9_./][\w./ -]*(?<! )", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"[\d.eE_-]*")
_GROUPS = ("workload", "sweep")  # which have a line for each field
_WIDTH = 8  # of the names of other fields, so that values are below each other


def suite_text(values: Mapping[str, Any], comment: str = "") -> str:
    """Return the YAML text of a suite: a line a field, and one for each field of the workload and sweep."""
    lines = [f"# {line}" for line in comment.splitlines()]
    for name, value in values.items():
        if name in _GROUPS and value:
            lines.append(f"{name}:")
            lines += [f"  {inner}: {_flow(each)}" for inner, each in value.items()]
        else:
            lines.append(f"{name + ':':<{_WIDTH}} {_flow(value)}")
    return "\n".join([*lines, ""])


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_flow(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if not isinstance(value, str):
        return "null" if value is None else plain(value)
    quoted = "'" + value.replace("'", "''") + "'" if value.isprintable() else json.dumps(value)
    return value if _BARE.fullmatch(value) and not _NUMBER.fullmatch(value) else quoted
