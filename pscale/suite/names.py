"""What expressions may name, and the fields that are expressions themselves."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

from pscale.errors import UsageError
from pscale.expressions import evaluate, names_in
from pscale.suite.document import Path_
from pscale.suite.fields import BY_MEMBER, LEAVES, SHORT, VARIABLE, full_name
from pscale.suite.problems import Problem
from pscale.suite.quantities import Formula


def names_of(fields: Mapping[str, Any], machine: Mapping[str, float]) -> dict[str, Any]:
    """Return the machine, the fields with their groups (`model.width`), and clear ones without (`width`)."""
    short = {}
    for name, full in SHORT.items():
        holder, member = _holder(fields, full)
        if holder is not fields and member in holder:
            short[name] = holder[member]
    groups = {name: fields[name] for name in VARIABLE if name not in BY_MEMBER}
    named = {f"{group}.{name}": value for group in BY_MEMBER for name, value in fields[group].items()}
    return {**short, **groups, **named, **machine}


def resolve(fields: dict[str, Any], machine: Mapping[str, float]) -> list[Problem]:
    """Put the values of formulas in their place, each after those that it reads; return what is wrong."""
    pending = _formulas(fields)
    while pending:
        ready = {field: text for field, text in pending.items() if not _reads(text) & pending.keys()}
        if not ready:
            circle = ", ".join(sorted(pending))
            return [Problem(_path(field), f"goes in a circle: {circle} need each other") for field in pending]
        names = names_of(fields, machine)
        problems = [problem for field in ready if (problem := _compute(field, ready[field], fields, names))]
        if problems:
            return problems
        pending = _formulas(fields)
    return []


def _compute(field: str, text: Formula, fields: dict[str, Any], names: Mapping[str, Any]) -> Problem | None:
    try:
        value = evaluate(text[1:], names)
    except UsageError as error:
        return Problem(_path(field), str(error))
    if not isinstance(value, int | float) or isinstance(value, bool):
        return Problem(_path(field), f"expression '{text[1:]}' gives {value!r}, not a number")
    holder, member = _holder(fields, field)
    holder[member] = int(value) if value == int(value) else value
    return None


def _formulas(fields: Mapping[str, Any]) -> dict[str, Formula]:
    """Return the fields that are still formulas, by dotted name."""
    holders = {leaf: _holder(fields, leaf) for leaf in LEAVES}
    values = {leaf: holder.get(member) for leaf, (holder, member) in holders.items()}
    return {leaf: value for leaf, value in values.items() if isinstance(value, Formula)}


def _holder(fields: Mapping[str, Any], field: str) -> tuple[Any, str]:
    """Return the group that a dotted field is in, and what it is called there."""
    *groups, member = field.split(".")
    return functools.reduce(operator.getitem, groups, fields), member


def _reads(text: str) -> set[str]:
    return {full_name(name) or name for name in names_in(text[1:])}


def _path(field: str) -> Path_:
    return tuple(field.split("."))
