"""Labels of cases: what distinguishes them, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pscale.config import Matrix, Plan
from pscale.config.axes import GRID_AXES, PLAN_AXES
from pscale.suite.fields import field_at, fields_of
from pscale.suite.file import Precision

Values = Mapping[str, Any]  # of one case, by the dotted names of the fields that a sweep sets

DEGREES = (*(f"plan.{axis}" for axis in PLAN_AXES), *(f"plan.matrix.{axis}" for axis in GRID_AXES))
_PLAN = (  # in the order of the declaration, an axis before its options
    *(f"plan.{name}" for name in fields_of(Plan)),
    *(f"plan.matrix.{name}" for name in fields_of(Matrix)),
)
_PRECISION = tuple(f"precision.{name}" for name in fields_of(Precision))


def labels(cases: Sequence[Values]) -> list[tuple[str, str]]:
    """Return label and series of every case, from what varies over all of them.

    A series is what remains when its size is taken away: the ranks, or the threads where only they vary, and
    the numbers that grow with them. `ranks` and `threads` must be among the values.
    """
    varying = [name for name in cases[0] if len({values[name] for values in cases}) > 1]
    varying = _with_plans_in_order(varying)
    size = "threads" if "ranks" not in varying and "threads" in varying else "ranks"
    series = [name for name in varying if name != size and not _follows(name, size, cases)]
    said = [_said(series, values) for values in cases]
    texts = [_label(varying, series, names, values) for names, values in zip(said, cases, strict=True)]
    different = {(text, *values.values()) for text, values in zip(texts, cases, strict=True)}
    called = Counter(text for text, *_ in different)
    said = [series if called[text] > 1 else names for text, names in zip(texts, said, strict=True)]
    return [
        (_label(varying, series, names, values), _text(names, values))
        for names, values in zip(said, cases, strict=True)
    ]


def with_injected(texts: Sequence[tuple[str, str]], injected: Sequence[str]) -> list[tuple[str, str]]:
    """Add what is injected to label and series, also where it does not vary: it is never overlooked."""
    healthy = "healthy" if any(injected) else ""
    return [
        (_joined(label, words), _joined(series, words or ("" if series else healthy)))
        for (label, series), words in zip(texts, injected, strict=True)
    ]


def _joined(*parts: str) -> str:
    return " · ".join(filter(None, parts))


def _with_plans_in_order(names: Sequence[str]) -> list[str]:
    """Return the names with those of the plan together where the first is, an axis before its options."""
    plan = [name for name in _PLAN if name in names]
    place = min((names.index(name) for name in plan), default=0)
    others = [name for name in names if name not in plan]
    return [*others[:place], *plan, *others[place:]]


def _follows(name: str, size: str, cases: Sequence[Values]) -> bool:
    """Tell whether a number is decided by the size, as a width that grows with the ranks."""
    if name == "threads" or any(type(values[name]) not in (int, float) for values in cases):
        return False
    pairs = {(values[size], values[name]) for values in cases}
    return len(pairs) == len({values[size] for values in cases})


def _said(names: Sequence[str], values: Values) -> list[str]:
    """Return the names without those of a group that say nothing, as long as others of it remain."""
    meant = [name for name in names if _means_something(name, names, values)]
    said = {name for name in meant if not _omitted(name, values[name])}
    for group in (_PLAN, _PRECISION):
        if said.isdisjoint(group):
            said.update(name for name in meant if name in group)
    return [name for name in meant if name in said]


def _means_something(name: str, names: Sequence[str], values: Values) -> bool:
    """Tell whether an option has an axis to be of; one that does not vary has ranks."""
    group, field = name.rpartition(".")[0], field_at(name)
    axes = [f"{group}.{axis}" for axis in (field.special.axes if field else ())]
    degrees = [values[axis] for axis in axes if axis in names]
    return not degrees or any(degree != 1 for degree in degrees)


def _omitted(name: str, value: Any) -> bool:
    """Tell whether a plan or a precision has the default of a field, and labels omit that."""
    field = field_at(name)
    if field is None or name not in _PLAN + _PRECISION or value != field.job_default:
        return False
    usual = value == "none" or (not isinstance(value, str) and not field.unit)
    return usual if field.special.omitted is None else field.special.omitted


def _label(varying: Sequence[str], series: Sequence[str], said: Sequence[str], values: Values) -> str:
    names = [name for name in varying if name in said or name not in series]
    return _text(names or ["ranks"], values)


def _text(names: Sequence[str], values: Values) -> str:
    return " · ".join(_part(name, values[name]) for name in names)


def _part(name: str, value: Any) -> str:
    last, field = name.rpartition(".")[2], field_at(name)
    named = field is None or field.special.named  # a variable of the environment is no field
    if name in ("ranks", "threads"):
        return f"{value} {name if value != 1 else name.removesuffix('s')}"
    if isinstance(value, bool):
        on, off = (last, f"no {last}") if name in _PLAN else (f"{last} on", f"{last} off")
        return on if value else off
    if isinstance(value, float):
        return f"{last} {value:.10g}" if value.is_integer() else f"{last} {value:g}"
    if isinstance(value, str) and value != "none" and not named:
        return value  # such as a reduction or a loading mode: clear without the name of its field
    if value and field and field.unit == "bytes" and value % 1024 == 0:
        return f"{last} {value >> 10} KiB" if value % (1 << 20) else f"{last} {value >> 20} MiB"
    return f"{last} {'none' if value is None else value}"
