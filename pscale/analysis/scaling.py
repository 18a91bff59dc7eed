"""Step time, speed-up and efficiency of every case against the base of its series; its figures of merit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd

from pscale.analysis.columns import Row
from pscale.analysis.frames import Run, grouped, of_counted, records, workloads
from pscale.analysis.stats import Estimate, Sample, base_of, lower_median, ratio, samples, work_ratio
from pscale.config.case import UNCOUNTED, stored_words
from pscale.config.metrics import conversion
from pscale.config.workload import WATCH

FINE = ("ok", "skipped")  # a case that this machine has no memory for is left out by a rule, not by a fault


def cases(run: Run, times: Mapping[str, Sample]) -> list[dict[str, Any]]:
    """Return every case of the suite, by series and size; failed and pending ones too."""
    names = ["case", "status", "reason", "label", "series", "scaling", "delay_injection"]
    rows = grouped(
        records(run.cases[[*names, "ranks", "threads", "batch", "base"]]), lambda row: str(row["case"])
    )
    measured = _measured(run, times)
    found = []
    for case in dict.fromkeys([*run.planned, *rows]):
        row = _identity(case, run.planned.get(case, {}), rows.get(case, []), run)
        found.append(row | measured[case] if row["launches"] else row)
    order = {series: place for place, series in enumerate(dict.fromkeys(row["series"] for row in found))}
    based = _with_bases(found, times)
    return sorted(based, key=lambda row: (order[row["series"]], row["cores"], row["ranks"]))


def step_samples(run: Run) -> dict[str, Sample]:
    """Return the launches of every measured case; without rows of steps, what those state.

    So it is where the steps of a workload are others than those that were found in its calls.
    """
    stated = run.good[run.good["step_s"].notna()]
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
    return plain | samples(of_counted(run.ends[~run.ends["case"].isin(stating)], run), run.paces)


def failures(run: Run) -> list[dict[str, Any]]:
    """Return all launches that did not end well, those of a case with the same reason together."""
    bad = run.cases[~run.cases["status"].isin((*FINE, *UNCOUNTED))]
    bad = bad.sort_values(["ranks", "threads", "case", "repeat"])
    groups = bad.groupby(["case", "status", "reason"], dropna=False, sort=False)
    return [
        {
            "case": str(case),
            "label": str(rows["label"].iloc[0]),
            "status": status,
            "reason": _text(reason) or "no reason recorded",
            "repeats": tuple(int(repeat) for repeat in rows["repeat"]),
        }
        for (case, status, reason), rows in groups
    ]


def by_series(found: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the cases of every series, in order."""
    return grouped(found, lambda point: point.series)


def bases(found: Iterable[Row]) -> dict[str, str]:
    """Return, by case, the case that it is compared with."""
    base = {point.series: point.case for point in found if point.base}
    return {point.case: base[point.series] for point in found if point.series in base}


def _identity(
    case: str, planned: Mapping[str, Any], launches: Sequence[Mapping[str, Any]], run: Run
) -> dict[str, Any]:
    """Return what is known of a case before it has run, and how its launches ended."""
    first = launches[0] if launches else {}
    known = {**first, **planned.get("train", {}), **planned}
    statuses = [str(row["status"]) for row in launches if row["status"] not in UNCOUNTED]
    good = statuses.count("ok")
    ranks, threads = int(known.get("ranks") or 1), int(known.get("threads") or 1)
    return {
        "case": case,
        "label": _text(known.get("label")) or case,
        "run": _text(known.get("run")),
        "series": _text(known.get("series")),
        "scaling": _text(known.get("scaling")),
        "injected": stored_words(planned) or _text(first.get("delay_injection")),
        "ranks": ranks,
        "threads": threads,
        "cores": ranks * threads,
        "batch": int(known.get("batch") or 0) or None,
        "work": _number((planned.get("workload") or {}).get("work")),
        "status": "ok" if good else (statuses[0] if statuses else "pending"),
        "reason": "" if good else next(filter(None, (_text(row.get("reason")) for row in launches)), ""),
        "launches": good,
        "failed": len(statuses) - good - statuses.count("skipped"),
        "pending": run.pending[case],
        "base": bool(known.get("base")),
    }


