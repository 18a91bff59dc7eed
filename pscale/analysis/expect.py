"""What is expected of a run against what was measured, and reference values that later runs are held to."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pscale.analysis import messages
from pscale.analysis.columns import Row, row
from pscale.analysis.difference import more_rounds
from pscale.analysis.frames import Run, grouped
from pscale.analysis.interference import GRAVE
from pscale.analysis.merits import figure_names
from pscale.analysis.stats import Estimate, Sample
from pscale.analysis.wording import percent
from pscale.config.expressions import condition
from pscale.config.metrics import METRICS, conversion, depends_on_time, unit_of
from pscale.config.workload import numeric
from pscale.errors import UsageError

_OF_TREE = {
    "pe": "parallel",
    "lb": "load_balance",
    "comm_e": "communication",
    "ser_e": "serialisation",
    "te": "transfer",
    "comp": "computation",
    "ge": "overall",
}


Answer = Literal["holds", "undecided", "falls short", "unknown"]  # unknown: nothing was measured
_OF_STEPS = ("step_s", "samples_per_s", "tokens_per_s")
_OF_FLOPS = ("gflops", "peak_fraction")  # over the step time, whose interval is theirs
_OF_LAUNCHES = ("startup_s", "wall_s")
_OF_BASES = ("efficiency", "speedup")  # 1 for the base of a series, whatever was measured


def bounds(demand: Row) -> str:
    """Return the bounds of a share in words, such as "≥ 85.0%"."""
    factor = conversion(demand.unit, unit_of(demand.metric)) or 1.0
    signs = (("≥", demand.lower), ("≤", demand.upper))
    return " and ".join(f"{sign} {percent(bound * factor)}" for sign, bound in signs if bound is not None)


def expectations(
    run: Run,
    points: Sequence[Row],
    trees: Mapping[str, Row],
    round_s: float,
    merits: Sequence[Row] = (),
    *,
    entries: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[Row, ...]:
    """Return the verdict on everything that is expected of the run, for every case that it is about.

    Another round of launches takes `round_s`; `entries` are expected instead of what the suite does.
    """
    figures = frozenset(figure_names(run))
    by_case = {(merit.case, merit.figure): merit for merit in (*merits, *_of_launches(run))}
    launches = {point.case: point.launches for point in points}
    coarse = {(merit.case, merit.figure) for merit in merits if merit.coarse}
    series = {point.series for point in points if point.coarse_s}  # of which ratios are as coarse
    coarse |= {(point.case, metric) for point in points if point.series in series for metric in _OF_BASES}
    coarse |= {(point.case, metric) for point in points if point.coarse_s for metric in _OF_STEPS}
    return tuple(
        verdict._replace(to_decide=_to_decide(verdict, launches.get(verdict.case, 0), round_s, coarse))
        for entry in (run.document.get("expect") or [] if entries is None else entries)
        for verdict in _verdicts(entry, points, trees, figures, by_case)
    )


def _of_launches(run: Run) -> Iterator[Row]:
    """Yield the times that launches took as a whole, by case."""
    good = run.cases[run.cases["status"] == "ok"]
    for metric in _OF_LAUNCHES:
        for case, times in good.dropna(subset=[metric]).groupby("case")[metric]:
            value, unit = Sample(medians=tuple(times)).estimate, unit_of(metric)
            yield row(
                "merits",
                case=str(case),
                figure=metric,
                value=value,
                unit=unit,
                better="lower",
                launches=len(times),
            )


def withheld(
    found: Iterable[Row], bases: Mapping[str, str], interference: Mapping[str, Row]
) -> tuple[Row, ...]:
    """Return verdicts, undecided where others took the cores of a time or rate, or those of its base.

    `bases` are those of efficiencies, by case, and `interference` is by case.
    """
    return tuple(
        each._replace(
            answer="undecided",
            text=f"undecided: {messages.interference(taken.cause, taken.share)}",
            to_decide="",
        )
        if depends_on_time(each.metric, each.unit)
        and each.value is not None
        and (taken := _grave(each, bases, interference))
        else each
        for each in found
    )


def _grave(found: Row, bases: Mapping[str, str], interference: Mapping[str, Row]) -> Row | None:
    cases = (found.case, bases.get(found.case, found.case))
    taken = [each for each in map(interference.get, cases) if each and each.share >= GRAVE]
    return max(taken, key=lambda each: each.share, default=None)


def _to_decide(found: Row, launches: int, round_s: float, coarse: Collection[tuple[str, str]]) -> str:
    """Return what would narrow the interval until it lies on one side of a bound that it contains."""
    known = found.value
    if found.answer != "undecided" or known is None:
        return ""
    if known.low is None or known.high is None:
        return "several launches"
    if (found.case, found.metric) in coarse:
        return "more digits in the program's output"
    bounds = [
        each for each in (found.lower, found.upper) if each is not None and known.low < each < known.high
    ]
    if not bounds:
        return messages.rounds_needed(None, round_s)
    low, value, high, *bounds = (
        map(math.log, (known.low, known.value, known.high, *bounds))
        if known.low > 0
        else (known.low, known.value, known.high, *bounds)
    )
    nearest = min(bounds, key=lambda bound: abs(value - bound))
    half_width = value - low if nearest < value else high - value
    return messages.rounds_needed(more_rounds(half_width, abs(value - nearest), launches), round_s)


def _verdicts(
    entry: Mapping[str, Any],
    points: Sequence[Row],
    trees: Mapping[str, Row],
    figures: Collection[str],
    merits: Mapping[tuple[str, str], Row],
) -> Iterator[Row]:
    about, asked = entry.get("cases"), _asked(entry)
    if asked.metric not in METRICS and asked.metric not in figures:
        yield asked._replace(
            text=f"unknown metric; the metrics are {', '.join([*METRICS, *sorted(figures)])}"
        )
        return
    if asked.metric in figures:
        units_ = {merit.unit for (_, figure), merit in merits.items() if figure == asked.metric}
        if entry.get("unit") and None in {conversion(unit, entry["unit"]) for unit in units_}:
            yield asked._replace(text=f"unknown: {asked.metric} is in {', '.join(units_)}")
            return
        asked = asked._replace(unit=entry.get("unit") or next(iter(units_), ""))
    chosen = [
        point
        for point in points
        if (about is None or point.case in about) and not (point.base and asked.metric in _OF_BASES)
    ]
    if not chosen:
        yield asked._replace(text="no case of the run fits the condition")
    for point in chosen:
        of_case = asked._replace(case=point.case, label=point.label)
        merit = merits.get((point.case, asked.metric))
        if merit:
            value: Estimate | None = merit.value.times(conversion(merit.unit, asked.unit) or 1.0)
        else:
            value = measured(asked.metric, point, trees.get(point.case), asked.unit)
        if value is None:
            why = "not measured" if point.status == "ok" else f"the case is {point.status}"
            yield of_case._replace(text=f"unknown: {why}")
        else:
            yield _judged(of_case, value)


def _asked(entry: Mapping[str, Any]) -> Row:
    """Return a demand before it is judged: `at_least` and `lower` both name the lower bound."""
    metric = str(entry.get("metric"))

    def bound(*names: str) -> float | None:
        return next((entry[name] for name in names if entry.get(name) is not None), None)

    return row(
        "expectations",
        metric=metric,
        unit=entry.get("unit") or unit_of(metric),
        demand=_demand(entry, bound("at_least", "lower"), bound("at_most", "upper")),
        case="",
        label="",
        answer="unknown",
        value=None,
        reference=entry.get("value"),
        lower=bound("at_least", "lower"),
        upper=bound("at_most", "upper"),
        text="",
        to_decide="",
    )


def _judged(asked: Row, value: Estimate) -> Row:
    """Decide by the interval: undecided where it allows both, and for a time or rate of one launch."""
    lower = -math.inf if asked.lower is None else asked.lower
    upper = math.inf if asked.upper is None else asked.upper
    low, high = (value.value if bound is None else bound for bound in (value.low, value.high))
    answer: Answer = "undecided"
    if lower <= low and high <= upper:
        answer = "holds"
    elif high < lower or low > upper:
        answer = "falls short"
    if value.low is None and depends_on_time(asked.metric, asked.unit):
        return asked._replace(answer="undecided", value=value, text="undecided: one launch, no interval")
    alone = answer if value.low is not None else f"{answer} (value without an interval)"
    text = "undecided: the interval includes the bound" if answer == "undecided" else alone
    return asked._replace(answer=answer, value=value, text=text)


def measured(metric: str, point: Row, tree: Row | None, unit: str) -> Estimate | None:
    """Return a metric of a case in `unit`; None where it was not measured, or is not a number."""
    source: Any = tree if metric in _OF_TREE else point
    found = getattr(source, _OF_TREE.get(metric, metric), None)
    value = found if isinstance(found, Estimate) or found is None else Estimate(value=float(found))
    if value and metric in _OF_FLOPS and point.step_s:
        value = point.step_s.rate(value.value * point.step_s.value)
    factor = conversion(unit_of(metric), unit)
    return value.times(factor) if factor and value and math.isfinite(value.value) else None


def _demand(entry: Mapping[str, Any], lower: float | None, upper: float | None) -> str:
    bounds = [("≥", lower), ("≤", upper)]
    demands = " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)
    unit = f" {entry['unit']}" if entry.get("unit") not in (None, "1") else ""
    where = " ".join((entry.get("where") or "").split())
    return f"{entry.get('metric')} {demands}{unit}" + (f" where {where}" if where else "")


LEAST, ALONE = 0.05, 0.10  # of the value: a bound is not nearer; the second where there is no interval
REACH = 1 + math.sqrt(2.0)  # intervals: two runs differ by 1.4, and all of the second one's is to hold
_KEPT = {"step_s": +1, "efficiency": -1, "loss_last": +1}  # metrics, and on which side they get worse
_FULL_ONLY = ("inject", "jitter", "ghost")  # as in suites, so that `rank` is not ambiguous
_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A value with its bound on the side on which it would be worse; `unit` is that of all."""

    case: str  # label, or id where labels are not unique
    metric: str
    value: float
    lower: float | None
    upper: float | None
    unit: str


