"""Configurations as plain dictionaries, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any, TypeVar, cast, get_type_hints

T = TypeVar("T")


def to_dict(value: Any) -> dict[str, Any]:
    """Turn a configuration into plain dictionaries, for JSON."""
    return dataclasses.asdict(value)


def from_dict(kind: type[T], values: Mapping[str, Any]) -> T:
    """Build a configuration of class `kind` from what `to_dict` made."""
    hints = _hints(cast("Hashable", kind))
    return kind(**{name: _restored(hints[name], value) for name, value in values.items()})


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def _restored(hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_dict(hint, value)
    return tuple(value) if isinstance(value, list) else value
