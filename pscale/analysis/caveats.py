"""Caveats, which speak against trusting a number: each a sentence with figures and what to do about it.

Warnings are rules: a kind, a condition on the facts of a case, and a sentence. Notes say how to read
intervals and rates of the run, and what recording cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis import messages
from pscale.analysis.columns import Row
from pscale.analysis.difference import holm, p_value
from pscale.analysis.frames import LIMIT, Run, Unclear, bound, by_case, grouped, no_training, workloads
from pscale.analysis.resources import BUSY
from pscale.analysis.settings import elsewhere, listed
from pscale.analysis.stats import Level, Sample, student_quantile
from pscale.analysis.text import duration_3, percent, plural, split_name
from pscale.config import Workload
from pscale.config.case import RECORDED
from pscale.config.workload import MATCH, ONCE, WALL, WATCH
from pscale.runs.store import provenance_of

_DEVIATION = 0.10  # of the mean
_EXTREME = 0.50  # away from the mean
_HALF_WIDTH = 0.05  # of the value
_RECORDING = 1.02
_UNACCOUNTED = 0.01  # of the wall
_GAIN = 0.02  # of an efficiency above 100 %
_TREND = 0.02  # of the step time, from the first launch to the last
_TREND_P = 0.01
_TREND_LAUNCHES = 4
_REPLICAS = {"float32": 1e-5, "float64": 1e-12}  # relative
_LOAD = 1.25  # over the cores that the run has used
_TRACED = "Events were recorded: `pscale trace` writes those of a launch as a timeline for ui.perfetto.dev."
_SHOWN = 0.02  # of the median step


Rule = tuple[str, Callable[[Any], Any], str | Callable[[Any], str]]
"""A kind of warning: when it holds, given the facts of a case, and what it says `of` them."""


def said(rules: Iterable[Rule], facts: object) -> list[tuple[str, str]]:
    """Return kind and text of the rules that hold."""
    texts = ((kind, text) for kind, when, text in rules if when(facts))
    return [(kind, text.format(of=facts) if isinstance(text, str) else text(facts)) for kind, text in texts]


def _is_gain(of: Any) -> bool:
    """Tell whether an efficiency is above 100 % by more than its interval, wider where many are compared."""
    known = of.point.efficiency
    if known is None or known.low is None or of.point.base or not known.value > 1:
        return False
    normal = NormalDist()
    wider = normal.inv_cdf(1 - 0.025 / of.compared) / normal.inv_cdf(0.975)
    return bool(known.value * (known.low / known.value) ** wider > 1 + _GAIN)


def _figure(of: Any) -> tuple[str, Any]:
    """Return the figure whose interval counts: with `repeat: auto` an efficiency, if there is one."""
    if of.auto is None or of.point.efficiency is None:
        return "step time", of.point.step_s
    # A base has no figure of its own: how vague it is, its ratios say.
    return "efficiency", None if of.point.base else of.point.efficiency


def _is_vague(of: Any) -> bool:
    figure = _figure(of)[1]
    width = figure.half_width if figure else None
    return width is not None and width > (of.auto["precision"] if of.auto else _HALF_WIDTH)


def _vague(of: Any) -> str:
    (name, figure), auto, point = _figure(of), of.auto, of.point
    launches = f"from {point.launches} launches"
    known = f"The {name} is only known to ±{100 * figure.half_width:.2g}%, {launches}"
    if figure.stated is None:
        known = f"The {name} is uncertain by more than a factor of two, {launches} that differ too much"
    if auto is None:
        return f"{known}. Increase `repeat`, or use `--budget 3m`."
    if auto.get("budget_s") is None and point.launches + point.failed < auto["most"]:
        return f"{known} so far: the run is not finished. Start it again to continue."
    asked = f"not to ±{100 * auto['precision']:.2g}% as requested"
    spent = "`max_repeats` was reached" if auto.get("budget_s") is None else "the budget was spent"
    return f"{known}, {asked}: {spent}. Stop other processes, or increase `--budget` or `max_repeats`."


def _trend(trend: tuple[float, float], which: str) -> str:
    slope, p = trend
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


def _recording(of: Any) -> str:
    text = f"Recording makes steps {of.launches.recording_ratio - 1:.1%} longer."
    if 1000 * of.launches.recording_call_s < 0.01 * of.launches.step_s:
        each = f"Recording a call costs {of.launches.recording_call_s * 1e6:.2g} µs"
        return f"{text} {each}, so this is noise: repeat on a quiet machine."
    return f"{text} Use larger batches for fewer calls, and trust ratios between phases more than times."


_CASE: tuple[Rule, ...] = (  # of every case that was launched
    (
        "ghost",
        lambda of: of.planned.get("ghost", {}).get("gflops"),
        "Compute was replaced by sleeping, at {of.planned[ghost][gflops]:g} GFLOP/s per rank (`ghost`); "
        "communication was real. Use these times for waits, transfers and bubbles, not for compute.",
    ),
    ("injected", lambda of: of.point.injected, lambda of: messages.injected(of.point)),
    (
        "hints",
        lambda of: of.hints,
        lambda of: (
            "MPI-IO has not taken all of `data.hints`: "
            + "; ".join(f"{hint.hint} {hint.asked}, it says {hint.used or 'none'}" for hint in of.hints)
            + ". This library, or this file system, has no use for them."
        ),
    ),
    (
        "straggler",
        lambda of: of.straggler,
        lambda of: (
            f"{messages.straggler(of.straggler)} "
            + ("This delay was injected." if of.point.injected else messages.straggler_hint(of.straggler))
        ),
    ),
    (
        "deviation",
        lambda of: of.times.deviation >= _DEVIATION * of.times.mean > 0,
        lambda of: (
            f"Step times vary: standard deviation {of.times.deviation / of.times.mean:.0%} of the mean over "
            f"{of.times.steps} steps. Stop other processes, or increase steps and repeats."
        ),
    ),
    (
        "extreme",
        lambda of: (
            0
            < _EXTREME * of.times.mean
            <= max(of.times.slowest - of.times.mean, of.times.mean - of.times.fastest)
        ),
        lambda of: (
            f"Some steps are outliers: fastest {duration_3(of.times.fastest)}, "
            f"slowest {duration_3(of.times.slowest)}, mean {duration_3(of.times.mean)}. "
            "The heat map shows which rank was late."
        ),
    ),
    (
        "unsteady",
        lambda of: of.times.unsteady > of.times.launches / 2,
        lambda of: (
            "Steps were still getting faster or slower in the second half of "
            + (
                f"{of.times.unsteady} of {of.times.launches} launches. "
                if of.times.launches > 1
                else "the launch. "
            )
            + ("Use more steps." if no_training(of.planned) else "Increase `train.warmup` or `train.steps`.")
        ),
    ),
    ("recording", lambda of: of.launches.recording_ratio > _RECORDING, _recording),
    (
        "replicas",
        lambda of: of.launches.replica_spread > _REPLICAS.get(of.launches.dtype, _REPLICAS["float32"]),
        "Replicas differ by {of.launches.replica_spread:.1e} (relative) at the end, more than "
        "rounding in {of.launches.dtype} explains: their weights have drifted apart. "
        "Check the MPI library with `reduction: all-reduce`.",
    ),
    (
        "loss",
        lambda of: of.broken_loss,
        "The loss is not finite, from step {of.broken_loss[0]} of {of.broken_loss[1]}. "
        "Lower `train.lr`, or clip gradients.",
    ),
    (
        "skipped",
        lambda of: of.loss_scale and of.loss_scale.skipped_measured,
        lambda of: (
            f"{messages.loss_scale(of.loss_scale)}, because gradients overflowed; "
            f"{of.loss_scale.skipped_measured} of them are measured steps, which are shorter without an "
            "update. Increase `train.warmup`, or lower `precision.initial_scale`."
        ),
    ),
    (
        "digits",
        lambda of: of.point.coarse_s and of.point.step_s,
        lambda of: (
            f"The program prints step times in units of {duration_3(of.point.coarse_s)}, so each is known to "
            f"±{of.point.coarse_s / 2 / of.point.step_s.value:.1%} at best. "
            "Print more digits, or do more work per launch."
        ),
    ),
    ("interval", _is_vague, _vague),
    ("trend", lambda of: of.trend, lambda of: _trend(of.trend, "Launches")),
    (
        "gain",
        _is_gain,
        lambda of: (
            f"The efficiency is {percent(of.point.efficiency.value)}"
            f"{messages.interval(of.point.efficiency)}, above 100%. Either the data of a core fit its cache "
            "here but not in the base case, or the base case was slow for another reason: measure it again, "
            "or choose a larger `base`."
        ),
    ),
    (
        "oversubscribed",
        lambda of: 0 < of.cpus < of.point.cores,
        lambda of: (
            f"{split_name(of.point.ranks, of.point.threads)} share {plural(of.cpus, 'CPU')}, so timings are "
            "meaningless. Fine for trying out plans, not for comparing them."
        ),
    ),
)
_RANKS: tuple[Rule, ...] = (  # of cases whose ranks observed their machine
    (
        "threads",
        lambda of: of.seen.threads - {of.point.threads},
        lambda of: (
            f"BLAS used {', '.join(map(str, sorted(of.seen.threads - {of.point.threads})))} threads instead "
            f"of {of.point.threads}. `pscale doctor` shows what limits it."
        ),
    ),
    (
        "idle",
        lambda of: of.point.threads > 1 and of.seen.gemm_cores < BUSY * of.point.threads,
        "In matrix products, the {of.point.threads} threads of a rank kept only "
        "{of.seen.gemm_cores:.1f} cores busy: some shared a core with each other or with other "
        "processes. Stop those; `pscale doctor` tells whether threads help here, and docs/blas.md how "
        "to bind them.",
    ),
    (
        "unaccounted",
        lambda of: of.seen.unaccounted > _UNACCOUNTED,
        "{of.seen.unaccounted:.1%} of step time is outside all phases and missing from the breakdown.",
    ),
)
MACHINE: tuple[Rule, ...] = (  # of those that told their wall time too; `cores`: the most of a case
    (
        "steal",
        lambda of: of.seen.steal > 0.01,
        "The hypervisor took {of.seen.steal:.0%} of the time of a rank's CPUs. "
        "Use a dedicated machine, or more repeats.",
    ),
    (
        "quota",
        lambda of: of.seen.quota > 0.01,
        "The control group's limit on CPU time stopped the ranks for {of.seen.quota:.0%} of the time. "
        "Raise the limit, or use fewer ranks and threads.",
    ),
    (
        "switches",
        lambda of: of.seen.switches_per_s > 20,
        lambda of: (
            f"One rank had {of.seen.switches_per_s:.0f} involuntary context switches per second: another "
            f"process uses its core. Stop that process{', bind ranks to cores' * (not bound(of.planned))}, "
            "or leave a core free."
        ),
    ),
    (
        "others",
        lambda of: of.seen.others > 0.10,
        "Other processes used {of.seen.others:.2g} of the ranks' cores. Stop them.",
    ),
    (
        "load",
        lambda of: of.seen.load > _LOAD * of.cores + 1,
        "The host's load was {of.seen.load:.3g}, but the run uses at most {of.cores} cores: "
        "other processes were running too. Stop them.",
    ),
    (
        "throttled",
        lambda of: of.seen.throttles > 0,
        "The processor was throttled (heat or power) {of.seen.throttles:.0f} times in "
        "{of.seen.wall_s:.3g} s of steps. Cool it, limit its clock, or use fewer cores.",
    ),
    (
        "frequency",
        lambda of: of.seen.clock_spread > 0.10,
        "The processor's clock varied between {of.seen.slowest_ghz:.2f} and {of.seen.fastest_ghz:.2f} "
        "GHz (governor: {of.seen.governors}). Use the governor `performance`, or fix the clock.",
    ),
)


def _clock(call: Unclear) -> str:
    return (
        f"Calls of {call.verb.replace('_', '-')} on {call.axis} wait {duration_3(call.wait_s)} on average, "
        f"but the clocks of the nodes agree only to {duration_3(call.bound_s)}, over {LIMIT:.0%} of that. "
        "So wait and transfer of these calls are shown as one."
    )


def caveats(
    run: Run,
    points: Sequence[Row],
    times: Mapping[str, Sample],
    observed: Mapping[str, Mapping[str, Any]],
    *,
    stragglers: Mapping[str, Row],
    loss_scaling: Mapping[str, Row],
    hints: Mapping[str, Sequence[Row]],
) -> Iterator[dict[str, str]]:
    """Yield all caveats: those about the whole run first, then case by case.

    `observed` is what ranks saw of their machine, as `observations` returns it.
    """
    trends = {} if run.origins else _of_trends(run.cases)  # several runs share no rounds
    of_all = [("trend", _trend(trends[""], "Launches of all cases"))] if "" in trends else []
    for kind, text in (*_of_run(run), *_of_work(run, points), *of_all):
        yield {"kind": kind, "case": "", "text": text}
    launched, broken, unclear = *_launched(run), by_case(run.unclear)
    compared = sum(point.efficiency is not None and not point.base for point in points)
    cores = max((point.cores for point in points if point.launches), default=0)
    for point in (point for point in points if point.launches):
        case, seen = point.case, observed.get(point.case)
        facts = SimpleNamespace(
            point=point,
            planned=run.planned.get(case, {}),
            times=times.get(case) or Sample(medians=()),
            launches=SimpleNamespace(**launched[case]),
            broken_loss=broken.get(case),
            straggler=stragglers.get(case),
            loss_scale=loss_scaling.get(case),
            hints=[each for each in hints.get(case, ()) if each.answer != "taken"],
            trend=trends.get(case),
            auto=run.document.get("auto"),
            compared=compared,
            cores=cores,
            cpus=_cpus(run, point, seen),
            seen=SimpleNamespace(**seen or {}),
        )
        rules = _CASE + (_RANKS if seen else ()) + (MACHINE if seen and seen["wall_s"] > 0 else ())
        for kind, text in (*said(rules, facts), *(("clock", _clock(call)) for call in unclear.get(case, ()))):
            yield {"kind": kind, "case": case, "text": text}


def _launched(run: Run) -> tuple[dict[str, Mapping[str, Any]], dict[str, tuple[int, int]]]:
    """Return what the launches of each case cost, and the first step whose loss is not finite."""
    good = run.good
    groups = good.groupby("case")
    table = groups[["recording_ratio", "recording_call_s", "step_s"]].median()
    table = table.assign(replica_spread=groups["replica_spread"].max(), dtype=groups["dtype"].first())
    broken: dict[str, tuple[int, int]] = {}
    for case, losses in good.loc[good["losses"].notna(), ["case", "losses"]].itertuples(index=False):
        bad = np.flatnonzero(~np.isfinite(losses))
        if len(bad):
            broken.setdefault(str(case), (int(bad[0]), len(losses)))
    return {str(case): row for case, row in table.to_dict("index").items()}, broken  # type: ignore[misc]


def _of_run(run: Run) -> Iterator[tuple[str, str]]:
    for number, text in enumerate(run.document.get("warnings", ())):
        yield f"program {number}", text
    ranks = run.ranks
    libraries = ranks[["case", "blas", "blas_version", "blas_architecture", "blas_threading"]]
    choices = {case: planned.get("launch", {}).get("blas", "auto") for case, planned in run.planned.items()}
    rows = libraries.drop_duplicates().astype(object).fillna("?").to_numpy()
    for same in grouped(rows, lambda row: choices.get(str(row[0]), "auto")).values():
        kinds = sorted({" ".join(map(str, words)) for _, *words in same})
        if len(kinds) > 1:
            yield (
                "blas",
                f"The launches used {len(kinds)} different BLAS libraries: {'; '.join(kinds)}. "
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
    weak = (point for point in points if point.scaling == "weak")
    for members in grouped(weak, lambda point: point.series).values():
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


def _of_trends(cases: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return slope and p, by case or for "" of all, of launches that take longer or shorter the later.

    Launches of a round share the state of the machine, so that rounds are what shows a trend of all cases.
    """
    good = cases[(cases["status"] == "ok") & (cases["step_s"] > 0) & cases["started_unix_s"].notna()]
    names = good["case"]
    table = pd.DataFrame({"time": np.log(good["step_s"]), "start": good["started_unix_s"]})
    table -= table.groupby(names).transform("mean")
    of_run = _trends({"": table.groupby(good["repeat"]).median()} if names.nunique() > 1 else {})
    return of_run or _trends({str(case): rows for case, rows in table.groupby(names)})


