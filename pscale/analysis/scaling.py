"""Step time, throughput, speed-up and efficiency of every case against the base of its series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from pscale.analysis.frames import Run, grouped, records
from pscale.analysis.merits import workloads
from pscale.analysis.stats import Estimate, Sample, base_of, lower_median, ratio, samples, work_ratio
from pscale.config.injection import stored_words
from pscale.config.workload import WATCH

FINE = ("ok", "skipped")  # a case that this machine has no memory for is left out by a rule, not by a fault


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Launches of one case that ended in the same bad way."""

    case: str
    label: str
    status: str
    reason: str
    repeats: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One case. What was not measured is None; `cores` is ranks x threads, the size that it is plotted at."""

    case: str
    label: str
    run: str  # of several that are laid over each other; else empty
    series: str
    scaling: str
    injected: str  # the delays injected into ranks; empty for a healthy case
    ranks: int
    threads: int
    cores: int
    batch: int
    work: float | None  # of a step, as the suite states it
    status: str  # ok, as soon as one launch was; else that of the first launch; pending without any
    reason: str
    launches: int  # that ended well
    failed: int
    pending: int
    base: bool = False
    steps: int = 0  # steady ones, over all launches
    dropped: int = 0
    step_s: Estimate | None = None
    coarse_s: float | None = None  # unit of the last digit that was printed, where most of its uncertainty
    speedup: Estimate | None = None
    efficiency: Estimate | None = None
    samples_per_s: Estimate | None = None
    tokens_per_s: Estimate | None = None
    model_flops: float | None = None  # of one step, all ranks
    gflops: float | None = None  # model FLOPs, attention counted causal
    peak_fraction: float | None = None  # executed FLOPs over the GEMM peak of the same job
    recomputed_share: float | None = None  # of the executed FLOPs; None: nothing is computed again
    loss_first: float | None = None
    loss_last: float | None = None
    loss_unigram: float | None = None
    startup_s: float | None = None
    wall_s: float | None = None
    parameters: int | None = None
    peak_rss_bytes: float | None = None  # of the largest rank
    dropped_share: float | None = None  # of experts' choices, those that found no place
    expert_imbalance: float | None = None  # choices of the busiest expert over the mean
    losses: tuple[float, ...] = field(default=(), repr=False)
    course_s: tuple[float, ...] = field(default=(), repr=False)  # of the step time, by measured step


def points(run: Run, times: Mapping[str, Sample]) -> tuple[Point, ...]:
    """Return every case of the suite, by series and size; failed and pending ones too."""
    rows = _launches(run)
    measured = _Measured(run)
    found = []
    for case in dict.fromkeys([*run.planned, *rows]):
        point = _identity(case, run.planned.get(case, {}), rows.get(case, []), run)
        found.append(measured.added_to(point, times.get(case)) if point.launches else point)
    order = {series: place for place, series in enumerate(dict.fromkeys(point.series for point in found))}
    based = _with_bases(found, times)
    return tuple(sorted(based, key=lambda point: (order[point.series], point.cores, point.ranks)))


def _launches(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return what the rows of each case tell of it and of how its launches ended."""
    names = ["case", "status", "reason", "label", "series", "scaling", "delay_injection"]
    return grouped(
        records(run.cases[[*names, "ranks", "threads", "batch", "base"]]), lambda row: str(row["case"])
    )


def step_samples(run: Run) -> dict[str, Sample]:
    """Return the launches of every measured case; without rows of steps, what those state.

    So it is where the steps of a workload are others than those that were found in its calls.
    """
    stated = run.cases.loc[(run.cases["status"] == "ok") & run.cases["step_s"].notna()]
    plain = {
        str(case): Sample(
            medians=tuple(rows["step_s"]),
            repeats=tuple(rows["repeat"]),
            resolution=lower_median(rows["step_resolution_s"]),
        )
        for case, rows in stated.groupby("case")
    }
    stating = [
        case
        for case, workload in workloads(run).items()
        if workload.times != WATCH and not workload.lists_steps
    ]
    return plain | samples(run.ends[~run.ends["case"].isin(stating)], run.paces)


def failures(run: Run) -> tuple[Failure, ...]:
    """Return all launches that did not end well, those of a case with the same reason together."""
    bad = run.cases[~run.cases["status"].isin(FINE)].sort_values(["ranks", "threads", "case", "repeat"])
    groups = bad.groupby(["case", "status", "reason"], dropna=False, sort=False)
    return tuple(
        Failure(
            case=str(case),
            label=str(rows["label"].iloc[0]),
            status=str(status),
            reason=_text(reason) or "no reason recorded",
            repeats=tuple(int(repeat) for repeat in rows["repeat"]),
        )
        for (case, status, reason), rows in groups
    )


def by_series(found: Iterable[Point]) -> dict[str, list[Point]]:
    """Return the cases of every series, in order."""
    return grouped(found, lambda point: point.series)


def bases(found: Iterable[Point]) -> dict[str, str]:
    """Return, by case, the case that it is compared with."""
    base = {point.series: point.case for point in found if point.base}
    return {point.case: base[point.series] for point in found if point.series in base}


