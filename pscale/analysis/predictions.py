"""Steps predicted: laws of every series that compares sizes, and predictions held to what was measured since.

Cases that differ in one swept number alone have laws over that, which say nothing of efficiency.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis.columns import Row, row
from pscale.analysis.frames import KINDS, Run, grouped, load
from pscale.analysis.laws import (
    CONSTANT,
    FEWEST_SIZES,
    Bootstrap,
    Choice,
    Observed,
    Space,
    fit,
    laws,
    likely,
    named_laws,
)
from pscale.analysis.scaling import by_series
from pscale.analysis.settings import SIZES, Case, apart_from, following, of_cases, swept_numbers
from pscale.analysis.stats import Estimate, Sample
from pscale.analysis.wording import duration, in_common, plural
from pscale.config import JOINT
from pscale.errors import ResultsError
from pscale.runs.events import PHASES
from pscale.runs.predictions import Predicted, read
from pscale.runs.run_folders import predicted_suites, prediction_file

REACH = 4  # times the largest size measured: beyond, no interval is given
MOST_SERIES = 8
FITTED = ("models", "laws", "law_predictions", "named_laws")  # frames
_MISFIT = 0.02  # of the step: a law that misses less fits well enough
_MISFIT_P = 0.01
_OBVIOUS = 1.5  # times what launches scatter by: no test finds less
_SMALL = 0.01  # of the step, at every size: not worth a law
_LARGEST = 1e60  # value of a swept number: squares of its terms are finite
_CURVE = 33  # sizes of the line in the figure
_SHARES = {f"mean_{kind}": kind.removesuffix("_s") for kind in KINDS if kind != "hidden_s"}
_PARTS: Mapping[str, tuple[str, ...]] = {  # measured kinds of time, and those predicted kinds that they are
    "compute": ("compute", "injected"),
    "transfer": ("transfer",),
    "wait": ("bubble", "imbalance", "jitter"),
    "copy": ("copy",),
    "offload": ("offload",),
}
Record = dict[str, Any]
Recorded = Sequence[tuple[Predicted, pd.DataFrame]]  # predictions of cases, with their launches
Measured = tuple[Record, list[Row]]  # a row of `models`, and its cases


def models(
    run: Run,
    points: Sequence[Row],
    times: Mapping[str, Sample],
    phases: pd.DataFrame,
    *,
    asked: Sequence[int] | None,
    sharing: Collection[str],
) -> dict[str, list[Record]]:
    """Return the rows of the frames `FITTED`: of series that compare sizes, then of swept numbers.

    `phases` is the table of `efficiency.phases`, `asked` are sizes to predict (None: no laws at all), and
    `sharing` the cases whose ranks share cores.
    """
    found: dict[str, list[Record]] = {name: [] for name in FITTED}
    room = MOST_SERIES
    every = () if asked is None else chain(_series(points, asked, sharing), _curves(run, points))
    for model, measured in every:
        if not room and not model["scaling"]:
            break
        if not room and not model["refusal"]:
            model["refusal"] = f"only the first {MOST_SERIES} series are modelled"
        model["model"] = len(found["models"]) + 1
        found["models"].append(model)
        if not model["refusal"]:
            room -= 1
            key = {name: model[name] for name in ("model", "series", "unit")}
            for name, row in _fitted(model, measured, _observed(model, measured, times, phases), run.seed):
                found[name].append(key | row)
    return found


def _timed(points: Iterable[Row]) -> list[Row]:
    return [point for point in points if point.step_s and 0 < point.step_s.value < math.inf]


def _series(points: Sequence[Row], asked: Sequence[int], sharing: Collection[str]) -> Iterator[Measured]:
    """Yield every series that compares sizes, in ranks, or in cores where their threads differ."""
    for series, members in by_series(p for p in points if p.scaling in {"strong", "weak"}).items():
        measured = _timed(members)
        threads = {point.threads for point in measured}
        alike = len(threads) == 1
        sizes = [point.ranks if alike else point.cores for point in measured]
        distinct, refusal = len(set(sizes)), ""
        if distinct < FEWEST_SIZES:
            refusal = f"{plural(distinct, 'size')} measured; a law needs at least {FEWEST_SIZES}"
        elif distinct < len(sizes):
            refusal = "several cases have the same size, so time depends on more than size"
        elif any(point.case in sharing for point in measured):
            refusal = "ranks share cores, so times do not carry over to larger machines"
        yield (
            {
                "series": series,
                "scaling": members[0].scaling,
                "unit": "ranks" if alike else "cores",
                "threads": threads.pop() if alike else 1,
                "sizes": sizes,
                "asked": sorted(set(asked)),
                "refusal": refusal,
            },
            measured,
        )


def _curves(run: Run, points: Sequence[Row]) -> Iterator[Measured]:
    """Yield cases that differ in one swept number, and what follows it, if a law can be fitted to them."""
    cases = of_cases(run)
    measured = [point for point in _timed(points) if point.case in cases]
    known = set[frozenset[str]]()  # of numbers that follow each other one is enough
    for name in swept_numbers(run, cases):
        decided = following(name, list(cases.values())).difference(SIZES)
        alike = partial(_apart_from, cases, name, decided)
        for members in grouped([] if name in SIZES else measured, alike).values():
            by_value = {float(cases[point.case][name]): point for point in members}
            these = frozenset(point.case for point in members)
            if len(by_value) < len(members) or len(members) < FEWEST_SIZES or these in known:
                continue
            if min(by_value) >= 1 and max(by_value) <= _LARGEST:
                known.add(these)
                yield (
                    {
                        "series": JOINT.join(in_common([point.label.split(JOINT) for point in members])),
                        "scaling": "",
                        "unit": name.rpartition(".")[2],
                        "threads": None,
                        "sizes": sorted(by_value),
                        "asked": (),
                        "refusal": "",
                    },
                    [by_value[value] for value in sorted(by_value)],
                )


def _apart_from(cases: Mapping[str, Case], name: str, decided: Collection[str], point: Row) -> object:
    return apart_from(cases[point.case], name, decided)


def _observed(
    model: Record, measured: Sequence[Row], times: Mapping[str, Sample], phases: pd.DataFrame
) -> dict[str, Observed]:
    """Return the times of the step, of its phases in their order, and of kinds of time, at every size."""
    cases = [point.case for point in measured]
    samples = [times[case] for case in cases]
    scale = np.array([sample.value for sample in samples])
    sizes = np.array(model["sizes"], np.float64)

    def observed(launches: Sequence[Any]) -> Observed:
        medians = scale if launches is whole else np.array([np.median(seconds) for seconds in launches])
        return Observed(sizes=sizes, times=medians, scale=scale, launches=launches)

    whole = [np.array(sample.medians or (sample.value,)) for sample in samples]
    found = {"step": observed(whole)}
    table = phases[phases["case"].isin(cases)]
    kinds = table[[*_SHARES]].div(table["steps"], axis=0).rename(columns=_SHARES)
    launch = [table["case"], table["repeat"]]
    by_phase = kinds.sum(axis=1).groupby([table["phase"].astype(str), *launch]).sum()
    by_kind = kinds.groupby(launch).sum().stack().reorder_levels([2, 0, 1])
    for parts in (by_phase, by_kind):
        of_parts = {}
        for part, rows in parts.groupby(level=0, sort=False):
            by_case = {case: np.asarray(of_case, np.float64) for case, of_case in rows.groupby(level=1)}
            each = observed([by_case.get(case, np.zeros(1)) for case in cases])
            if np.isfinite(each.times).all() and (each.times > _SMALL * scale).any():
                of_parts[str(part)] = each
        found |= dict(sorted(of_parts.items(), key=_place) if parts is by_phase else of_parts)
    return found


def _place(item: tuple[str, Any]) -> tuple[int, str]:
    return PHASES.index(item[0]) if item[0] in PHASES else len(PHASES), item[0]


def _fitted(
    model: Record, measured: Sequence[Row], observed: Mapping[str, Observed], run_seed: int
) -> Iterator[tuple[str, Record]]:
    """Yield the rows of laws by frame, and add the first bottleneck to the row of the model."""
    step, base = observed["step"], next((each for each in measured if each.base and model["scaling"]), None)
    largest = max(step.sizes)
    ahead = np.array(model["asked"] or [2 * largest, REACH * largest], np.float64)
    line = np.unique(np.geomspace(min(step.sizes), REACH * largest, _CURVE).round())
    space, seed = Space(laws(model["scaling"]), step.sizes, step.scale), _seed(model, run_seed)
    expected_s: Any = None
    predicted: dict[str, float] = {}
    for part, own in observed.items():
        whole = own is step
        choice = fit(space, own.times[None], likely(len(own.sizes), own.scatter))
        bootstrap = Bootstrap(own, choice, seed if whole else (*seed, *part.encode()))
        sizes = np.concatenate([ahead, line]) if whole else ahead
        expected_s = choice.at(sizes)[0] if whole else expected_s
        yield "laws", {"part": part, **_law(own, choice)}
        times = bootstrap.at(space, choice, sizes, expected_s[: len(sizes)])
        for place, (size, time_s) in enumerate(zip(sizes.tolist(), times, strict=True)):
            beyond = size > REACH * largest * (1 + 1e-9)
            known = Estimate(value=time_s.value) if beyond else time_s
            yield (
                "law_predictions",
                {
                    "part": part,
                    "size": size,
                    "cores": size * model["threads"] if model["scaling"] else None,
                    "time_s": known,
                    "efficiency": _efficiency(model, base, size, known) if whole else None,
                    "beyond": beyond,
                    "curve": place >= len(ahead),
                },
            )
        predicted[part] = times[len(ahead) - 1].value
        if whole:
            for row in named_laws(model["scaling"], own, bootstrap.times):
                yield "named_laws", row
    phases = [part for part in observed if part != "step" and part not in _SHARES.values()]
    if base and phases:
        model |= _bottleneck(
            model, {part: (observed[part], predicted[part]) for part in phases}, base, ahead[-1]
        )


def _seed(model: Record, seed: int) -> tuple[int, ...]:
    named = () if model["scaling"] else model["unit"].encode()
    return (seed, *named, *model["series"].encode())


def _efficiency(model: Record, base: Row | None, size: float, time_s: Estimate) -> Estimate | None:
    if base is None or not time_s.value > 0:
        return None
    ideal = base.step_s.value
    if model["scaling"] == "strong":
        ideal *= base.cores / (size * model["threads"])
    low, high = time_s.low, time_s.high
    ends = {"low": ideal / high, "high": ideal / low} if low and high else {}
    return Estimate(value=ideal / time_s.value, **ends)


def _law(observed: Observed, choice: Choice) -> Record:
    """Return the law chosen for a part, and how well it fits."""
    law, weights = choice.law(), observed.scale**-2
    mean = np.average(observed.times, weights=weights)
    spread = float(np.sum(weights * (observed.times - mean) ** 2))
    squares, scatter = float(choice.residuals[0]) ** 2, observed.scatter
    free = max(len(observed.sizes) - law.parameters, 1)
    variance, fits = squares / free, True
    if scatter.degrees and variance > max(_MISFIT, _OBVIOUS * scatter.size) ** 2:
        from scipy.special import fdtrc  # noqa: PLC0415 - reports seldom need it

        fits = (
            bool(scatter.size) and float(fdtrc(free, scatter.degrees, variance / scatter.size**2)) > _MISFIT_P
        )
    seconds = choice.coefficients[0, : len(law.terms)].tolist()
    forms = [term.text for term in law.terms]
    return {
        "law": law.kind,
        "formula": " + ".join(form.format(duration(s)) for form, s in zip(forms, seconds, strict=True)),
        "terms": forms,
        "coefficients_s": seconds,
        "r_squared": None if law.terms == (CONSTANT,) or not spread > 0 else 1 - squares / spread,
        "error": float(choice.errors[0]),
        "misfit": math.sqrt(variance),
        "scatter": scatter.launch if scatter.degrees else None,
        "fits": fits,
        "measured_s": observed.times.tolist(),
    }


def _bottleneck(
    model: Record, phases: Mapping[str, tuple[Observed, float]], base: Row, size: float
) -> Record:
    """Return the phase that will cost most beyond ideal scaling, and its shares there and as measured."""
    smallest = model["sizes"].index(base.cores // model["threads"])
    shrunk = model["sizes"][smallest] / size if model["scaling"] == "strong" else 1.0
    excess = {part: time_s - own.times[smallest] * shrunk for part, (own, time_s) in phases.items()}
    first = max(excess, key=lambda part: excess[part])
    total = sum(time_s for _, time_s in phases.values())
    if not excess[first] > _SMALL * total:
        return {"first": "none"}
    largest = sum(float(own.times[-1]) for own, _ in phases.values())
    return {
        "first": first,
        "first_share": phases[first][1] / total,
        "first_measured_share": float(phases[first][0].times[-1]) / largest if largest else None,
    }


def agreement(one: Estimate, other: Estimate) -> str:
    """Return agree or disagree, by whether two predictions allow the same time.

    One without interval allows its value alone; where neither has one, the answer is empty.
    """
    if one.low is None and other.low is None:
        return ""
    (low, high), (least, most) = (
        (each.value if each.low is None else each.low, each.value if each.high is None else each.high)
        for each in (one, other)
    )
    return "agree" if low <= most and least <= high else "disagree"


def held(recorded: Recorded) -> Iterator[dict[str, Any]]:
    """Yield predictions beside the launches of their cases."""
    for made, launches in recorded:
        steps_s = launches["step_s"]
        measured_s = float(steps_s.median())
        yield {
            **{name: getattr(made, name) for name in ("case", "ranks", "made_unix_s", "low_s", "high_s")},
            "predicted_s": made.step_s,
            "measured_s": measured_s,
            "error": made.step_s / measured_s - 1,
            "launches": len(steps_s),
            "inside": int(steps_s.between(made.low_s, made.high_s).sum()),
        }


def kinds(recorded: Recorded, times: Mapping[str, Sequence[Row]]) -> Iterator[dict[str, Any]]:
    """Yield every kind of time of those cases, predicted and, by the `times` of their phases, measured."""
    for made, _ in recorded:
        for kind, parts in _PARTS.items():
            predicted_s = sum(made.losses_s.get(part, 0.0) for part in parts)
            measured_s = _measured_s(times.get(made.case, ()), kind)
            if predicted_s or measured_s:
                yield {"case": made.case, "kind": kind, "predicted_s": predicted_s, "measured_s": measured_s}


def _measured_s(times: Sequence[Row], kind: str) -> float | None:
    """Return the time of a kind in all phases; None without phases, and where clocks do not tell the kind."""
    unclear = kind in ("transfer", "wait") and any(time.wait_or_transfer_s for time in times)
    return None if unclear or not times else sum(getattr(time, f"{kind}_s") for time in times)


def recorded(run: Run) -> Recorded:
    """Return the last prediction of each case that was made before its first launch, and its launches."""
    folder = run.path.absolute().parent
    if not prediction_file(folder).exists():
        return []
    good = run.cases[(run.cases["status"] == "ok") & (run.cases["step_s"] > 0)]
    launches = {str(case): rows for case, rows in good.groupby("case", observed=True)}
    last: dict[str, Predicted] = {}
    for each in sorted(read(folder), key=lambda each: each.made_unix_s):
        if each.case in launches and each.made_unix_s < launches[each.case]["started_unix_s"].min():
            last[each.case] = each
    return [(each, launches[case]) for case, each in last.items()]


def score(predictions: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield how well predictions held; nothing without any."""
    if predictions:
        errors = [abs(each.error) for each in predictions]
        yield {
            "cases": len(predictions),
            "largest_ranks": max(each.ranks for each in predictions),
            "mean_error": sum(errors) / len(errors),
            "largest_error": max(errors),
            **{name: sum(getattr(each, name) for each in predictions) for name in ("launches", "inside")},
        }


def score_in(reports: Path, machine: tuple[str, str]) -> Row | None:
    """Return how well predictions held of all runs in a folder on a machine: its host and processor."""
    found: list[Row] = []
    for folder in predicted_suites(reports):
        for document in folder.glob("*/run.json"):
            try:
                run = load(document.parent)
            except ResultsError:
                continue
            if machine_of(run) == machine:
                found += (row("predicted", **each) for each in held(recorded(run)))
    return next((row("prediction_score", **each) for each in score(found)), None)


def machine_of(run: Run) -> tuple[str, str]:
    """Return host and processor of the machine that a run was started on."""
    return str(run.machine.get("host", "")), str(run.machine.get("cpu_model", ""))
