"""What is expected of a run against what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pscale.analysis.efficiency import Tree
from pscale.analysis.frames import Run
from pscale.analysis.scaling import Point
from pscale.analysis.stats import Estimate
from pscale.metrics import METRICS, units

_OF_TREE = {
    "pe": "parallel",
    "lb": "load_balance",
    "comm_e": "communication",
    "ser_e": "serialisation",
    "te": "transfer",
    "comp": "computation",
    "ge": "overall",
}


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """One demand on one case; all numbers are in `unit`. `held` is None where it cannot be told."""

    metric: str
    unit: str
    demand: str  # such as "efficiency ≥ 0.85 where ranks <= 2"
    case: str
    label: str
    held: bool | None
    value: Estimate | None
    reference: float | None  # what was known from before, if anything was
    lower: float | None
    upper: float | None
    text: str


def expectations(run: Run, points: Sequence[Point], trees: Mapping[str, Tree]) -> tuple[Expectation, ...]:
    """Return the verdict on everything that is expected of the run, for every case that it is about."""
    return tuple(
        verdict for entry in run.document.get("expect") or [] for verdict in _verdicts(entry, points, trees)
    )


def _verdicts(
    entry: Mapping[str, Any], points: Sequence[Point], trees: Mapping[str, Tree]
) -> Iterator[Expectation]:
    about, asked = entry.get("cases"), _asked(entry)
    if asked.metric not in METRICS:
        yield replace(asked, text=f"unknown metric; known are {', '.join(METRICS)}")
        return
    chosen = [point for point in points if about is None or point.case in about]
    if not chosen:
        yield replace(asked, text="no case of the run fits the condition")
    for point in chosen:
        of_case = replace(asked, case=point.case, label=point.label)
        value = measured(asked.metric, point, trees.get(point.case), asked.unit)
        if value is None:
            why = "not measured" if point.status == "ok" else f"the case is {point.status}"
            yield replace(of_case, text=f"cannot be told: {why}")
        else:
            yield _judged(of_case, value)


def _asked(entry: Mapping[str, Any]) -> Expectation:
    """Return a demand before it is looked at: `at_least` and `lower` are bounds alike."""
    metric = str(entry.get("metric"))

    def bound(*names: str) -> float | None:
        return next((entry[name] for name in names if entry.get(name) is not None), None)

    return Expectation(
        metric=metric,
        unit=entry.get("unit") or next(iter(units(metric))),
        demand=_demand(entry, bound("at_least", "lower"), bound("at_most", "upper")),
        case="",
        label="",
        held=None,
        value=None,
        reference=entry.get("value"),
        lower=bound("at_least", "lower"),
        upper=bound("at_most", "upper"),
        text="",
    )


def _judged(asked: Expectation, value: Estimate) -> Expectation:
    """Decide by the value; say when the interval would also allow the opposite."""
    lower, upper = asked.lower, asked.upper
    held = (lower is None or value.value >= lower) and (upper is None or value.value <= upper)
    low, high = (value.low, value.high) if value.low is not None and value.high is not None else (0.0, 0.0)
    unsure = any(low < bound < high for bound in (lower, upper) if bound is not None)
    text = ("held" if held else "not held") + (", but the interval allows the opposite" if unsure else "")
    return replace(asked, held=held, value=value, text=text)


def measured(metric: str, point: Point, tree: Tree | None, unit: str) -> Estimate | None:
    """Return a metric of a case in `unit`; None where it was not measured, or is not a number."""
    source: Any = tree if metric in _OF_TREE else point
    found = getattr(source, _OF_TREE.get(metric, metric), None)
    value = found if isinstance(found, Estimate) or found is None else Estimate(value=float(found))
    if value is None or not math.isfinite(value.value):
        return None
    factor = units(metric)[unit]
    low, high = (None if bound is None else bound / factor for bound in (value.low, value.high))
    return Estimate(value=value.value / factor, low=low, high=high)


def _demand(entry: Mapping[str, Any], lower: float | None, upper: float | None) -> str:
    bounds = [("≥", lower), ("≤", upper)]
    demands = " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)
    unit = f" {entry['unit']}" if entry.get("unit") not in (None, "1") else ""
    where = " ".join((entry.get("where") or "").split())
    return f"{entry.get('metric')} {demands}{unit}" + (f" where {where}" if where else "")
