"""The fields of a suite, read from the declarations of its groups, and the names that people use."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from pscale.config.choices import InSuite, Number, suite_name
from pscale.config.workload import FACTS, placeholders
from pscale.suite.file import File

VARIABLE = (
    *("ranks", "threads", "model", "data", "train", "plan", "precision", "timing", "launch"),
    *("inject", "jitter", "ghost", "workload"),
)
BY_MEMBER = {"precision": "type"}  # groups that a single value may stand for: `precision: float64`
PARAMS = "workload.params."  # before the names of parameters
INJECTED = ("inject.", "jitter.", "ghost.")  # goes by its full name alone, so that nobody injects by mistake
Mark = TypeVar("Mark")


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of a group: its name in a suite, what the group calls it, and what it may hold."""

    name: str
    member: str
    hint: Any
    group: type | None  # that it holds
    by_name: bool  # it holds such groups under names of the file's own
    default: Any  # of a suite; MISSING: required
    job_default: Any
    number: Number | None
    special: InSuite

    @property
    def unit(self) -> str:
        """The unit of a number; empty without one."""
        return self.number.unit if self.number else ""


@cache
def fields_of(group: type, kind: str = "") -> dict[str, Field]:
    """Return the fields of a group, or of one kind of it, by their names in a suite."""
    hints, found = _hints(group), {}
    for each in dataclasses.fields(group):
        hint = hints[each.name]
        special = next(_marks(hint, InSuite), InSuite())
        default = each.default_factory() if callable(each.default_factory) else each.default
        name = suite_name(each.name)
        if not special.kinds or kind in special.kinds:
            found[name] = Field(
                name=name,
                member=each.name,
                hint=hint,
                group=_group_in(hint),
                by_name=get_origin(hint) is Mapping and _group_in(hint) is not None,
                default=default if special.default is None else special.default,
                job_default=default,
                number=next(_marks(hint, Number), None),
                special=special,
            )
    return found


@cache
def _hints(group: type) -> dict[str, Any]:
    return get_type_hints(group, include_extras=True)


def _marks(hint: Any, kind: type[Mark]) -> Iterator[Mark]:
    if get_origin(hint) is Annotated:
        yield from (mark for mark in hint.__metadata__ if isinstance(mark, kind))
    for part in get_args(hint):
        yield from _marks(part, kind)


@cache
def kinds_of(group: type) -> tuple[str, ...]:
    """Return the kinds of a group, or one without a name."""
    hint = _hints(group).get("kind")
    return get_args(hint) or ("",)


@cache
def fields_of_any_kind(group: type) -> dict[str, Field]:
    """Return the fields that any kind of a group has."""
    return {name: field for kind in kinds_of(group) for name, field in fields_of(group, kind).items()}


@cache
def documentation(group: type) -> dict[str, str]:
    """Return the documentation of each member of a group: the text below it in its class and those above."""
    found: dict[str, str] = {}
    for each in reversed([each for each in group.__mro__ if dataclasses.is_dataclass(each)]):
        (declared,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        for member, text in pairwise(cast("ast.ClassDef", declared).body):
            match member, text:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str() as said)):
                    found[name] = " ".join(said.split())
    return found


def _group_in(hint: Any) -> type | None:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    return next(filter(None, map(_group_in, get_args(hint))), None)


def fields_at(path: Sequence[str], top: type = File) -> dict[str, Field]:
    """Return the fields of that name, by the kind of the group that has it; none if no kind has."""
    group = group_at(path[:-1], top)
    by_kind = {kind: fields_of(group, kind) for kind in kinds_of(group)} if group else {}
    return {kind: fields[path[-1]] for kind, fields in by_kind.items() if path[-1] in fields}


def group_at(path: Sequence[str], top: type = File) -> type | None:
    """Return the group at a path from the top, or None; one of those by name also at its name."""
    if not path:
        return top
    held = [field.group for field in fields_at(path, top).values()]
    above = [] if held or len(path) == 1 else [*fields_at(path[:-1], top).values()]
    held += [field.group for field in above if field.by_name]
    return held[0] if held else None


def _leaves(path: tuple[str, ...]) -> Iterator[str]:
    group = group_at(path)
    if group is None or any(field.by_name for field in fields_at(path).values()):
        yield ".".join(path)
        return
    for name in fields_of_any_kind(group):
        yield from _leaves((*path, name))


LEAVES = tuple(leaf for name in VARIABLE for leaf in _leaves((name,)))  # every field that may vary, with dots
_FULL = (*INJECTED, "launch.warmup", "train.save.", "train.evaluate.")  # `warmup` is that of a training
_CALLED = [leaf for leaf in LEAVES if not leaf.startswith(_FULL)]
_LAST = Counter(leaf.rpartition(".")[2] for leaf in _CALLED)
SHORT = {last: leaf for leaf in _CALLED if _LAST[last := leaf.rpartition(".")[2]] == 1}  # clear alone
# Groups within groups, by their last part: a plan that cannot be speaks of a `matrix`.
GROUPS = {leaf.split(".")[-2]: leaf.rpartition(".")[0] for leaf in _CALLED if leaf.count(".") == 2}
for _group, _member in BY_MEMBER.items():
    SHORT[_group] = SHORT.pop(_member)


@cache
def field_at(leaf: str) -> Field | None:
    """Return the field with a dotted name, of the first kind that has it."""
    return next(iter(fields_at(leaf.split(".")).values()), None)


def full_name(name: str, params: Collection[str] = ()) -> str | None:
    """Return the dotted name of a field that may vary: `model.width` for `width`; None if there is none.

    `params` are the parameters of the suite's workload, which come before fields.
    """
    if name in params:
        return PARAMS + name
    if name in LEAVES or re.fullmatch(r"(launch\.env|workload\.params|data\.hints)\.\w+", name):
        return name
    return SHORT.get(name)


def params_of(values: Mapping[str, Any]) -> frozenset[str]:
    """Return the parameters of a suite's workload as written: those declared, and those in its command."""
    workload = values.get("workload")
    if not isinstance(workload, Mapping):
        return frozenset()
    declared, command = workload.get("params"), workload.get("command")
    named = placeholders(command) if isinstance(command, str) else ()
    return frozenset(declared if isinstance(declared, Mapping) else ()) | (frozenset(named) - {*FACTS})
