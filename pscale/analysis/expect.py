"""What is expected of a run and what was measured: demands, reference values, the verdict on a series."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

from pscale.analysis import messages
from pscale.analysis.columns import Row, row
from pscale.analysis.difference import more_rounds
from pscale.analysis.efficiency import LOSSES, exceeds
from pscale.analysis.frames import Run, grouped, is_program, workloads
from pscale.analysis.messages import SMALL, VAGUE
from pscale.analysis.resources import GRAVE, explains, lost
from pscale.analysis.scaling import bases as bases_of
from pscale.analysis.scaling import by_series
from pscale.analysis.stats import Estimate, Sample
from pscale.analysis.text import percent
from pscale.config.expressions import condition
from pscale.config.metrics import METRICS, conversion, depends_on_time, unit_of
from pscale.config.workload import IMPORTED, numeric
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
    interference: Mapping[str, Row] | None = None,
    entries: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[Row, ...]:
    """Return the verdict on everything that is expected of the run, for every case that it is about.

    Another round of launches takes `round_s`; `interference` is by case, and `entries` are expected instead
    of what the suite does.
    """
    bases, figures = bases_of(points), _figure_names(run)
    by_case = {(merit.case, merit.figure): merit for merit in (*merits, *_of_launches(run))}
    launches = {point.case: point.launches for point in points}
    series = {point.series for point in points if point.coarse_s}  # of which ratios are as coarse
    coarse = {(merit.case, merit.figure) for merit in merits if merit.coarse}
    for point in points:
        metrics = (*(_OF_BASES if point.series in series else ()), *(_OF_STEPS if point.coarse_s else ()))
        coarse |= {(point.case, metric) for metric in metrics}
    return tuple(
        _withheld(verdict, bases, interference or {})
        or verdict._replace(to_decide=_to_decide(verdict, launches.get(verdict.case, 0), round_s, coarse))
        for entry in (run.document.get("expect") or [] if entries is None else entries)
        for verdict in _verdicts(entry, points, trees, figures, by_case)
    )


def _figure_names(run: Run) -> list[str]:
    """Return the names of all figures that workloads of a run have."""
    return [*dict.fromkeys(name for workload in workloads(run).values() for name in workload.figures)]


def _of_launches(run: Run) -> Iterator[Row]:
    """Yield the times that launches took as a whole, by case."""
    good = run.good
    for metric in _OF_LAUNCHES:
        for case, times in good.dropna(subset=[metric]).groupby("case")[metric]:
            value = Sample(medians=tuple(times)).estimate
            yield row("merits", case=str(case), figure=metric, value=value, unit=unit_of(metric))


def _withheld(verdict: Row, bases: Mapping[str, str], interference: Mapping[str, Row]) -> Row | None:
    """Return the verdict as undecided where others took the cores of a time or rate, or those of its base."""
    cases = (verdict.case, bases.get(verdict.case, verdict.case))
    taken = [each for each in map(interference.get, cases) if each and each.share >= GRAVE]
    if not taken or verdict.value is None or not depends_on_time(verdict.metric, verdict.unit):
        return None
    worst = max(taken, key=lambda each: each.share)
    text = f"undecided: {messages.interference(worst.cause, worst.share)}"
    return verdict._replace(answer="undecided", text=text)


def _to_decide(found: Row, launches: int, round_s: float, coarse: Collection[tuple[str, str]]) -> str:
    """Return what would narrow the interval until it lies on one side of a bound that it contains."""
    known = found.value
    if found.answer != "undecided" or known is None:
        return ""
    if known.low is None or known.high is None:
        return "several launches"
    if (found.case, found.metric) in coarse:
        return "more digits in the program's output"
    sides = [
        each for each in (found.lower, found.upper) if each is not None and known.low < each < known.high
    ]
    if not sides:
        return messages.rounds_needed(None, round_s)
    scale = math.log if known.low > 0 else float
    low, value, high = map(scale, (known.low, known.value, known.high))
    nearest = min(map(scale, sides), key=lambda side: abs(value - side))
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
    lower, upper = (
        next((entry[name] for name in names if entry.get(name) is not None), None)
        for names in (("at_least", "lower"), ("at_most", "upper"))
    )
    signs = " and ".join(
        f"{sign} {side:g}" for sign, side in (("≥", lower), ("≤", upper)) if side is not None
    )
    unit = f" {entry['unit']}" if entry.get("unit") not in (None, "1") else ""
    where = " ".join((entry.get("where") or "").split())
    return row(
        "expectations",
        metric=metric,
        unit=entry.get("unit") or unit_of(metric),
        demand=f"{entry.get('metric')} {signs}{unit}" + (f" where {where}" if where else ""),
        answer="unknown",
        reference=entry.get("value"),
        lower=lower,
        upper=upper,
        **dict.fromkeys(("case", "label", "text", "to_decide"), ""),
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
    of_case, found = grouped(merits, lambda merit: merit.case), []
    for point in points:
        name = names[point.case]
        for metric, worse in _KEPT.items():
            known = measured(metric, point, None, unit_of(metric))
            if known is not None and not (metric == "efficiency" and point.base):
                found.append(bounded(name, metric, known, worse, unit_of(metric)))
        for merit in of_case.get(point.case, []):
            if merit.better and (merit.value.value or merit.launches > 1):  # of one zero nothing is known
                worse = 1 if merit.better == "lower" else -1
                found.append(bounded(name, merit.figure, merit.value, worse, merit.unit))
    return tuple(found)


def case_names(points: Sequence[Row]) -> dict[str, str]:
    """Return what a file calls each case: its label, or its id where labels are not unique."""
    labels = Counter(point.label for point in points)
    return {point.case: point.label if labels[point.label] == 1 else point.case for point in points}


def bounded(name: str, metric: str, known: Estimate, worse: int, unit: str) -> Reference:
    """Return a value with its bound on the side, +1 or -1, on which it would be worse."""
    far, end = ALONE * abs(known.value), known.high if worse > 0 else known.low
    if end is not None:
        far = max(REACH * abs(end - known.value), LEAST * abs(known.value))
    value, bound = (float(f"{each:.4g}") for each in (known.value, known.value + worse * far))
    lower, upper = (bound, None) if worse < 0 else (None, bound)
    return Reference(case=name, metric=metric, value=value, lower=lower, upper=upper, unit=unit)


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


def with_cases(run: Run, entries: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return entries of a file, by the places where they were written, with the cases that each is about."""
    found, known = [], [*METRICS, *_figure_names(run)]
    for written, entry in entries.items():
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