def _trends(tables: Mapping[str, pd.DataFrame]) -> dict[str, tuple[float, float]]:
    """Return slope and p of the tables of start and logarithm of time that chance does not explain."""
    known = {name: _slope(rows) for name, rows in tables.items() if len(rows) >= _TREND_LAUNCHES}
    large = {
        name: p_value(level) or 0.0
        for name, level in known.items()
        if abs(level.value) > max(math.log1p(_TREND), student_quantile(level.degrees) * (level.error or 0.0))
    }
    corrected = dict(zip(known, holm([large.get(name, 1.0) for name in known]), strict=True))
    return {name: (known[name].value, p) for name, p in corrected.items() if p < _TREND_P}


def _slope(rows: pd.DataFrame) -> Level:
    """Return what is added to the logarithm of a time from the first start to the last, by least squares."""
    start, time = ((rows[name] - rows[name].mean()).to_numpy(np.float64) for name in ("start", "time"))
    start = start / (np.ptp(start) or 1.0)
    squares, degrees = float(start @ start) or 1.0, len(rows) - 2
    slope = float(start @ time) / squares
    left = time - slope * start
    return Level(value=slope, error=math.sqrt(float(left @ left) / degrees / squares), degrees=degrees)


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


def notes(
    run: Run, points: Sequence[Row], times: Mapping[str, Sample], *, bare: Run | None, traced: bool
) -> Iterator[str]:
    """Yield what a reader has to know; `bare` is the run that calls are set beside."""
    yield from run.gaps
    yield from run.document.get("notes", ())
    yield from _of_programs(run)
    if (bound_s := run.ranks["clock_bound_s"].max()) > 0:
        yield (
            "The clocks of the nodes were synchronised: times of a rank differ from rank 0's clock by at "
            f"most {duration_3(bound_s)}."
        )
    yield from _of_launches([point for point in points if point.step_s], run.document.get("auto"))
    yield from _of_medians(points, times)
    yield from _of_recording(run)
    if bare:
        yield _of_bare(bare, elsewhere(run, bare))
    yield from _of_pace(run.paces.values())
    if traced:
        yield _TRACED