def round_s(run: Run) -> float:
    """Return how long a round takes: a launch of every case, each by the median of its good ones, in s.

    NaN where that is not known of every case.
    """
    good = run.good
    return float(good.groupby("case")["wall_s"].median().sum(skipna=False))


_MEDIANS = (
    *("model_flops", "executed_flops", "gemm_peak_gflops", "batch", "tokens", "startup_s", "wall_s"),
    *("dropped_share", "expert_imbalance", "recomputed_flops"),
)
_FIRSTS = ("loss_first", "loss_last", "loss_unigram", "parameters")
_CURVES = ("losses", "validation_losses", "validation_steps")  # likewise


def _measured(run: Run, times: Mapping[str, Sample]) -> dict[str, dict[str, Any]]:
    """Return what the good launches of each case measured: medians over them, and the losses of the first."""
    medians = records(run.good.groupby("case", sort=False)[list(_MEDIANS)].median().reset_index())
    firsts = records(run.good.drop_duplicates("case")[["case", *_FIRSTS, *_CURVES]])
    memory = run.ranks.groupby("case", observed=True)["peak_rss_bytes"].max().to_dict()
    of_first = {row["case"]: row | {"peak_rss_bytes": _number(memory.get(row["case"]))} for row in firsts}
    found = (
        (row["case"], {**row, "batch": None if row["case"] in run.bare else row["batch"]}) for row in medians
    )
    return {case: of_first[case] | _rates(row, of_first[case], times.get(case)) for case, row in found}


def _rates(median: Mapping[str, Any], first: Mapping[str, Any], sample: Sample | None) -> dict[str, Any]:
    step_s = sample.estimate if sample else None
    seconds = step_s.value if step_s else None
    names = ("model_flops", "executed_flops", "recomputed_flops", "gemm_peak_gflops")
    flops, executed, again, peak = (median[name] for name in names)
    return {
        "steps": sample.steps if sample else 0,
        "dropped": sample.dropped if sample else 0,
        "step_s": step_s,
        "coarse_s": sample.resolution if sample and sample.coarse else None,
        "samples_per_s": _rate(median["batch"], step_s),
        "tokens_per_s": _rate(median["tokens"], step_s),
        "model_flops": flops,
        "gflops": flops / seconds * 1e-9 if flops and seconds else None,
        "peak_fraction": executed / seconds * 1e-9 / peak if executed and seconds and peak else None,
        "recomputed_share": again / executed if again and executed else None,
        **{name: () if first[name] is None else tuple(map(float, first[name])) for name in _CURVES},
        "course_s": sample.course if sample else (),
        **{name: median[name] for name in ("startup_s", "wall_s", "dropped_share", "expert_imbalance")},
    }


def _with_bases(found: list[dict[str, Any]], times: Mapping[str, Sample]) -> Iterator[dict[str, Any]]:
    """Mark the base of every series and set all its cases against it.

    Without a base, or without times, a case stays alone.
    """
    sizes = [row for row in found if row["scaling"] != "throughput" and row["status"] != "skipped"]
    bases = {
        series: base_of([SimpleNamespace(**row) for row in members])
        for series, members in grouped(sizes, _series_of).items()
    }
    for row in found:
        base = bases.get(row["series"])
        known = row | {"base": base is not None and row["case"] == base.case}
        if base is not None and row["case"] in times and base.case in times:
            pair = times[base.case], times[row["case"]]
            flops = (row.get("model_flops"), getattr(base, "model_flops", None))
            work = work_ratio(row["scaling"], (row["cores"], base.cores), flops, (row["work"], base.work))
            known |= {"relative_work": work, "speedup": ratio(*pair, factor=work)}
            known["efficiency"] = ratio(*pair, factor=work * base.cores / row["cores"])
        yield known


