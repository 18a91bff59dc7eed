"""The fields that may vary from case to case, and the names under which people know them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

from pscale.suite.schema import File, Group

VARIABLE = ("ranks", "threads", "model", "data", "train", "plan", "timing", "launch")


def groups(field: str) -> dict[str, type[Group]]:
    """Return the classes that a field of the file may hold, by kind; "" where there is only one."""
    found: dict[str, type[Group]] = {}
    for kind in _classes(File.model_fields[field].annotation):
        tags = get_args(kind.model_fields["kind"].annotation) if "kind" in kind.model_fields else ("",)
        found[tags[0]] = kind
    return found


def _classes(annotation: Any) -> Iterator[type[Group]]:
    if isinstance(annotation, type) and issubclass(annotation, Group):
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)


def _leaves() -> Iterator[str]:
    for field in VARIABLE:
        members = {name: None for group in groups(field).values() for name in group.model_fields}
        yield from (f"{field}.{name}" for name in members) if members else (field,)


LEAVES = tuple(_leaves())  # every field that may vary, with dots
_LAST = Counter(leaf.rpartition(".")[2] for leaf in LEAVES)
SHORT = {last: leaf for leaf in LEAVES if _LAST[last := leaf.rpartition(".")[2]] == 1}  # clear alone


def full_name(name: str) -> str | None:
    """Return the dotted name of a field that may vary: `model.width` for `width`; None if there is none."""
    if name in LEAVES or re.fullmatch(r"launch\.env\.\w+", name):
        return name
    return SHORT.get(name)
