"""Caveats, which speak against trusting a number: each a sentence with figures and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis import messages
from pscale.analysis.columns import Row
from pscale.analysis.difference import holm, p_value
from pscale.analysis.frames import Run, bound, by_case, grouped, no_training
from pscale.analysis.interference import BUSY, interference
from pscale.analysis.reading import LIMIT, Unclear
from pscale.analysis.stats import Level, Sample, student_quantile
from pscale.analysis.wording import duration, percent, plural

DEVIATION = 0.10  # of the mean
EXTREME = 0.50  # away from the mean
HALF_WIDTH = 0.05  # of the value
RECORDING = 1.02
UNACCOUNTED = 0.01  # of the wall
GAIN = 0.02  # of an efficiency above 100 %
TREND = 0.02  # of the step time, from the first launch to the last
TREND_P = 0.01
TREND_LAUNCHES = 4
REPLICAS = {"float32": 1e-5, "float64": 1e-12}  # relative


def caveats(
    run: Run,
    points: Sequence[Row],
    times: Mapping[str, Sample],
    observed: Mapping[str, Mapping[str, Any]],
    *,
    stragglers: Iterable[Row] = (),
    loss_scaling: Iterable[Row] = (),
) -> list[dict[str, str]]:
    """Return all caveats: those about the whole run first, then case by case.

    `observed` is what ranks saw of their machine, as `observations` returns it.
    """
    good = run.cases[run.cases["status"] == "ok"]
    launched = _suspicious_launches(good)
    stragglers_of, unclear = by_case(stragglers), by_case(run.unclear)
    trends = {} if run.origins else _of_trends(run.cases)  # several runs share no rounds
    of_run = (*_of_run(run), *_of_work(run, points), *trends.pop("", ()))
    found = [{"kind": kind, "case": "", "text": text} for kind, text in of_run]
    compared = sum(point.efficiency is not None and not point.base for point in points)
    without_update = {each.case: each for each in loss_scaling if each.skipped_measured}
    cores = max((point.cores for point in points if point.launches), default=0)
    for point in points:
        if not point.launches:
            continue
        case = point.case
        said = [
            *_of_purpose(point, run.planned.get(case, {})),
            *_of_stragglers(stragglers_of.get(case, []), point),
            *_of_times(times.get(case), no_training(run.planned.get(case, {}))),
        ]
        said += _of_launches(launched[case]) if case in launched else []
        said += _of_skipped(without_update[case]) if case in without_update else []
        said += _of_digits(point)
        said += _of_interval(point, run.document.get("auto"))
        said += trends.get(case, ())
        said += _of_gain(point, compared)
        seen = observed.get(case)
        said += _of_cores(_cpus(run, point, seen), point)
        if seen:
            said += _of_ranks(seen, point)
            said += interference(seen, cores, bound=bound(run.planned.get(case, {})))
        said += _of_clock(unclear.get(case, []))
        found += [{"kind": kind, "case": case, "text": text} for kind, text in said]
    return found


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
    for number, text in enumerate(run.document.get("warnings", ())):
        yield f"program {number}", text
    ranks = run.ranks
    libraries = ranks[["case", "blas", "blas_version", "blas_architecture", "blas_threading"]]
    by_choice: dict[str, set[str]] = {}
    for case, *words in libraries.drop_duplicates().astype(object).fillna("?").to_numpy():
        launch = run.planned.get(str(case), {}).get("launch", {})
        by_choice.setdefault(launch.get("blas", "auto"), set()).add(" ".join(map(str, words)))
    for kinds in by_choice.values():
        if len(kinds) > 1:
            yield (
                "blas",
                f"The launches used {len(kinds)} different BLAS libraries: {'; '.join(sorted(kinds))}. "
                "Their times are not comparable: run all cases in one environment.",
            )
    hosts = ranks[["case", "repeat", "host"]].drop_duplicates()
    alone = hosts.groupby(["case", "repeat"], observed=True)["host"].transform("size") == 1
    single = sorted(set(map(str, hosts.loc[alone, "host"])))
    if len(single) > 1:
        yield (
            "hosts",
            f"Single-node launches ran on different nodes ({', '.join(single)}), so comparisons include "
            "differences between nodes. Pin the suite to one node, or repeat each case on all of them.",
        )


def _of_work(run: Run, points: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Warn of weak scaling whose parameters depend on the size: rounded ones are not the same work a rank."""
    for members in grouped(
        (point for point in points if point.scaling == "weak"), lambda p: p.series
    ).values():
        found = [run.planned.get(point.case, {}).get("workload") or {} for point in members]
        params = [workload.get("params") or {} for workload in found]
        differing = [name for name in params[0] if len({str(each.get(name)) for each in params}) > 1]
        if differing and not all(workload.get("work") for workload in found):
            yield (
                "work",
                f"Equal work per core is assumed, but {', '.join(differing)} "
                f"differ{'s' * (len(differing) == 1)} between sizes: rounding makes efficiencies wrong by as "
                'much. State the work of each case, such as workload.work: "=n ** 3".',
            )
            return