# The verdict on a series

EVIDENCE = (  # frames that decide what costs a case most
    *("phases", "ranks", "efficiency", "lost_time", "axes", "threads", "stragglers", "interference"),
    "expectations",
)
_GAINED = 0.05  # computation above 1 by more: efficiency leaves out slow steps that lost time counts
_TELLING = 0.25  # of the largest loss: what is waited for one rank, if that is to explain it
_WORST_FIRST = ("falls short", "undecided", "holds")

Evidence = Mapping[str, Mapping[str, Sequence[Row]]]  # rows by frame and case


def verdicts(
    points: Iterable[Row], planned: Mapping[str, Mapping[str, Any]], evidence: Evidence, round_s: float
) -> Iterator[Row]:
    """Yield the verdict on every series, with its sentences; another round of launches takes `round_s`."""
    for series, members in by_series(points).items():
        facts = row("verdicts", series=series, **_facts(members, evidence, round_s))
        of_case = {name: rows.get(facts.case, ()) for name, rows in evidence.items()}
        yield _worded(facts, of_case, planned.get(facts.case, {}))


def _worded(facts: Row, of_case: Mapping[str, Sequence[Row]], planned: Mapping[str, Any]) -> Row:
    late, slowest, idle = (next(iter(of_case[name]), None) for name in ("stragglers", "ranks", "threads"))
    if late and facts.cause and late.step_share < _TELLING * facts.share.value:
        late = None
    meaning = ""
    if facts.cause and (facts.firm or facts.share.low is None):
        meaning = messages.meaning(facts, late, slowest, lost(idle) if idle else "")
    advice = ""
    if facts.case and not facts.interference and facts.share is None:
        runs = is_program(planned) and planned["workload"]["command"] != IMPORTED
        advice = messages.WATCH if runs else ""
    elif facts.cause and facts.firm and not facts.injected:
        advice = messages.advice(facts.cause, facts.axis, planned)
    return facts._replace(
        scaling_text=messages.scaling(facts),
        loss_text=messages.main_loss(facts) if facts.case else "",
        meaning=meaning,
        advice=advice,
    )


