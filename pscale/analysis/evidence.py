"""What speaks against trusting a number: each a sentence with figures and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis.clocks import LIMIT, Unclear
from pscale.analysis.disturbance import cpus_in, disturbances
from pscale.analysis.frames import Run
from pscale.analysis.injected import warning
from pscale.analysis.late import Late, hint, sentence
from pscale.analysis.remedy import bound
from pscale.analysis.scaling import Point
from pscale.analysis.skipped import Skipped
from pscale.analysis.stats import Sample
from pscale.analysis.suspicion import suspicious
from pscale.analysis.wording import duration

DEVIATION = 0.10  # of the mean
EXTREME = 0.50  # away from the mean
HALF_WIDTH = 0.05  # of the value
RECORDING = 1.02
UNACCOUNTED = 0.01  # of the wall
BUSY = 0.75  # of the cores that the threads of a rank are to use
REPLICAS = {"float32": 1e-5, "float64": 1e-12}  # relative


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A warning about one case, or about the run where `case` is empty."""

    kind: str
    case: str
    label: str
    text: str


def remarks(
    run: Run,
    points: Sequence[Point],
    times: Mapping[str, Sample],
    late: Iterable[Late] = (),
    skipped: Iterable[Skipped] = (),
) -> tuple[Remark, ...]:
    """Return all warnings: those about the whole run first, then case by case."""
    good = run.cases[run.cases["status"] == "ok"]
    launched = _suspicious_launches(good)
    disturbed = suspicious(run.ranks, {point.case: point for point in points})
    blamed: dict[str, list[Late]] = {}
    for rank in late:
        blamed.setdefault(rank.case, []).append(rank)
    unclear: dict[str, list[Unclear]] = {}
    for call in run.unclear:
        unclear.setdefault(call.case, []).append(call)
    found = [Remark(kind=kind, case="", label="", text=text) for kind, text in _of_run(run)]
    without_update = {each.case: each for each in skipped if each.skipped_measured}
    cores = max((point.cores for point in points if point.launches), default=0)
    for point in points:
        if not point.launches:
            continue
        case = point.case
        said = [*_of_purpose(point), *_of_late(blamed.get(case, []), point), *_of_times(times.get(case))]
        said += _of_launches(launched[case]) if case in launched else []
        said += _of_skipped(without_update[case]) if case in without_update else []
        said += _of_interval(point, run.document.get("auto"))
        if case in disturbed:
            said += _of_ranks(disturbed[case], point)
            said += disturbances(disturbed[case], cores, bound=bound(run.planned.get(case, {})))
        said += _of_clock(unclear.get(case, []))
        found += [Remark(kind=kind, case=case, label=point.label, text=text) for kind, text in said]
    return tuple(found)


