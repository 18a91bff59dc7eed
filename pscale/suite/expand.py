"""From a suite to its cases on a machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pscale.errors import UsageError
from pscale.expressions import condition
from pscale.suite.check import check
from pscale.suite.document import Path_
from pscale.suite.draft import Draft, drafts_of
from pscale.suite.fields import INJECTED
from pscale.suite.label import DEGREES, labels, with_injected
from pscale.suite.load import Expansion, Expectation, Suite


def expand(suite: Suite, machine: Mapping[str, float], only: str | None = None) -> Expansion:
    """Return the cases of a suite in the order of its sweep, all checked, and what is expected of which.

    `machine` gives `cores`, `memory_gib` and `nodes`; `only` keeps the cases for which a condition holds.
    Raises SuiteError for what the file says wrong, PlanError for cases that cannot run, UsageError for
    `only`.
    """
    drafts = _labelled(suite, drafts_of(suite, machine))
    drafts = _without_excluded(suite, drafts, machine)
    drafts = _with_base(suite, drafts)
    drafts = selected(drafts, only)
    expect = _expectations(suite, drafts)
    check(suite, drafts, machine)
    return Expansion(cases=tuple(draft.case for draft in drafts), expect=expect)


def _labelled(suite: Suite, drafts: Sequence[Draft]) -> list[Draft]:
    """Name every case by what varies over the whole sweep, so that a label is the same on every machine."""
    swept = [s.field for draft in drafts for s in draft.point if not s.field.startswith(INJECTED)]
    fields = dict.fromkeys(["ranks", "threads", *swept])
    if fields.keys() & {*DEGREES} and len({draft.case.ranks for draft in drafts}) == 1:
        fields |= dict.fromkeys(DEGREES)  # those that are the rest distinguish products of so many ranks too
    texts = labels([{field: draft.value(field) for field in fields} for draft in drafts])
    said = with_injected(texts, [draft.case.altered for draft in drafts])
    named = [
        replace(draft, case=replace(draft.case, label=label, series=series))
        for draft, (label, series) in zip(drafts, said, strict=True)
    ]
    unique: dict[str, Draft] = {}
    for draft in named:
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
    problem = "" if counts else f"'{text}' holds for no case"
    for series, count in counts.items():
        if count > 1:
            problem = f"'{text}' holds for {count} cases" + (f" of the series '{series}'" if series else "")
    if problem:
        raise suite.error(("base",), f"{problem}; expected one of a series")
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
        raise UsageError(f"--only '{only}' holds for no case; the cases are {labels_}")
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
