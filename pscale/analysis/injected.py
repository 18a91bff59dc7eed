"""What lateness that was injected costs: each case that has it beside the healthy one that is its twin."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pscale.analysis.frames import Run
from pscale.analysis.scaling import Point
from pscale.analysis.stats import Sample, ratio
from pscale.analysis.wording import duration

NOTHING = "These are not figures of this machine"
_UNLIKE = ("id", "label", "series", "base", "inject", "jitter")


def warning(point: Point) -> str:
    """Say that a case is not a healthy one."""
    return f"Lateness is {point.injected} on purpose. {NOTHING}, but of one with that fault."


def costs(run: Run, points: Sequence[Point], times: Mapping[str, Sample]) -> Iterator[str]:
    """Yield a sentence for every case with lateness whose healthy twin was measured too."""
    found = {point.case: point for point in points if point.case in times}
    if not any(point.injected for point in found.values()):
        return
    healthy = {_work(run.planned[case]): case for case, point in found.items() if not point.injected}
    burnt_s = _burnt_s(run)
    for case, point in found.items():
        twin = healthy.get(_work(run.planned[case])) if point.injected else None
        if twin is not None:
            every = int(run.planned[case].get("inject", {}).get("every", 1))
            yield _cost(point, times[case], times[twin], burnt_s.get(case), often=every == 1)


def _cost(point: Point, late: Sample, healthy: Sample, burnt_s: float | None, *, often: bool) -> str:
    extra_s = late.mean - healthy.mean
    change = f"{extra_s / healthy.mean:+.0%}"
    interval = ratio(late, healthy)
    if often and interval.stated:
        change += ", 95% interval {:+.0%} to {:+.0%}".format(*(bound - 1 for bound in interval.stated))
    shown = (
        f"; of the {duration(burnt_s, 4)} that the latest rank burns a step, {extra_s / burnt_s:.0%} shows"
        if burnt_s
        else ""
    )
    return (
        f"With {point.injected.removeprefix('injected ')}, a mean step takes {duration(late.mean, 4)} "
        f"instead of {duration(healthy.mean, 4)} ({change}){shown}."
    )


def _work(planned: Mapping[str, Any]) -> str:
    """Return what a case has in common with its healthy twin."""
    return json.dumps({name: planned[name] for name in planned if name not in _UNLIKE}, sort_keys=True)


def _burnt_s(run: Run) -> dict[str, float]:
    """Return, by case, what the rank that burnt most burnt a step: the mean over steps."""
    means = run.ends.dropna(subset="burnt_s").groupby("case", observed=True)["burnt_s"].mean()
    return {str(case): float(value) for case, value in means.items() if value > 0}
