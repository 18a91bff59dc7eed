"""The fields that may vary from case to case, and the names under which people know them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

from pscale.suite.schema.file import File
from pscale.suite.schema.group import Group

VARIABLE = (
    *("ranks", "threads", "model", "data", "train", "plan", "precision", "timing", "launch"),
    *("inject", "jitter"),
)


def groups(field: str) -> dict[str, type[Group]]:
    """Return the classes that a field, named with dots, may hold, by kind; "" where there is only one."""
    found: dict[str, type[Group]] = {"": File}
    for name in field.split("."):
        holders = [
            group.model_fields[name].annotation for group in found.values() if name in group.model_fields
        ]
        found = {_kind(group): group for annotation in holders for group in _classes(annotation)}
    return found


def _kind(group: type[Group]) -> str:
    return str(get_args(group.model_fields["kind"].annotation)[0]) if "kind" in group.model_fields else ""


def _classes(annotation: Any) -> Iterator[type[Group]]:
    if isinstance(annotation, type) and issubclass(annotation, Group):
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)


def _leaves(field: str) -> Iterator[str]:
    members = {name: None for group in groups(field).values() for name in group.model_fields}
    if not members:
        yield field
    for name in members:
        yield from _leaves(f"{field}.{name}")


LEAVES = tuple(leaf for field in VARIABLE for leaf in _leaves(field))  # every field that may vary, with dots
INJECTED = ("inject.", "jitter.")  # goes by its full name alone, so that nobody injects by mistake
_CALLED = [leaf for leaf in LEAVES if not leaf.startswith(INJECTED)]
_LAST = Counter(leaf.rpartition(".")[2] for leaf in _CALLED)
SHORT = {last: leaf for leaf in _CALLED if _LAST[last := leaf.rpartition(".")[2]] == 1}  # clear alone
# Groups within groups, by their last part: a plan that cannot be speaks of a `matrix`.
GROUPS = {leaf.split(".")[-2]: leaf.rpartition(".")[0] for leaf in _CALLED if leaf.count(".") == 2}
BY_MEMBER = {"precision": "type"}  # groups that a single value may stand for: `precision: float64`
for _group, _member in BY_MEMBER.items():
    SHORT[_group] = SHORT.pop(_member)


def full_name(name: str) -> str | None:
    """Return the dotted name of a field that may vary: `model.width` for `width`; None if there is none."""
    if name in LEAVES or re.fullmatch(r"launch\.env\.\w+", name):
        return name
    return SHORT.get(name)
