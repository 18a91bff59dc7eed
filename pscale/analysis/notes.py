"""How to read the intervals and rates of a run, and what recording cost, in sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pscale.analysis import merits
from pscale.analysis.columns import Row
from pscale.analysis.environment import elsewhere, listed
from pscale.analysis.frames import Run
from pscale.analysis.network import where
from pscale.analysis.stats import Sample
from pscale.analysis.wording import duration

_TRACED = "Events were recorded: `pscale trace` writes those of a launch as a timeline for ui.perfetto.dev."
_SHOWN = 0.02  # of the median step


def notes(
    run: Run, points: Sequence[Row], times: Mapping[str, Sample], *, bare: Run | None, traced: bool
) -> Iterator[str]:
    """Yield what a reader has to know; `bare` is the run that calls are set beside."""
    yield from run.gaps
    yield from run.document.get("notes", ())
    yield from merits.notes(run)
    yield from _of_clocks(run.ranks["clock_bound_s"].max())
    yield from _of_launches([point for point in points if point.step_s], run.document.get("auto"))
    yield from _of_medians(points, times)
    yield from filter(None, [recording_note(run), where(bare, elsewhere(run, bare)) if bare else ""])
    yield from _of_pace(run.paces.values())
    if traced:
        yield _TRACED


def _of_pace(launches: Collection[Sequence[float]]) -> Iterator[str]:
    if launches:
        low, middle, high = np.quantile(np.concatenate([*launches]), [0.05, 0.5, 0.95])
        yield (
            "The pace of the machine varied: a fixed piece of work between steps took "
            f"{duration(float(middle))} (median), 90% of the time within {low / middle - 1:+.0%} to "
            f"{high / middle - 1:+.0%}. `pscale compare` corrects for it."
        )


def _of_medians(points: Sequence[Row], times: Mapping[str, Sample]) -> Iterator[str]:
    """Yield in which cases slow steps lengthen the mean step beyond the median."""
    longer = {
        point.label: times[point.case].mean / times[point.case].value - 1 for point in points if point.steps
    }
    apart = [f"{label} {change:+.1%}" for label, change in longer.items() if abs(change) >= _SHOWN]
    if apart:
        yield (
            "Step times and efficiencies are medians. Lost time and the factors of efficiency include every "
            "step, so slow steps lower `parallel` and raise `computation`. Mean step relative to the "
            f"median: {listed(apart, most=8)}."
        )


def _of_clocks(bound_s: float) -> Iterator[str]:
    if bound_s > 0:
        yield (
            "The clocks of the nodes were synchronised: times of a rank differ from rank 0's clock by at "
            f"most {duration(bound_s)}."
        )


def _most(auto: Mapping[str, Any]) -> str:
    budget_s = auto.get("budget_s")
    return f"{auto['most']} per case" if budget_s is None else f"for {duration(budget_s)}"


def _of_launches(good: Sequence[Row], auto: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what is to be known of the intervals and rates of cases that were measured."""
    if auto and good:
        counts = sorted(point.launches for point in good)
        yield (
            "Launches were repeated until efficiencies (or step times, without efficiencies) were known to "
            f"±{100 * auto['precision']:.3g}%, at most {_most(auto)} (`repeat: auto`): "
            f"{counts[0]} to {counts[-1]} launches per case."
        )
    if any(point.launches == 1 and point.batch for point in good):  # a program is watched once
        yield (
            "Cases with one launch have no interval, which needs several launches: set `repeat: 3` or more."
        )
    if dropped := [point for point in good if point.dropped]:
        shares = [f"{point.label}: {point.dropped} of {point.dropped + point.steps}" for point in dropped]
        yield (
            "Extra warm-up steps, detected beyond `warmup` and excluded from step times "
            f"(no other step is excluded): {listed(shares, most=8)}."
        )
    if any(point.peak_fraction for point in good):
        yield (
            "GFLOP/s counts model FLOPs (causal attention); `of peak` is executed FLOPs relative to the "
            "matrix-product peak measured in the same job on the same cores."
        )


def recording_note(run: Run) -> str:
    """Say by how much recording lengthens steps, and what a call costs; empty where it was not measured."""
    good = run.cases[(run.cases["status"] == "ok") & run.cases["recording_ratio"].notna()]
    if good.empty:
        return ""
    of_case = good.groupby("case")["recording_ratio"].median() - 1
    call_s = good["recording_call_s"].median()
    low, high = of_case.min(), of_case.max()
    change = f"{low:+.1%}" if len(of_case) == 1 else f"{low:+.1%} to {high:+.1%} by case"
    said = (
        f"Recording overhead in step time: {change} "
        "(median over pairs of steps with and without it; below 0: noise)"
    )
    spent = (run.ranks["events"] * call_s / run.ranks["wall_s"]).max()
    if call_s > 0 and spent > 0:
        each = f"an event takes {call_s * 1e6:.2g} µs"
        said += f"; {each}, all events of a rank at most {spent:.2%} of its steps"
    return f"{said}."
