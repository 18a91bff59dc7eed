"""From a suite to its cases on a machine, each with a label: what distinguishes it, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pscale.config import JOINT, Matrix, Plan
from pscale.config.axes import GRID_AXES, PLAN_AXES
from pscale.config.choices import MOST_LAUNCHES
from pscale.config.expressions import condition
from pscale.config.workload import plain
from pscale.errors import UsageError
from pscale.suite.check import check
from pscale.suite.document import Path_
from pscale.suite.draft import Draft, drafts_of
from pscale.suite.fields import INJECTED, field_at, fields_of
from pscale.suite.file import Precision
from pscale.suite.load import Expansion, Expectation, Suite


def expand(
    suite: Suite, machine: Mapping[str, float], only: str | None = None, *, runs: bool = True
) -> Expansion:
    """Return the cases of a suite in the order of its sweep, all checked, and what is expected of which.

    `machine` gives `cores`, `memory_gib` and `nodes`; `only` keeps the cases for which a condition holds.
    Cases of which nothing `runs` need no program.
    Raises SuiteError for what the file says wrong, PlanError for cases that cannot run, UsageError for
    `only`.
    """
    drafts = _labelled(suite, drafts_of(suite, machine))
    drafts = _without_excluded(suite, drafts, machine)
    drafts = _with_base(suite, drafts)
    drafts = selected(drafts, only)
    if any(draft.case.uncounted != suite.uncounted for draft in drafts):
        message = "varies launch.warmup or workload.watch, which have to be the same for all cases"
        raise suite.error(("sweep",), message)
    field, most = ("max_repeats", suite.auto.most) if suite.auto else ("repeat", suite.repeat)
    if len(drafts) * most > MOST_LAUNCHES:
        words = f"{most} launches of {len(drafts)} cases; at most {MOST_LAUNCHES} are possible"
        raise suite.error((field,), f"asks for {words}")
    expect = _expectations(suite, drafts)
    if runs:
        check(suite, drafts, machine)
    return Expansion(cases=tuple(draft.case for draft in drafts), expect=expect)


def _labelled(suite: Suite, drafts: Sequence[Draft]) -> list[Draft]:
    """Name every case by what varies over the whole sweep, so that a label is the same on every machine."""
    swept = [s.field for draft in drafts for s in draft.point if not s.field.startswith(INJECTED)]
    fields = dict.fromkeys(["ranks", "threads", *swept])
    if fields.keys() & {*DEGREES} and len({draft.case.ranks for draft in drafts}) == 1:
        fields |= dict.fromkeys(DEGREES)  # those that are the rest distinguish products of so many ranks too
    texts = labels([{field: draft.value(field) for field in fields} for draft in drafts])
    healthy = "healthy" if any(draft.case.altered for draft in drafts) else ""
    unique: dict[str, Draft] = {}
    for nameless, (label, series) in zip(drafts, texts, strict=True):
        altered = nameless.case.altered  # said also where it does not vary, so that it is never overlooked
        words = _joined(label, altered), _joined(series, altered or ("" if series else healthy))
        draft = replace(nameless, case=replace(nameless.case, label=words[0], series=words[1]))
        first = unique.setdefault(draft.case.id, draft)
        # An expression may give what another value says too, as [1, 2, "=cores"] on two cores.
        if first is not draft and not (draft.computed or first.computed):
            what = f"'{draft.case.label}' twice"
            if first.case.label != draft.case.label:
                what = f"'{first.case.label}' and '{draft.case.label}', which are the same work"
            raise suite.error(("sweep",), f"has duplicates: {what}")
    called = Counter(draft.case.label for draft in unique.values())
    for label, count in called.items():
        if count > 1:
            message = f"has duplicates: {count} cases called '{label}', whose numbers differ too little"
            raise suite.error(("sweep",), message)
    return list(unique.values())


def _without_excluded(suite: Suite, drafts: list[Draft], machine: Mapping[str, float]) -> list[Draft]:
    kept = drafts
    for index, text in enumerate(suite.resolved["exclude"]):
        kept = [draft for draft in kept if not _holds(suite, text, draft, ("exclude", index))]
    if not kept:
        here = ", ".join(f"{name} {value:g}" for name, value in machine.items())
        message = f"leaves out all {len(drafts)} cases on this machine ({here}); let one remain"
        raise suite.error(("exclude",), message)
    return kept


def _with_base(suite: Suite, drafts: list[Draft]) -> list[Draft]:
    text = suite.resolved["base"]
    if text is None:
        return drafts
    marked = [
        replace(draft, case=replace(draft.case, base=_holds(suite, text, draft, ("base",))))
        for draft in drafts
    ]
    counts = Counter(draft.case.series for draft in marked if draft.case.base)
    problem = "" if counts else f"'{text}' matches no case"
    for series, count in counts.items():
        if count > 1:
            problem = f"'{text}' matches {count} cases" + (f" of the series '{series}'" if series else "")
    if problem:
        raise suite.error(("base",), f"{problem}; expected one per series")
    return marked


def selected(drafts: list[Draft], only: str | None) -> list[Draft]:
    """Return the drafts for which a condition holds; raises UsageError if there is none."""
    if only is None:
        return drafts
    try:
        chosen = [draft for draft in drafts if condition(only, draft.names)]
    except UsageError as error:
        raise UsageError(f"--only: {error}") from None
    if not chosen:
        labels_ = ", ".join(draft.case.label for draft in drafts)
        raise UsageError(f"--only '{only}' matches no case; the cases are {labels_}")
    return chosen


def _expectations(suite: Suite, drafts: Sequence[Draft]) -> tuple[Expectation, ...]:
    """Decide here which cases an expectation is about, where fields have the names of the suite."""
    found = []
    for index, entry in enumerate(suite.resolved["expect"]):
        text, path = entry["where"] or "true", ("expect", index, "where")
        named = entry["case"]
        cases = tuple(
            draft.case.id
            for draft in drafts
            if named in {"", draft.case.label, draft.case.id} and _holds(suite, text, draft, path)
        )
        found.append(Expectation(**entry, cases=cases))
    return tuple(found)


def _holds(suite: Suite, text: str, draft: Draft, path: Path_) -> bool:
    try:
        return condition(text, draft.names)
    except UsageError as error:
        raise suite.error(path, str(error)) from None


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


def _joined(*parts: str) -> str:
    return JOINT.join(filter(None, parts))


def _with_plans_in_order(names: Sequence[str]) -> list[str]:
    """Return the names with those of the plan together where the first is, an axis before its options."""
    plan = [name for name in _PLAN if name in names]
    place = min((names.index(name) for name in plan), default=0)
    others = [name for name in names if name not in plan]
    return [*others[:place], *plan, *others[place:]]


def _follows(name: str, size: str, cases: Sequence[Values]) -> bool:
    """Tell whether a number is decided by the size, as a width that grows with the ranks."""
    if name == "threads" or any(type(values[name]) in (bool, str, type(None)) for values in cases):
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
    return JOINT.join(_part(name, values[name]) for name in names)


def _part(name: str, value: Any) -> str:
    last, field = name.rpartition(".")[2], field_at(name)
    named = field is None or field.special.named  # a variable of the environment is no field
    if name in ("ranks", "threads"):
        return f"{value} {name if value != 1 else name.removesuffix('s')}"
    if isinstance(value, bool):
        on, off = (last, f"no {last}") if name in _PLAN else (f"{last} on", f"{last} off")
        return on if value else off
    if isinstance(value, float):
        usual = f"{value:.10g}" if value.is_integer() else f"{value:g}"
        return f"{last} {getattr(value, 'text', usual)}"
    if isinstance(value, str) and value != "none" and not named:
        return value  # such as a reduction or a loading mode: clear without the name of its field
    if value and field and field.unit == "bytes" and value % 1024 == 0:
        return f"{last} {value >> 10} KiB" if value % (1 << 20) else f"{last} {value >> 20} MiB"
    return f"{last} {'none' if value is None else plain(value)}"
