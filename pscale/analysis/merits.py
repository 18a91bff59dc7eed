"""Figures of merit of workloads over their launches, and what the step of a workload is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from pscale.analysis.frames import Run, is_program
from pscale.analysis.stats import Estimate, Sample, lower_median
from pscale.config import Workload, from_dict
from pscale.config.case import RECORDED
from pscale.config.metrics import conversion
from pscale.config.workload import MATCH, ONCE, WALL, WATCH
from pscale.runs.store import provenance_of


def merits(run: Run) -> list[dict[str, Any]]:
    """Return every figure of every case, in the order of the suite."""
    found = run.figures.astype({"figure": str, "unit": str}).groupby(["case", "figure"], observed=True)
    known = {(str(case), str(figure)): _merit(str(case), str(figure), rows) for (case, figure), rows in found}
    named = {case: workload.figures for case, workload in workloads(run).items()}
    order = [(case, figure) for case, figures in named.items() for figure in figures]
    return [known[key] for key in dict.fromkeys([*order, *known]) if key in known]


def _in_unit(rows: pd.DataFrame, column: str, unit: str) -> tuple[float, ...]:
    """Return a column of a figure in one unit: programs may say which each is in."""
    factors = [conversion(each, unit) for each in rows["unit"]]
    return tuple(
        value * factor for value, factor in zip(rows[column], factors, strict=True) if factor is not None
    )


def _merit(case: str, figure: str, rows: pd.DataFrame) -> dict[str, Any]:
    """Return the figure of a case: one that is the same in all launches stays so to the last digit."""
    unit = rows["unit"].iloc[0]
    values, resolutions = (_in_unit(rows, name, unit) for name in ("value", "resolution"))
    known = Sample(medians=values, resolution=lower_median(resolutions))
    value = known.estimate
    if len(set(known.medians)) == 1 and not known.resolution:
        (exact,) = set(known.medians)
        bound = exact if len(rows) > 1 else None
        value = Estimate(value=exact, low=bound, high=bound)
    return {
        "case": case,
        "figure": figure,
        "value": value,
        "coarse": known.resolution if known.coarse else None,
        "unit": unit,
        "better": _better(rows["better"].iloc[0]),
        "launches": len(rows),
    }


def _better(value: object) -> str:
    return value if isinstance(value, str) else ""


def workloads(run: Run) -> dict[str, Workload]:
    """Return the workloads of the cases that have one."""
    return {
        case: from_dict(Workload, planned["workload"])
        for case, planned in run.planned.items()
        if is_program(planned)
    }


def figure_names(run: Run) -> Iterator[str]:
    """Yield the names of all figures that workloads of a run have."""
    yield from (name for workload in workloads(run).values() for name in workload.figures)


def notes(run: Run) -> Iterator[str]:
    """Say what the steps of workloads are, and what their records say of themselves."""
    found = workloads(run)
    for times in dict.fromkeys(workload.times for workload in found.values()):
        own = [workload for workload in found.values() if workload.times == times]
        ways = {_APART if workload.watch == ONCE else "" for workload in own if workload.watch}
        said = _BREAKDOWN.format(max(ways)) if ways and times != WATCH else ""
        yield _of_steps(times, own[0]) + said
    if any(workload.work and not workload.rate for workload in found.values()):
        yield "Efficiency is work per core-second; the suite states the work of each case."
    yield from _of_records(run)


_BREAKDOWN = " The breakdown of a step is that of the steps detected from MPI calls{}."
_APART = " in one more launch of each case, whose times do not count"


def _of_steps(times: str, workload: Workload) -> str:
    if times == WALL:
        return "Step time = the whole launch, from the start of the launcher to its end."
    if times == WATCH:
        return "Step time = length of the steps detected from MPI calls."
    figure = workload.figures[times]
    if figure.value:
        return f"Step time = figure '{times}', computed: {figure.value}, in {figure.unit or 'no unit'}."
    where = (
        f"{figure.path or figure.column} in {figure.file}"
        if figure.file
        else f"regex /{figure.regex}/ in the output"
    )
    unit = "the unit printed with it" if figure.unit == MATCH else figure.unit
    each = "each value is a step" if workload.lists_steps else f"{figure.pick or 'last'} value"
    said = f"figure '{times}' of the program: {where}, in {unit or 'no unit'}; {each}."
    if workload.rate:
        return f"Efficiency is the rate of a core: {said} A step is the time of one unit of it."
    return f"Step time = {said}"


def _of_records(run: Run) -> Iterator[str]:
    """Yield what the recorder of the first launch of each case says; what all say, once."""
    kept = run.cases["status"].isin(RECORDED) & run.cases["provenance"].notna()
    good = run.cases[kept].drop_duplicates("case")
    said: dict[str, list[str]] = {}
    for label, text in zip(good["label"], good["provenance"], strict=True):
        for sentence in provenance_of(text).get("watch", ()):
            said.setdefault(sentence, []).append(label)
    for sentence, labels in said.items():
        yield sentence if len(labels) == len(good) else f"{', '.join(labels)}: {sentence}"