def _identity(
    case: str, planned: Mapping[str, Any], launches: Sequence[Mapping[str, Any]], run: Run
) -> Point:
    """Return what is known of a case before it has run, and how its launches ended."""
    first = launches[0] if launches else {}
    known = {**first, **planned.get("train", {}), **planned}
    statuses = [str(row["status"]) for row in launches]
    good = statuses.count("ok")
    ranks, threads = int(known.get("ranks") or 1), int(known.get("threads") or 1)
    return Point(
        case=case,
        label=_text(known.get("label")) or case,
        run=_text(known.get("run")),
        series=_text(known.get("series")),
        scaling=_text(known.get("scaling")),
        injected=stored_words(planned) or _text(first.get("delay_injection")),
        ranks=ranks,
        threads=threads,
        cores=ranks * threads,
        batch=int(known.get("batch") or 0),
        work=_number((planned.get("workload") or {}).get("work")),
        status="ok" if good else (statuses[0] if statuses else "pending"),
        reason="" if good else _text(first.get("reason")),
        launches=good,
        failed=len(statuses) - good - statuses.count("skipped"),
        pending=run.pending[case],
        base=bool(known.get("base")),
    )


def round_s(run: Run) -> float:
    """Return how long a round takes: a launch of every case, each by the median of its good ones, in s."""
    good = run.cases[run.cases["status"] == "ok"]
    return float(good.groupby("case")["wall_s"].median().sum())


_MEDIANS = (
    *("model_flops", "executed_flops", "gemm_peak_gflops", "batch", "tokens", "startup_s", "wall_s"),
    *("dropped_share", "expert_imbalance", "recomputed_flops"),
)
_FIRSTS = ("loss_first", "loss_last", "loss_unigram", "parameters", "losses")


class _Measured:
    """What the good launches of each case measured: medians over them, and the losses of the first."""

    def __init__(self, run: Run):
        self._bare = run.bare
        good = run.cases[run.cases["status"] == "ok"]
        medians = good.groupby("case", sort=False)[list(_MEDIANS)].median()
        firsts = good.drop_duplicates("case")[["case", *_FIRSTS]]
        self._medians = dict(zip(medians.index, records(medians), strict=True))
        self._firsts = {row["case"]: row for row in records(firsts)}
        self._memory = run.ranks.groupby("case", observed=True)["peak_rss_bytes"].max().to_dict()

    def added_to(self, point: Point, sample: Sample | None) -> Point:
        """Return a point with what was measured of it."""
        median, first = self._medians[point.case], self._firsts[point.case]
        step_s = sample.estimate if sample else None
        seconds = step_s.value if step_s else None
        flops, executed, peak = (
            median[name] for name in ("model_flops", "executed_flops", "gemm_peak_gflops")
        )
        losses = first["losses"]
        return replace(
            point,
            steps=sample.steps if sample else 0,
            dropped=sample.dropped if sample else 0,
            course_s=sample.course if sample else (),
            step_s=step_s,
            coarse_s=sample.resolution if sample and sample.coarse else None,
            samples_per_s=None if point.case in self._bare else _rate(median["batch"], step_s),
            tokens_per_s=_rate(median["tokens"], step_s),
            model_flops=flops,
            gflops=flops / seconds * 1e-9 if flops and seconds else None,
            peak_fraction=executed / seconds * 1e-9 / peak if executed and seconds and peak else None,
            recomputed_share=_share(median["recomputed_flops"], executed),
            loss_first=first["loss_first"],
            loss_last=first["loss_last"],
            loss_unigram=first["loss_unigram"],
            startup_s=median["startup_s"],
            dropped_share=median["dropped_share"],
            expert_imbalance=median["expert_imbalance"],
            wall_s=median["wall_s"],
            parameters=None if first["parameters"] is None else int(first["parameters"]),
            losses=tuple(float(loss) for loss in losses) if losses is not None else (),
            peak_rss_bytes=_number(self._memory.get(point.case)),
        )


def _with_bases(found: list[Point], times: Mapping[str, Sample]) -> list[Point]:
    """Mark the base of every series and set all its points against it."""
    sizes = [point for point in found if point.scaling != "throughput" and point.status != "skipped"]
    base = {series: base_of(members) for series, members in by_series(sizes).items()}
    return [_related(point, base.get(point.series), times) for point in found]


def _related(point: Point, base: Point | None, times: Mapping[str, Sample]) -> Point:
    """Set a point against the base of its series; without one, or without times, it stays alone."""
    if base is None or point.case not in times or base.case not in times:
        return replace(point, base=base is not None and point.case == base.case)
    flops, pair = (point.model_flops, base.model_flops), (times[base.case], times[point.case])
    work = work_ratio(point.scaling, (point.cores, base.cores), flops, (point.work, base.work))
    return replace(
        point,
        base=point.case == base.case,
        speedup=ratio(*pair, factor=work),
        efficiency=ratio(*pair, factor=work * base.cores / point.cores),
    )


def _rate(amount: float | None, step_s: Estimate | None) -> Estimate | None:
    return step_s.rate(amount) if amount and step_s is not None and step_s.value > 0 else None


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part and whole else None


def _number(value: Any) -> float | None:
    """Return a number, or None for a null; what is not finite stays as it is."""
    return None if value is None or pd.isna(value) else float(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