def _of_trends(cases: pd.DataFrame) -> dict[str, list[tuple[str, str]]]:
    """Warn, by case or for "" of all, of launches that take the longer or the shorter the later they begin.

    Launches of a round share the state of the machine, so that rounds are what shows a trend of all cases.
    """
    good = cases[(cases["status"] == "ok") & (cases["step_s"] > 0) & cases["started_unix_s"].notna()]
    names = good["case"]
    table = pd.DataFrame({"time": np.log(good["step_s"]), "start": good["started_unix_s"]})
    table -= table.groupby(names).transform("mean")
    of_run = _trends({"": table.groupby(good["repeat"]).median()} if names.nunique() > 1 else {})
    return of_run or _trends({str(case): rows for case, rows in table.groupby(names)})


def _trends(tables: Mapping[str, pd.DataFrame]) -> dict[str, list[tuple[str, str]]]:
    """Return the warnings on tables of start and logarithm of time whose slope chance does not explain."""
    known = {name: _slope(rows) for name, rows in tables.items() if len(rows) >= TREND_LAUNCHES}
    large = {
        name: p_value(level) or 0.0
        for name, level in known.items()
        if abs(level.value) > max(math.log1p(TREND), student_quantile(level.degrees) * (level.error or 0.0))
    }
    corrected = dict(zip(known, holm([large.get(name, 1.0) for name in known]), strict=True))
    return {
        name: [("trend", _trend_text(known[name].value, p, name))]
        for name, p in corrected.items()
        if p < TREND_P
    }


def _slope(rows: pd.DataFrame) -> Level:
    """Return what is added to the logarithm of a time from the first start to the last, by least squares."""
    start, time = ((rows[name] - rows[name].mean()).to_numpy(np.float64) for name in ("start", "time"))
    start = start / (np.ptp(start) or 1.0)
    squares, degrees = float(start @ start) or 1.0, len(rows) - 2
    slope = float(start @ time) / squares
    left = time - slope * start
    return Level(value=slope, error=math.sqrt(float(left @ left) / degrees / squares), degrees=degrees)


def _trend_text(slope: float, p: float, case: str) -> str:
    which = "Launches" if case else "Launches of all cases"
    known = f"at the end of the run than at the start (p {f'{p:.1g}' if p >= 1e-4 else '< 0.0001'})"
    if slope > 0:
        return (
            f"{which} take {math.expm1(slope):.0%} longer {known}: "
            "perhaps heat, or memory or disks filling up. Check clock and free memory, and measure again."
        )
    return (
        f"{which} take {-math.expm1(slope):.0%} less time {known}: "
        "perhaps files became cached, or other processes ended. Measure again, with `--wait-idle`."
    )