def _of_programs(run: Run) -> Iterator[str]:
    """Yield what the steps of workloads are, and what their records say of themselves."""
    found = workloads(run)
    for times, own in grouped(found.values(), lambda workload: workload.times).items():
        ways = {_APART if workload.watch == ONCE else "" for workload in own if workload.watch}
        yield _of_steps(times, own[0]) + (_BREAKDOWN.format(max(ways)) if ways and times != WATCH else "")
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
    both = zip(good["label"], good["provenance"], strict=True)
    said = [(label, sentence) for label, text in both for sentence in provenance_of(text).get("watch", ())]
    for sentence, each in grouped(said, itemgetter(1)).items():
        yield sentence if len(each) == len(good) else f"{', '.join(label for label, _ in each)}: {sentence}"


def _of_pace(launches: Collection[Sequence[float]]) -> Iterator[str]:
    if launches:
        low, middle, high = np.quantile(np.concatenate([*launches]), [0.05, 0.5, 0.95])
        yield (
            "The pace of the machine varied: a fixed piece of work between steps took "
            f"{duration_3(float(middle))} (median), 90% of the time within {low / middle - 1:+.0%} to "
            f"{high / middle - 1:+.0%}. `pscale compare` corrects for it."
        )


def _of_medians(points: Sequence[Row], times: Mapping[str, Sample]) -> Iterator[str]:
    """Yield in which cases slow steps lengthen the mean step beyond the median."""
    measured = ((point.label, times[point.case]) for point in points if point.steps)
    longer = {label: sample.mean / sample.value - 1 for label, sample in measured}
    apart = [f"{label} {change:+.1%}" for label, change in longer.items() if abs(change) >= _SHOWN]
    if apart:
        yield (
            "Step times and efficiencies are medians. Lost time and the factors of efficiency include every "
            "step, so slow steps lower `parallel` and raise `computation`. Mean step relative to the "
            f"median: {listed(apart, most=8)}."
        )


def _of_launches(good: Sequence[Row], auto: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield what is to be known of the intervals and rates of cases that were measured."""
    if auto and good:
        counts, budget_s = sorted(point.launches for point in good), auto.get("budget_s")
        most = f"{auto['most']} per case" if budget_s is None else f"for {duration_3(budget_s)}"
        yield (
            "Launches were repeated until efficiencies (or step times, without efficiencies) were known to "
            f"±{100 * auto['precision']:.3g}%, at most {most} (`repeat: auto`): "
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


def _of_bare(bare: Run, apart: Sequence[str]) -> str:
    """Say which run the bare verbs are of, and what may keep them from being compared."""
    other = f", which had another {' and '.join(apart)}" if apart else ""
    shared = ", in which ranks share cores" if bare.cases["oversubscribed"].eq(True).any() else ""
    return f"Bandwidths of bare collectives are from run {bare.name}{other}{shared}."


def _of_recording(run: Run) -> Iterator[str]:
    """Yield by how much recording lengthens steps, and what a call costs, where that was measured."""
    good = run.good[run.good["recording_ratio"].notna()]
    if good.empty:
        return
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
    yield f"{said}."
