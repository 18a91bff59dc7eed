"""How to read the intervals and rates of a run, and what recording cost, in sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pscale.analysis import merits
from pscale.analysis.bare_collectives import where
from pscale.analysis.environment import elsewhere, listed
from pscale.analysis.frames import Run
from pscale.analysis.scaling import Point
from pscale.analysis.stats import Sample
from pscale.analysis.wording import duration

_TRACED = (
    "Phases and calls were kept: `pscale trace` writes those of a launch as a timeline, for ui.perfetto.dev."
)
_SHOWN = 0.02  # of the median step


def notes(
    run: Run, points: Sequence[Point], times: Mapping[str, Sample], *, bare: Run | None, traced: bool
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
            f"A fixed piece of work between the steps took {duration(float(middle))}, and from "
            f"{low / middle - 1:+.0%} to {high / middle - 1:+.0%} of that nine times in ten, as the pace "
            "of the machine varied. `pscale compare` takes it into account."
        )


def _of_medians(points: Sequence[Point], times: Mapping[str, Sample]) -> Iterator[str]:
    """Yield in which cases slow steps lengthen the mean step beyond the median."""
    longer = {
        point.label: times[point.case].mean / times[point.case].value - 1 for point in points if point.steps
    }
    apart = [f"{label} {change:+.1%}" for label, change in longer.items() if abs(change) >= _SHOWN]
    if apart:
        yield (
            "Step times and efficiencies are medians. Lost time and the factors of efficiency count every "
            "step, so that slow steps lower `parallel` and raise `computation`. The mean step is longer than "
            f"the median: {listed(apart, most=8)}."
        )


def _of_clocks(bound_s: float) -> Iterator[str]:
    if bound_s > 0:
        yield (
            "The clocks of the nodes were synchronised: the times of a rank are off by "
            f"{duration(bound_s)} at most from rank 0's clock."
        )


def _most(auto: Mapping[str, Any]) -> str:
    budget_s = auto.get("budget_s")
    return f"{auto['most']} of a case" if budget_s is None else f"for {duration(budget_s)}"


def _of_launches(good: Sequence[Point], auto: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what is to be known of the intervals and rates of cases that were measured."""
    if auto and good:
        counts = sorted(point.launches for point in good)
        yield (
            "Launches went on until efficiencies, or step times where there are none, had intervals of "
            f"±{100 * auto['precision']:.3g}%, at most {_most(auto)} (`repeat: auto`): "
            f"it took {counts[0]} to {counts[-1]} of a case."
        )
    if any(point.launches == 1 and point.batch for point in good):  # a program is watched once
        yield (
            "Cases with one launch have no interval: one launch shows nothing of how launches differ. "
            "Set `repeat: 3` or more."
        )
    if dropped := [point for point in good if point.dropped]:
        shares = [f"{point.label}: {point.dropped} of {point.dropped + point.steps}" for point in dropped]
        yield (
            "Additional warm-up steps, detected after those of `warmup` and left out of the step times "
            f"(all other steps count, however slow): {listed(shares, most=8)}."
        )
    if any(point.peak_fraction for point in good):
        yield (
            "GFLOP/s counts model FLOPs (attention causal); `of peak` is executed FLOPs over the "
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
    change = f"{low:+.1%}" if len(of_case) == 1 else f"{low:+.1%} to {high:+.1%} (by case)"
    said = (
        f"Recording: steps with it take {change} compared with steps without "
        "(medians of pairs of steps; a difference below 0 is noise)"
    )
    spent = (run.ranks["events"] * call_s / run.ranks["wall_s"]).max()
    if call_s > 0 and spent > 0:
        each = f"an event takes {call_s * 1e6:.2g} µs"
        said += f"; {each}, all events of a rank {spent:.2%} of its steps at most"
    return f"{said}."