def _of_purpose(point: Row, planned: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if speed := planned.get("ghost", {}).get("gflops"):
        yield (
            "ghost",
            f"Compute was replaced by sleeping, at {speed:g} GFLOP/s per rank (`ghost`); communication was "
            "real. Use these times for waits, transfers and bubbles, not for compute.",
        )
    if point.injected:
        yield "injected", messages.injected(point)


def _of_stragglers(stragglers: Iterable[Row], point: Row) -> Iterator[tuple[str, str]]:
    for rank in stragglers:
        hint = "This delay was injected." if point.injected else messages.straggler_hint(rank)
        yield "straggler", f"{messages.straggler(rank)} {hint}"


def _of_times(sample: Sample | None, of_program: bool) -> Iterator[tuple[str, str]]:
    if sample is None or not sample.steps or not sample.mean > 0:
        return
    if sample.deviation >= DEVIATION * sample.mean:
        yield (
            "deviation",
            f"Step times vary: standard deviation {sample.deviation / sample.mean:.0%} of the mean over "
            f"{sample.steps} steps. Stop other processes, or increase steps and repeats.",
        )
    extreme = max(sample.slowest - sample.mean, sample.mean - sample.fastest)
    if extreme >= EXTREME * sample.mean:
        yield (
            "extreme",
            f"Some steps are outliers: fastest {duration(sample.fastest)}, "
            f"slowest {duration(sample.slowest)}, mean {duration(sample.mean)}. "
            "The heat map shows which rank was late.",
        )
    if sample.unsteady > sample.launches / 2:
        where = "the launch" if sample.launches == 1 else f"{sample.unsteady} of {sample.launches} launches"
        remedy = "Use more steps" if of_program else "Increase `train.warmup` or `train.steps`"
        yield (
            "unsteady",
            f"Steps were still getting faster or slower in the second half of {where}. {remedy}.",
        )


def _of_digits(point: Row) -> Iterator[tuple[str, str]]:
    if point.coarse_s and point.step_s:
        share = point.coarse_s / 2 / point.step_s.value
        yield (
            "digits",
            f"The program prints step times in units of {duration(point.coarse_s)}, so each is known to "
            f"±{share:.1%} at best. Print more digits, or do more work per launch.",
        )


def _of_gain(point: Row, compared: int) -> Iterator[tuple[str, str]]:
    """Warn of an efficiency above 100 % by more than its interval, which is wider where many are compared."""
    known = point.efficiency
    if known is None or known.low is None or point.base or not known.value > 1:
        return
    normal = NormalDist()
    wider = normal.inv_cdf(1 - 0.025 / compared) / normal.inv_cdf(0.975)
    if known.value * (known.low / known.value) ** wider > 1 + GAIN:
        yield (
            "gain",
            f"The efficiency is {percent(known.value)}{messages.interval(known)}, above 100%. Either the "
            "data of a core fit its cache here but not in the base case, or the base case was slow for "
            "another reason: measure it again, or choose a larger `base`.",
        )


def _of_interval(point: Row, auto: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Say which figure is known too vaguely: with `repeat: auto` an efficiency, if there is one."""
    compared = auto is not None and point.efficiency is not None
    if compared and point.base:  # no figure of its own: how vague it is, its ratios say
        return
    name, figure = ("efficiency", point.efficiency) if compared else ("step time", point.step_s)
    width = figure.half_width if figure else None
    if figure is None or width is None or width <= (auto["precision"] if auto else HALF_WIDTH):
        return
    launches = f"from {point.launches} launches"
    known = f"The {name} is only known to ±{100 * width:.2g}%, {launches}"
    if figure.stated is None:
        known = f"The {name} is uncertain by more than a factor of two, {launches} that differ too much"
    if auto is None:
        yield "interval", f"{known}. Increase `repeat`, or use `--budget 3m`."
    elif auto.get("budget_s") is None and point.launches + point.failed < auto["most"]:
        yield "interval", f"{known} so far: the run is not finished. Start it again to continue."
    else:
        asked = f"not to ±{100 * auto['precision']:.2g}% as requested"
        spent = "`max_repeats` was reached" if auto.get("budget_s") is None else "the budget was spent"
        yield (
            "interval",
            f"{known}, {asked}: {spent}. Stop other processes, or increase `--budget` or `max_repeats`.",
        )


def _of_launches(rows: pd.DataFrame) -> Iterator[tuple[str, str]]:
    ratio, call_s, step_s = (
        rows[name].median() for name in ("recording_ratio", "recording_call_s", "step_s")
    )
    if ratio > RECORDING:
        advised = (
            f"Recording a call costs {call_s * 1e6:.2g} µs, so this is noise: repeat on a quiet machine."
            if 1000 * call_s < 0.01 * step_s
            else "Use larger batches for fewer calls, and trust ratios between phases more than times."
        )
        yield "recording", f"Recording makes steps {ratio - 1:.1%} longer. {advised}"
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
                f"The loss is not finite, from step {bad[0]} of {len(losses)}. "
                "Lower `train.lr`, or clip gradients.",
            )
            break


def _of_skipped(course: Row) -> Iterator[tuple[str, str]]:
    yield (
        "skipped",
        f"{messages.loss_scale(course)}, because gradients overflowed; {course.skipped_measured} of them are "
        "measured steps, which are shorter without an update. "
        "Increase `train.warmup`, or lower `precision.initial_scale`.",
    )


def _cpus(run: Run, point: Row, seen: Mapping[str, Any] | None) -> int:
    """Return on how many CPUs the ranks of a case run: as they saw, else as its machine has; 0: unknown."""
    if seen and seen["cpus"]:
        return len(seen["cpus"])
    machine, launch = run.machine, run.planned.get(point.case, {}).get("launch", {})
    cores, nodes = machine.get("cores") or 0, machine.get("nodes") or 1
    if not launch.get("oversubscribe") or not cores:
        return 0
    usable = max(1, int(min(cores, machine.get("cpu_limit") or cores)))
    wanted = launch.get("ranks_per_node") or max(1, usable // point.threads)
    return int(usable * min(nodes, math.ceil(point.ranks / wanted)))


def _of_cores(cpus: int, point: Row) -> Iterator[tuple[str, str]]:
    if 0 < cpus < point.cores:
        yield (
            "oversubscribed",
            f"{messages.split_name(point)} share {plural(cpus, 'CPU')}, so timings are meaningless. "
            "Fine for trying out plans, not for comparing them.",
        )


def _of_ranks(seen: Mapping[str, Any], point: Row) -> Iterator[tuple[str, str]]:
    busy = seen["gemm_cores"]
    if got := sorted(seen["threads"] - {point.threads}):
        yield (
            "threads",
            f"BLAS used {', '.join(map(str, got))} threads instead of {point.threads}. "
            "`pscale doctor` shows what limits it.",
        )
    if point.threads > 1 and busy < BUSY * point.threads:
        yield (
            "idle",
            f"In matrix products, the {point.threads} threads of a rank kept only {busy:.1f} cores busy: "
            "some shared a core with each other or with other processes. Stop those; `pscale doctor` tells "
            "whether threads help here, and docs/blas.md how to bind them.",
        )
    if seen["unaccounted"] > UNACCOUNTED:
        yield (
            "unaccounted",
            f"{seen['unaccounted']:.1%} of step time is outside all phases and missing from the breakdown.",
        )


def _of_clock(unclear: Sequence[Unclear]) -> Iterator[tuple[str, str]]:
    for call in unclear:
        yield (
            "clock",
            f"Calls of {call.verb.replace('_', '-')} on {call.axis} wait {duration(call.wait_s)} on average, "
            f"but the clocks of the nodes agree only to {duration(call.bound_s)}, over {LIMIT:.0%} of that. "
            "So wait and transfer of these calls are shown as one.",
        )