def _suspicious_launches(good: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the launches of the cases of which `_of_launches` may have something to say."""
    if good.empty:
        return {}
    least = np.array([REPLICAS.get(dtype, REPLICAS["float32"]) for dtype in good["dtype"]])
    odd = (good["recording_ratio"] > RECORDING) | (good["replica_spread"] > least)
    odd |= np.array([losses is not None and not np.isfinite(losses).all() for losses in good["losses"]], bool)
    chosen = good[good["case"].isin(good.loc[odd, "case"])]
    return {str(case): rows for case, rows in chosen.groupby("case")}


def _of_run(run: Run) -> Iterator[tuple[str, str]]:
    ranks = run.ranks
    libraries = (
        ranks[["blas", "blas_version", "blas_architecture", "blas_threading"]].astype(object).fillna("?")
    )
    kinds = sorted({" ".join(map(str, row)) for row in libraries.drop_duplicates().to_numpy()})
    if len(kinds) > 1:
        yield (
            "blas",
            f"The launches used {len(kinds)} different BLAS: {'; '.join(kinds)}. Their times "
            "are not comparable: run all cases in one environment.",
        )
    hosts = ranks[["case", "repeat", "host"]].drop_duplicates()
    alone = hosts.groupby(["case", "repeat"], observed=True)["host"].transform("size") == 1
    single = sorted(set(hosts.loc[alone, "host"].astype(str)))
    if len(single) > 1:
        yield (
            "hosts",
            f"Launches on one node ran on different ones ({', '.join(single)}): differences between "
            "nodes enter the comparison. Pin the suite to one node, or repeat each case on all of them.",
        )


def _of_purpose(point: Point) -> Iterator[tuple[str, str]]:
    if point.injected:
        yield "injected", warning(point)


def _of_late(late: Iterable[Late], point: Point) -> Iterator[tuple[str, str]]:
    for rank in late:
        yield "late", f"{sentence(rank)}. {'That was injected.' if point.injected else hint(rank)}"


def _of_times(sample: Sample | None) -> Iterator[tuple[str, str]]:
    if sample is None or not sample.steps or not sample.mean > 0:
        return
    if sample.deviation >= DEVIATION * sample.mean:
        yield (
            "deviation",
            f"Step times scatter: standard deviation {sample.deviation / sample.mean:.0%} of the mean over "
            f"{sample.steps} steps. Free the machine of other work, or take more steps and repeats.",
        )
    extreme = max(sample.slowest - sample.mean, sample.mean - sample.fastest)
    if extreme >= EXTREME * sample.mean:
        yield (
            "extreme",
            f"Single steps are far off: fastest {duration(sample.fastest)}, "
            f"slowest {duration(sample.slowest)}, mean {duration(sample.mean)}. "
            "Look at the heat map for the rank that was late.",
        )
    if sample.unsteady > sample.launches / 2:
        yield (
            "unsteady",
            f"Steps were still getting faster or slower in the second half of {sample.unsteady} of "
            f"{sample.launches} launches. Raise `train.warmup`, or take more `train.steps`.",
        )


def _of_interval(point: Point, auto: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Say where the step time is known too vaguely: with `repeat: auto`, than the suite wants."""
    width = point.step_s.half_width if point.step_s else None
    if width is None or width <= (auto["precision"] if auto else HALF_WIDTH):
        return
    launches = f"from {point.launches} launches"
    known = f"The step time is known to ±{100 * width:.2g}% only, {launches}"
    if point.step_s and point.step_s.stated is None:
        known = f"The step time is known worse than to a factor of two, {launches}, which differ too much"
    if auto is None:
        yield "interval", f"{known}. Raise `repeat` (and `train.steps`)."
    elif point.launches + point.failed < auto["most"]:
        yield "interval", f"{known}, and more are to come: the run is not finished. Start it again to go on."
    else:
        yield (
            "interval",
            f"{known}, where ±{100 * auto['precision']:.2g}% were asked for: `max_repeats` was reached. Free "
            "the machine of other work, raise `max_repeats`, or take more `train.steps`.",
        )


def _of_launches(rows: pd.DataFrame) -> Iterator[tuple[str, str]]:
    ratio, call_s, step_s = (
        rows[name].median() for name in ("recording_ratio", "recording_call_s", "step_s")
    )
    if ratio > RECORDING:
        remedy = (
            f"Recording a call costs {call_s * 1e6:.2g} µs, so this is noise: repeat on a quiet machine."
            if 1000 * call_s < 0.01 * step_s
            else "Use larger batches, so that calls are rarer, and trust ratios of phases more than times."
        )
        yield "recording", f"Steps with recording on take {ratio - 1:.1%} longer than without. {remedy}"
    spread, dtype = rows["replica_spread"].max(), str(rows["dtype"].iloc[0])
    if spread > REPLICAS.get(dtype, REPLICAS["float32"]):
        yield (
            "replicas",
            f"Replicas differ by {spread:.1e} (relative) at the end, more than rounding in {dtype} explains: "
            "their weights have drifted apart. Check the MPI library with `reduction: all-reduce`.",
        )
    for losses in rows["losses"].dropna():
        bad = [step for step, loss in enumerate(losses) if not math.isfinite(loss)]
        if bad:
            yield (
                "loss",
                f"The loss is not finite from step {bad[0]} of {len(losses)} on. "
                "Lower `train.lr`, or clip gradients.",
            )
            break


def _of_skipped(course: Skipped) -> Iterator[tuple[str, str]]:
    yield (
        "skipped",
        f"{course.words}: gradients overflowed, in {course.skipped_measured} of the measured steps too, "
        "which are shorter without an update. Raise `train.warmup`, or lower `precision.initial_scale`.",
    )


def _of_ranks(ranks: pd.DataFrame, point: Point) -> Iterator[tuple[str, str]]:
    wall = ranks["wall_s"].sum()
    cpus = {(row.host, cpu) for row in ranks[["host", "cpus"]].itertuples() for cpu in cpus_in(row.cpus)}
    if cpus and len(cpus) < point.cores:
        yield (
            "oversubscribed",
            f"{point.ranks} ranks of {point.threads} threads share {len(cpus)} CPUs: times and efficiencies "
            "say nothing about the machine. Use it to try plans out, not to compare them.",
        )
    got = sorted({int(threads) for threads in ranks["threads"].dropna()} - {point.threads})
    if got:
        yield (
            "threads",
            f"BLAS ran with {', '.join(map(str, got))} threads where {point.threads} were asked for. "
            "`pscale doctor` says what holds it.",
        )
    busy = ranks["gemm_cores"].median()
    if point.threads > 1 and busy < BUSY * point.threads:
        yield (
            "idle",
            f"Multiplying matrices, the {point.threads} threads of a rank kept {busy:.1f} cores busy: some "
            "shared a core with each other or with other work. Free the machine; `pscale doctor` tells "
            "whether threads help here, and docs/blas.md how to bind them.",
        )
    if not wall > 0:
        return
    unaccounted = ranks["unaccounted_s"].sum() / wall
    if unaccounted > UNACCOUNTED:
        yield (
            "unaccounted",
            f"{unaccounted:.1%} of the steps belongs to no phase: the breakdown misses that much.",
        )


def _of_clock(unclear: Sequence[Unclear]) -> Iterator[tuple[str, str]]:
    for call in unclear:
        yield (
            "clock",
            f"An {call.verb.replace('_', '-')} on {call.axis} waits {duration(call.wait_s)} on average, "
            f"known to {duration(call.bound_s)} by the clocks of the nodes. That is over {LIMIT:.0%} of "
            "it, so wait and transfer of these calls are shown as one.",
        )
