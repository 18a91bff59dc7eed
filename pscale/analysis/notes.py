"""How to read the intervals and rates of a run, in sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pscale.analysis.bare import where
from pscale.analysis.efficiency import Tree
from pscale.analysis.frames import Run
from pscale.analysis.machine import elsewhere, listed
from pscale.analysis.recording import recording_note
from pscale.analysis.scaling import Point
from pscale.analysis.stats import Estimate
from pscale.analysis.wording import duration

_TRACED = "Every phase and call was kept: `pscale trace` writes them as a timeline, for ui.perfetto.dev."
_SHOWN = 0.01  # of an efficiency: less is lost in rounding


def notes(
    run: Run, points: Sequence[Point], trees: Mapping[str, Tree], *, bare: Run | None, traced: bool
) -> Iterator[str]:
    """Yield what a reader has to know; `bare` is the run that calls are set beside."""
    yield from run.gaps
    yield from _of_clocks(run.ranks["clock_bound_s"].max())
    yield from _of_launches([point for point in points if point.step_s], run.document.get("auto"))
    yield from _of_medians(points, trees)
    yield from filter(None, [recording_note(run), where(bare, elsewhere(run, bare)) if bare else ""])
    yield from _of_pace(run.paces.values())
    if traced:
        yield _TRACED


def _of_pace(launches: Collection[Sequence[float]]) -> Iterator[str]:
    if launches:
        low, middle, high = np.quantile(np.concatenate([*launches]), [0.05, 0.5, 0.95])
        yield (
            f"A fixed piece of work between the steps took {duration(float(middle))}, and from "
            f"{low / middle - 1:+.0%} to {high / middle - 1:+.0%} of that nine times in ten: so much the "
            "machine's pace varied. `pscale compare` takes it into account."
        )


def _of_medians(points: Sequence[Point], trees: Mapping[str, Tree]) -> Iterator[str]:
    """Yield which cases have two efficiencies that differ by more than their intervals explain."""
    apart = [
        f"{point.label} {tree.overall.value:.0%} and {point.efficiency.value:.0%}"
        for point in points
        if not point.base and (tree := trees.get(point.case)) and tree.overall and point.efficiency
        if _apart(tree.overall, point.efficiency)
    ]
    if apart:
        yield (
            "Steps far from the median make `overall`, which counts every step, differ from efficiency, "
            f"which compares medians: {listed(apart, most=8)}."
        )


def _apart(one: Estimate, other: Estimate) -> bool:
    outside = _outside(one.value, other) and _outside(other.value, one)
    return outside and abs(one.value - other.value) >= _SHOWN


def _outside(value: float, known: Estimate) -> bool:
    return known.low is not None and known.high is not None and not known.low <= value <= known.high


def _of_clocks(bound_s: float) -> Iterator[str]:
    if bound_s > 0:
        yield (
            "The clocks of the nodes were brought together: the times of a rank are off by "
            f"{duration(bound_s)} from those of rank 0 at most."
        )


def _of_launches(good: Sequence[Point], auto: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what is to be known of the intervals and rates of cases that were measured."""
    if auto and good:
        counts = sorted(point.launches for point in good)
        yield (
            f"Launches went on until the step time was known to ±{100 * auto['precision']:.3g}%, at most "
            f"{auto['most']} of a case (`repeat: auto`): it took {counts[0]} to {counts[-1]}."
        )
    if any(point.launches == 1 for point in good):
        yield (
            "Cases with one launch have no interval: what differs between launches is not known from one. "
            "Set `repeat: 3` or more."
        )
    if dropped := [point for point in good if point.dropped]:
        shares = [f"{point.label}: {point.dropped} of {point.dropped + point.steps}" for point in dropped]
        yield (
            "Further warm-up, found after the steps of `warmup` and left out of the step times "
            f"(all other steps count, however slow): {listed(shares, most=8)}."
        )
    if any(point.peak_fraction for point in good):
        yield (
            "GFLOP/s counts model FLOPs (attention causal); `of peak` is executed FLOPs over the "
            "matrix-product peak measured in the same job on the same cores."
        )
