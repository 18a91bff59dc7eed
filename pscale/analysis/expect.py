"""The suite's expectations against what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pscale.analysis.efficiency import Tree
from pscale.analysis.frames import Run
from pscale.analysis.scaling import Point
from pscale.analysis.stats import Estimate

_OF_POINT = (
    *("step_s", "speedup", "efficiency", "samples_per_s", "tokens_per_s", "gflops", "peak_fraction"),
    *("loss_first", "loss_last", "startup_s", "wall_s"),
)
_OF_TREE = {
    "pe": "parallel",
    "lb": "load_balance",
    "comm_e": "communication",
    "ser_e": "serialisation",
    "te": "transfer",
    "comp": "computation",
    "ge": "overall",
}
METRICS = (*_OF_POINT, *_OF_TREE)


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """One demand on one case. `held` is None where it cannot be told."""

    metric: str
    demand: str  # such as "efficiency ≥ 0.85 where ranks <= 2"
    case: str
    label: str
    held: bool | None
    value: Estimate | None
    text: str


def expectations(run: Run, points: Sequence[Point], trees: Mapping[str, Tree]) -> tuple[Expectation, ...]:
    """Return the verdict on every expectation of the suite, for every case that it is about."""
    return tuple(
        verdict for entry in run.document.get("expect") or [] for verdict in _verdicts(entry, points, trees)
    )


def _verdicts(
    entry: Mapping[str, Any], points: Sequence[Point], trees: Mapping[str, Tree]
) -> Iterator[Expectation]:
    metric, demand, about = str(entry.get("metric")), _demand(entry), entry.get("cases")

    def unknown(text: str, point: Point | None = None) -> Expectation:
        case, label = (point.case, point.label) if point else ("", "")
        return Expectation(
            metric=metric, demand=demand, case=case, label=label, held=None, value=None, text=text
        )

    if metric not in METRICS:
        yield unknown(f"unknown metric; known are {', '.join(METRICS)}")
        return
    chosen = [point for point in points if about is None or point.case in about]
    if not chosen:
        yield unknown("no case of the run fits the condition")
    for point in chosen:
        value = _value(metric, point, trees.get(point.case))
        if value is None:
            why = "not measured" if point.status == "ok" else f"the case is {point.status}"
            yield unknown(f"cannot be told: {why}", point)
        else:
            yield _judged(entry, unknown("", point), value)


def _judged(entry: Mapping[str, Any], asked: Expectation, value: Estimate) -> Expectation:
    """Decide by the value; say when the interval would also allow the opposite."""
    least, most = entry.get("at_least"), entry.get("at_most")
    bounds = [bound for bound in (least, most) if bound is not None]
    held = (least is None or value.value >= least) and (most is None or value.value <= most)
    low, high = (value.low, value.high) if value.low is not None and value.high is not None else (0.0, 0.0)
    unsure = any(low < bound < high for bound in bounds)
    text = ("held" if held else "not held") + (", but the interval allows the opposite" if unsure else "")
    return Expectation(
        metric=asked.metric,
        demand=asked.demand,
        case=asked.case,
        label=asked.label,
        held=held,
        value=value,
        text=text,
    )


def _value(metric: str, point: Point, tree: Tree | None) -> Estimate | None:
    source: Any = tree if metric in _OF_TREE else point
    value = getattr(source, _OF_TREE.get(metric, metric), None)
    return Estimate(value=value) if isinstance(value, float) else value


def _demand(entry: Mapping[str, Any]) -> str:
    bounds = [("≥", entry.get("at_least")), ("≤", entry.get("at_most"))]
    demands = " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)
    where = " ".join((entry.get("where") or "").split())
    return f"{entry.get('metric')} {demands}" + (f" where {where}" if where else "")