def from_smallest(found: Iterable[dict[str, Any]], times: Mapping[str, Sample]) -> list[dict[str, Any]]:
    """Return the healthy cases of series of two measured sizes or more, set against the smallest of each."""
    measured = [
        {**row, "base": False}
        for row in found
        if row["case"] in times and row["scaling"] in ("strong", "weak") and not row["injected"]
    ]
    cores = {name: {row["cores"] for row in rows} for name, rows in grouped(measured, _series_of).items()}
    return [*_with_bases([row for row in measured if len(cores[row["series"]]) > 1], times)]


def _series_of(row: Mapping[str, Any]) -> str:
    return str(row["series"])


def _rate(amount: float | None, step_s: Estimate | None) -> Estimate | None:
    return step_s.rate(amount) if amount and step_s is not None and step_s.value > 0 else None


def _number(value: Any) -> float | None:
    """Return a number, or None for a null; what is not finite stays as it is."""
    return None if value is None or pd.isna(value) else float(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def loss_scaling(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the course of the scale of the first launch of every case whose loss is scaled."""
    good = run.good.drop_duplicates("case")
    chosen = good[good["loss_scales"].notna()]
    for row in records(chosen[["case", "loss_scale", "loss_scales", "skipped_steps", "warmup"]]):
        scales, skipped = row["loss_scales"], row["skipped_steps"]
        yield {
            "case": row["case"],
            "asked": row["loss_scale"],
            "first_scale": float(scales[0]),
            "last_scale": float(scales[-1]),
            "skipped": len(skipped),
            "skipped_measured": sum(int(step) >= int(row["warmup"]) for step in skipped),
            "steps": len(scales),
        }


def costs(points: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Yield the core-seconds of a step of every measured case, and those of its work."""
    for point in (point for point in points if point.step_s):
        work = point.work or (point.samples_per_s and point.batch) or None
        core_s = point.step_s.times(point.cores)
        relative = point.efficiency.rate(1.0) if point.efficiency and point.efficiency.value > 0 else None
        yield {
            "case": point.case,
            "cores": point.cores,
            "core_s": core_s,
            "unit": "unit" if point.work else "sample" if work else "",
            "work": work,
            "core_hours": core_s.times(1e6 / work / 3600) if work else None,
            "relative": Estimate(value=1.0) if point.base else relative,
        }


# Figures of merit


def merits(run: Run) -> list[dict[str, Any]]:
    """Return every figure of every case, in the order of the suite."""
    found = run.figures.astype({"figure": str, "unit": str}).groupby(["case", "figure"], observed=True)
    known = {(str(case), str(figure)): _merit(str(case), str(figure), rows) for (case, figure), rows in found}
    named = {case: workload.figures for case, workload in workloads(run).items()}
    order = [(case, figure) for case, figures in named.items() for figure in figures]
    return [known[key] for key in dict.fromkeys([*order, *known]) if key in known]


def _merit(case: str, figure: str, rows: pd.DataFrame) -> dict[str, Any]:
    """Return the figure of a case: one that is the same in all launches stays so to the last digit."""
    unit = rows["unit"].iloc[0]
    factors = [conversion(each, unit) for each in rows["unit"]]  # programs may say which each is in
    values, resolutions = (
        tuple(each * factor for each, factor in zip(rows[name], factors, strict=True) if factor is not None)
        for name in ("value", "resolution")
    )
    known = Sample(medians=values, resolution=lower_median(resolutions))
    value = known.estimate
    if len(set(known.medians)) == 1 and not known.resolution:
        (exact,) = set(known.medians)
        bound = exact if len(rows) > 1 else None
        value = Estimate(value=exact, low=bound, high=bound)
    return {
        "case": case,
        "figure": figure,
        "value": value,
        "coarse": known.resolution if known.coarse else None,
        "unit": unit,
        "better": _text(rows["better"].iloc[0]),
        "launches": len(rows),
    }