def references(points: Sequence[Row], merits: Sequence[Row] = ()) -> tuple[Reference, ...]:
    """Return what later runs are held to, case by case in the order of the report.

    Of figures of merit those of which is known which values are better.

    A bound lies `REACH` times as far from the value as the interval reaches, `LEAST` of the value at least,
    and `ALONE` of it where there is no interval.
    """
    names = case_names(points)
    of_case = grouped(merits, lambda merit: merit.case)
    return tuple(
        found for point in points for found in _of_case(point, names[point.case], of_case.get(point.case, []))
    )


def case_names(points: Sequence[Row]) -> dict[str, str]:
    """Return what a file calls each case: its label, or its id where labels are not unique."""
    labels = Counter(point.label for point in points)
    return {point.case: point.label if labels[point.label] == 1 else point.case for point in points}


def _of_case(point: Row, name: str, merits: Sequence[Row]) -> Iterator[Reference]:
    for metric, worse in _KEPT.items():
        unit = unit_of(metric)
        known = measured(metric, point, None, unit)
        if known is not None and not (metric == "efficiency" and point.base):
            yield bounded(name, metric, known, worse, unit)
    for merit in merits:
        if merit.better and (merit.value.value or merit.launches > 1):  # of one zero nothing is known
            worse = 1 if merit.better == "lower" else -1
            yield bounded(name, merit.figure, merit.value, worse, merit.unit)


