"""Values of a run that later ones are held to, and which cases of a run such values are about."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pscale.analysis.expect import measured
from pscale.analysis.frames import Run
from pscale.analysis.scaling import Point
from pscale.errors import UsageError
from pscale.expressions import condition
from pscale.metrics import units

if TYPE_CHECKING:
    from pscale.analysis.summary import Summary

LEAST, ALONE = 0.05, 0.10  # of the value: a bound is not nearer; the second where there is no interval
REACH = math.sqrt(2.0)  # two runs differ by so much more than one is off
_KEPT = {"step_s": +1, "efficiency": -1, "loss_last": +1}  # metrics, and on which side they get worse
_FULL_ONLY = ("inject", "jitter")  # as in suites, so that nobody means another `rank`
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A value with its bound on the side on which it would be worse; `unit` is that of all."""

    case: str  # label, or id where labels are not unique
    metric: str
    value: float
    lower: float | None
    upper: float | None
    unit: str


def references(summary: Summary) -> tuple[Reference, ...]:
    """Return what later runs are held to, case by case in the order of the report.

    A bound lies `REACH` times as far from the value as the interval reaches, `LEAST` of the value at least,
    and `ALONE` of it where there is no interval.
    """
    names = case_names(summary.points)
    return tuple(found for point in summary.points for found in _of_case(point, names[point.case]))


def case_names(points: Sequence[Point]) -> dict[str, str]:
    """Return what a file calls each case: its label, or its id where labels are not unique."""
    labels = Counter(point.label for point in points)
    return {point.case: point.label if labels[point.label] == 1 else point.case for point in points}


def _of_case(point: Point, name: str) -> Iterator[Reference]:
    for metric, worse in _KEPT.items():
        unit = next(iter(units(metric)))
        known = measured(metric, point, None, unit)
        if known is None or (metric == "efficiency" and point.base):
            continue
        far = ALONE * abs(known.value)
        if known.stated:
            end = known.stated[1 if worse > 0 else 0]
            far = max(REACH * abs(end - known.value), LEAST * abs(known.value))
        bound = _rounded(known.value + worse * far)
        yield Reference(
            case=name,
            metric=metric,
            value=_rounded(known.value),
            lower=bound if worse < 0 else None,
            upper=bound if worse > 0 else None,
            unit=unit,
        )


def about(run: Run, entry: Mapping[str, Any]) -> list[str]:
    """Return the cases of a run that an entry is about, by the label or id that it names or its condition.

    A condition has the names of the cases in `run.json`. Raises UsageError if it cannot be computed.
    """
    named, where = entry.get("case") or "", entry.get("where") or "true"
    return [
        case
        for case, planned in run.planned.items()
        if named in ("", planned.get("label"), case) and condition(where, _names(run, planned))
    ]


def with_cases(run: Run, entries: Sequence[Mapping[str, Any]], places: Sequence[str]) -> list[dict[str, Any]]:
    """Return entries of a file with the cases that each is about; `places` say where each was written."""
    found = []
    for entry, written in zip(entries, places, strict=True):
        try:
            found.append({**entry, "cases": about(run, entry)})
        except UsageError as error:
            raise UsageError(f"{written}: {error}") from None
    return found


def _names(run: Run, planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a condition may name: the machine, fields, and `width` for `model.width` where clear."""
    machine = run.document.get("provenance", {}).get("machine", {})
    groups = [
        group for name, group in planned.items() if isinstance(group, Mapping) and name not in _FULL_ONLY
    ]
    counts = Counter(name for group in groups for name in group)
    clear = {name: value for group in groups for name, value in group.items() if counts[name] == 1}
    here = {
        "cores": machine.get("cores", 0),
        "nodes": machine.get("nodes", 1),
        "memory_gib": (machine.get("memory_bytes") or 0) / _GIB,
    }
    return {**here, **clear, **planned}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