def _facts(members: Sequence[Row], evidence: Evidence, round_s: float) -> dict[str, Any]:
    """Return the facts on the largest measured case of a series."""
    good = [point for point in members if point.step_s]
    if not good:
        begun = any(point.status != "pending" for point in members)
        reason = next((point.reason for point in members if point.reason), "")
        return {"case": "", "label": "", "status": "failed" if begun else "pending", "reason": reason}
    point = max(good, key=lambda each: (each.cores, each.ranks))
    base = next((each for each in members if each.base), None)
    larger = [each for each in members if each.cores > point.cores and not each.step_s]
    of_case = {name: rows.get(point.case, ()) for name, rows in evidence.items()}
    copied = ("case", "label", "scaling", "injected", "status", "ranks", "threads", "step_s", "samples_per_s")
    facts = {name: getattr(point, name) for name in (*copied, "efficiency", "base")}
    facts |= {"one_size": len(good) == 1, "larger": len(larger), "firm": True}
    facts["parallel"] = next((tree.parallel for tree in of_case["efficiency"]), None)
    if base:
        facts |= {f"base_{name}": getattr(base, name) for name in ("label", "status", "ranks", "threads")}
        facts["base_step_s"] = base.step_s and base.step_s.value
    if larger:
        facts |= {f"missing_{name}": getattr(larger[-1], name) for name in ("ranks", "threads", "status")}
    facts |= _answer(of_case["expectations"], point.efficiency)
    found = _loss(of_case, point.launches, round_s)
    both = (*of_case["interference"], *evidence["interference"].get(base.case if base else "", ()))
    taken = max(both, key=lambda each: each.share, default=None)
    if taken and explains(taken, found["share"].value if found else 0.0) and not point.injected:
        return facts | {"interference": taken.cause, "interference_share": taken.share}
    return facts | found


def _answer(expectations: Iterable[Row], efficiency: Estimate | None) -> dict[str, Any]:
    """Return the target of the efficiency and the answer: of several that which is furthest from holding."""
    about = [each for each in expectations if each.metric == "efficiency" and each.answer in _WORST_FIRST]
    if about:
        worst = min(about, key=lambda each: _WORST_FIRST.index(each.answer))
        return {"answer": worst.answer, "demand": bounds(worst), "to_decide": worst.to_decide}
    low, high = (efficiency.low, efficiency.high) if efficiency else (None, None)
    vague = low is not None and high is not None and high - low > VAGUE
    return {"answer": "undecided" if vague else ""}


def _loss(of_case: Mapping[str, Sequence[Row]], launches: int, round_s: float) -> dict[str, Any]:
    """Return the main loss, its place, and whether its interval tells it from others; empty if unknown."""
    if not of_case["lost_time"]:
        return {}
    (lost_time,), ranks, axes = of_case["lost_time"], of_case["ranks"], of_case["axes"]
    shares: dict[str, float] = {name: share.value for name in LOSSES if (share := getattr(lost_time, name))}
    beyond = {**shares, "scaling": _of_typical_ranks(lost_time, ranks)}
    cause, second = sorted(beyond, key=lambda name: -beyond[name])[:2]
    share = getattr(lost_time, cause)
    firm, rounds = exceeds(lost_time, cause, second, beyond[second], launches)
    slow_steps = any(
        tree.computation and tree.computation.value > 1 + _GAINED for tree in of_case["efficiency"][:1]
    )
    if share.value < SMALL:
        return {"cause": "", "share": share, "slow_steps": slow_steps, "firm": True}
    of_axis = [(getattr(each, cause) or each.parallel, each.axis) for each in axes if cause in _OF_AXES]
    facts = {
        "cause": cause,
        "share": share,
        "slow_steps": slow_steps,
        "axis": min(of_axis, key=itemgetter(0), default=("", ""))[1],
        "axes": len(axes),
        "phase": max(of_case["phases"], key=_OF_PHASES[cause]).phase if cause in _OF_PHASES else "",
        "firm": firm,
    }
    if firm or share.low is None:
        return facts
    if getattr(lost_time, second).value >= SMALL:
        facts |= {"second": second, "second_share": getattr(lost_time, second)}
    return facts | {"cause_to_decide": messages.rounds_needed(rounds, round_s) if rounds else ""}


def _of_typical_ranks(lost_time: Row, ranks: Sequence[Row]) -> float:
    """Return what a typical rank computes beyond the base case: the rest is a slow rank's, and imbalance."""
    if not ranks:
        return float(lost_time.scaling.value)
    useful, scaling = lost_time.useful.value, lost_time.scaling.value
    useful += lost_time.threads.value if lost_time.threads else 0.0
    typical = (useful + scaling + lost_time.imbalance.value) / (1 + ranks[0].excess)
    return float(min(scaling, max(0.0, typical - useful)))


def _ranks_s(phase: Row) -> float:
    """Return the wait that is no network's; all of it where that is not known."""
    return float(phase.wait_s if phase.ideal_wait_s is None else phase.ideal_wait_s)


def _network_s(phase: Row) -> float:
    """Return what an ideal network would save; transfer alone where that is not known."""
    return float(phase.transfer_s + phase.wait_s - _ranks_s(phase))


_OF_AXES = ("serialisation", "transfer")  # losses of which every axis has its factor
_OF_PHASES = {  # losses that are in some phases more than in others
    "serialisation": _ranks_s,
    "transfer": _network_s,
    "wait_or_transfer": lambda phase: phase.wait_or_transfer_s,
}
