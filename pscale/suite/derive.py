"""Suites that are written by the program: the work of another one, by other plans."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pscale.config import Case, Plan
from pscale.config.workload import flow
from pscale.errors import UsageError
from pscale.suite.document import Document
from pscale.suite.draft import Draft, drafts_of, put
from pscale.suite.expand import expand, selected
from pscale.suite.fields import fields_of, full_name
from pscale.suite.load import Suite, load_suite

_MEASURING = ("timing", "launch", "require", "repeat", "known_to", "max_repeats", "budget")
_OF_THE_WORK = ("threads", "model", "precision", "inject", "jitter")
MOST_THREADS = 256  # of a rank; only whether cores suffice depends on it
_MICRO_BATCHES = "train.micro_batches"  # beside the fields of a plan what says how work is divided


def work_of(
    suite: Suite, ranks: int, machine: Mapping[str, float], only: str | None = None
) -> tuple[Suite, Case]:
    """Return a suite without its sweep, and its work on so many ranks, with the batch that all of them share.

    What the sweep says of ranks and plans is left out; `only` chooses where it varies something else, and the
    suite that is returned has what it sets. Raises UsageError where that leaves several works.
    """
    sweep = _of_work(suite.values.get("sweep") or {})
    values = {**suite.values, "ranks": ranks, "sweep": sweep}
    drafts = drafts_of(replace(suite, values=values, read=None), machine)
    named = [replace(each, case=replace(each.case, label=_words(each))) for each in drafts]
    chosen = selected(named, only)
    if len(chosen) > 1:
        field, value = chosen[0].point[0].field, chosen[0].point[0].value
        short = field.rpartition(".")[2]
        name = short if full_name(short) == field else field
        raise UsageError(
            f"{suite.file}: the sweep varies {field}, which makes {len(chosen)} works of it; choose one: "
            f"--only '{name} == {json.dumps(value)}'"
        )
    settings = [f"{each.field}={json.dumps(chosen[0].value(each.field))}" for each in chosen[0].point]
    values = {name: value for name, value in suite.values.items() if name != "sweep"}
    document = Document(values=values, places=suite.places)
    return load_suite(document, settings, folder=suite.folder), chosen[0].case


def resized(resolved: Mapping[str, Any], measured: Collection[int], ranks: int) -> tuple[Case, ...]:
    """Return the cases on so many ranks that a suite has, as resolved, beside those that were `measured`.

    Raises SuiteError, PlanError or UsageError where it has none.
    """
    asked = {**resolved}
    if not asked.get("workload", {}).get("command"):  # all its defaults are none that a file may have
        asked.pop("workload", None)
    document = Document(values=asked, places={})
    suite = load_suite(document, [f"sweep.ranks={sorted({*measured, ranks})}"])
    return expand(suite, unlimited(ranks), f"ranks == {ranks}").cases


def unlimited(ranks: int) -> dict[str, float]:
    """Return a machine on which so many ranks have all that they may need; nothing but that depends on it."""
    return {"cores": ranks * MOST_THREADS, "nodes": ranks, "memory_gib": math.inf}


def _words(draft: Draft) -> str:
    return ", ".join(f"{setting.field} {setting.value}" for setting in draft.point) or "the work"


def _of_work(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep without what it says of ranks and plans."""
    found = {name: values for name, values in sweep.items() if name in ("zip", "cases") or _varies_work(name)}
    if "zip" in found:
        found["zip"] = {name: values for name, values in found["zip"].items() if _varies_work(name)}
    if "cases" in found:
        cases = [
            {name: value for name, value in case.items() if _varies_work(name)} for case in found["cases"]
        ]
        found["cases"] = [case for place, case in enumerate(cases) if case not in cases[:place]]
    return {name: values for name, values in found.items() if values not in ({}, [{}])}


def _varies_work(name: str) -> bool:
    field = full_name(name) or name
    return field not in ("ranks", _MICRO_BATCHES) and not field.startswith("plan.")


def plan_of(case: Case) -> dict[str, Any]:
    """Return the plan of a case as a suite has it: `dp`, and what is no default."""
    values, usual = _leaves(case), _leaves(replace(case, plan=Plan()))
    found: dict[str, Any] = {}
    for leaf, value in values.items():
        if value != usual[leaf] or leaf == "plan.dp":
            put(found, leaf.removeprefix("plan."), value)
    return found


def plan_lines(case: Case) -> str:
    """Return the plan of a case as one pastes it into a suite."""
    micro_batches = case.train.micro_batches
    lines = [f"train: {{micro_batches: {micro_batches}}}"] if micro_batches > 1 else []
    return "\n".join([*lines, f"plan: {flow(plan_of(case))}"])


def _leaves(case: Case) -> dict[str, Any]:
    """Return every field of a plan by its dotted name in a suite."""
    found: dict[str, Any] = {}
    for name, field in fields_of(Plan).items():
        value = getattr(case.plan, field.member)
        if field.group is None:
            found[f"plan.{name}"] = value
        else:
            found |= {f"plan.{name}.{side}": getattr(value, side) for side in fields_of(field.group)}
    return found


def derived(suite: Suite, name: str, title: str, cases: Sequence[Case]) -> str:
    """Return the text of a suite that measures cases of one work, which differ in their plans alone."""
    work, values = cases[0], suite.values
    data = {**(values.get("data") or {"kind": work.data.kind})}
    if work.data.source:
        data["source"] = work.data.source  # a path may have been relative to the other file
    train = {**values.get("train", {}), "batch": work.train.batch}
    train.pop("micro_batches", None)
    written = {
        "name": name,
        "title": title,
        "scaling": "throughput",
        "ranks": work.ranks,
        **{group: values[group] for group in _OF_THE_WORK if group in values},
        "data": data,
        "train": train,
        "sweep": {"cases": _points(cases)},
        **{group: values[group] for group in _MEASURING if group in values},
    }
    return suite_text(written)


def _points(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Return the fields in which cases differ from each other or from the default, by their short names."""
    usual = _leaves(replace(cases[0], plan=Plan())) | {_MICRO_BATCHES: 1}
    leaves = [_leaves(case) | {_MICRO_BATCHES: case.train.micro_batches} for case in cases]
    names = [leaf for leaf in usual if leaf == "plan.dp" or any(each[leaf] != usual[leaf] for each in leaves)]
    short = {leaf: leaf.rpartition(".")[2] for leaf in names}
    return [
        {(last if full_name(last) == leaf else leaf): each[leaf] for leaf, last in short.items()}
        for each in leaves
    ]


_GROUPS = ("workload", "sweep")  # which have a line for each field
_WIDTH = 8  # of the names of other fields, so that values are below each other


def suite_text(values: Mapping[str, Any], comment: str = "") -> str:
    """Return the YAML text of a suite: a line a field, and one for each field of the workload and sweep."""
    lines = [f"# {line}" for line in comment.splitlines()]
    for name, value in values.items():
        if name in _GROUPS and value:
            lines.append(f"{name}:")
            for inner, each in value.items():
                points = [f"    - {flow(point)}" for point in each] if inner == "cases" else []
                lines += [f"  {inner}:", *points] if points else [f"  {inner}: {flow(each)}"]
        else:
            lines.append(f"{name + ':':<{_WIDTH}} {flow(value)}")
    return "\n".join([*lines, ""])