def bounded(name: str, metric: str, known: Estimate, worse: int, unit: str) -> Reference:
    """Return a value with its bound on the side, +1 or -1, on which it would be worse."""
    far = ALONE * abs(known.value)
    end = known.high if worse > 0 else known.low
    if end is not None:
        far = max(REACH * abs(end - known.value), LEAST * abs(known.value))
    bound = _rounded(known.value + worse * far)
    return Reference(
        case=name,
        metric=metric,
        value=_rounded(known.value),
        lower=bound if worse < 0 else None,
        upper=bound if worse > 0 else None,
        unit=unit,
    )


def about(run: Run, entry: Mapping[str, Any]) -> list[str]:
    """Return the cases of a run that an entry is about, by the label or id that it names or its condition.

    A condition has the names of the cases in `run.json`. Raises UsageError if it cannot be computed.
    """
    named, where = entry.get("case") or "", entry.get("where") or "true"
    return [
        case
        for case, planned in run.planned.items()
        if named in ("", planned.get("label"), case) and condition(where, _names(run, planned))
    ]


def with_cases(run: Run, entries: Sequence[Mapping[str, Any]], places: Sequence[str]) -> list[dict[str, Any]]:
    """Return entries of a file with the cases that each is about; `places` say where each was written."""
    found, known = [], [*METRICS, *dict.fromkeys(figure_names(run))]
    for entry, written in zip(entries, places, strict=True):
        if (metric := str(entry["metric"])) not in known:
            near = difflib.get_close_matches(metric, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"expected one of {', '.join(known)}"
            raise UsageError(f"{written}.metric: '{metric}' is not possible; {hint}")
        try:
            found.append({**entry, "cases": about(run, entry)})
        except UsageError as error:
            raise UsageError(f"{written}: {error}") from None
    return found


def _names(run: Run, planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a condition may name: the machine, fields, and `width` for `model.width` where clear."""
    machine = run.machine
    groups = [
        group for name, group in planned.items() if isinstance(group, Mapping) and name not in _FULL_ONLY
    ]
    counts = Counter(name for group in groups for name in group)
    clear = {name: value for group in groups for name, value in group.items() if counts[name] == 1}
    here = {
        "cores": machine.get("cores", 0),
        "nodes": machine.get("nodes", 1),
        "memory_gib": (machine.get("memory_bytes") or 0) / _GIB,
    }
    params = planned.get("workload", {}).get("params", {})
    return {**here, **clear, **planned, **{name: numeric(value) for name, value in params.items()}}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
