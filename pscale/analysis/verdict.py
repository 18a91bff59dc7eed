"""The verdict on a series: how well its largest case scales, what costs it most, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from pscale.analysis import deciding, messages
from pscale.analysis.advice import Planned, advice
from pscale.analysis.answers import injection_warning
from pscale.analysis.columns import Row
from pscale.analysis.efficiency import LOSSES, exceeds, rounds_to_exceed
from pscale.analysis.expect import bounds
from pscale.analysis.frames import OfACase, by_case, is_program
from pscale.analysis.interference import explains
from pscale.analysis.scaling import by_series
from pscale.analysis.stats import Estimate
from pscale.analysis.threads import lost
from pscale.analysis.wording import duration, percent
from pscale.analysis.wording import rate as write_rate

VAGUE = 0.30  # an interval of an efficiency wider than this allows no verdict
_FIRM = 0.03  # half-width of an efficiency inside a step that is worth stating despite interference
_SMALL = 0.01  # a loss below this share of the step is not worth a cause
_GAINED = 0.05  # computation above 1 by more: efficiency leaves out slow steps that lost time counts
_TELLING = 0.25  # of the largest loss: what is waited for one rank, if that is to explain it

_EXPLAINED_BY_RANKS = ("imbalance", "serialisation")  # a rank stopped in a call prolongs the transfer
_OF_AXES = ("serialisation", "transfer")  # losses of which every axis has its factor
_EVERYWHERE = {  # losses that are in no phase more than in others
    "scaling": (
        LOSSES["scaling"],
        "The same work takes more core time than in the base case, "
        "as when cores share memory bandwidth, caches or clock.",
    ),
    "copy": ("copying into and out of communication buffers", ""),
    "offload": (LOSSES["offload"], "The file is not ready when the step needs it."),
    "unaccounted": ("time outside all phases", ""),
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What to read first about one series: every number in it is a cell of a table of the report."""

    series: str
    case: str  # the largest that was measured; empty without any
    efficiency: str
    answer: Literal["", "holds", "undecided", "falls short"] = ""  # to what is expected; vague: undecided
    demand: str = ""  # what is expected of the efficiency, such as "≥ 85.0%"
    to_decide: str = ""  # what would, where that is undecided
    interference: str = ""  # what others took from the cores: said first, and instead of a cause
    loss: str = ""
    meaning: str = ""  # of the loss, or its origin
    cause: str = ""  # a share of the frame `lost_time`, or empty
    firm: bool = True  # whether intervals tell the cause from other losses
    cause_to_decide: str = ""  # what would, where they do not and a number of rounds does
    advice: str = ""  # what to do about it
    compares_sizes: bool = True

    @property
    def sentences(self) -> str:
        """All that is said of the series; without sizes to compare, what costs most comes first."""
        lost = " ".join(filter(None, (self.loss, self.meaning)))
        said = (self.efficiency, lost) if self.compares_sizes else (lost, self.efficiency)
        disturbed = instead(self.interference) if self.interference else ""
        return " ".join(filter(None, (disturbed, *said, self.advice)))


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a step of one case costs and where."""

    phases: Sequence[Row]
    ranks: Sequence[Row]
    axes: Sequence[Row]
    lost_time: Sequence[Row] = ()
    efficiency: Sequence[Row] = ()
    stragglers: Sequence[Row] = ()
    threads: Sequence[Row] = ()
    interference: Sequence[Row] = ()
    expectations: Sequence[Row] = ()


def verdicts(
    points: Iterable[Row],
    planned: Mapping[str, Planned],
    findings: Mapping[str, Iterable[OfACase]],
    round_s: float,
) -> tuple[Verdict, ...]:
    """Return the verdict on every series; `findings` are those of `Costs` on all cases, by name."""
    of_case: dict[str, Mapping[str, Sequence[Any]]] = {name: by_case(all_) for name, all_ in findings.items()}

    def costs(case: str) -> Costs:
        return Costs(**{name: own.get(case, ()) for name, own in of_case.items()})

    series = by_series(points).items()
    return tuple(verdict(name, own, costs, planned, round_s) for name, own in series)


def verdict(
    series: str,
    points: Sequence[Row],
    costs: Callable[[str], Costs],
    planned: Mapping[str, Planned],
    round_s: float,
) -> Verdict:
    """Return the verdict on the points of one series, given the costs and the settings of its cases."""
    good = [point for point in points if point.step_s]
    if not good:
        return Verdict(series=series, case="", efficiency=_nothing(points))
    largest = max(good, key=lambda point: (point.cores, point.ranks))
    own, base = costs(largest.case), next((point for point in points if point.base), largest)
    asked = _asked(own.expectations)
    found = Verdict(
        series=series,
        case=largest.case,
        answer=_answer(asked, largest.efficiency),
        demand=bounds(asked) if asked else "",
        to_decide=asked.to_decide if asked else "",
        efficiency="",
        compares_sizes=largest.scaling != "throughput",
    )
    said = _efficiency(largest, points, good, found)
    taken = max(
        (*own.interference, *costs(base.case).interference), key=lambda each: each.share, default=None
    )
    main = _largest_loss(own, largest.launches, round_s, of_program=is_program(planned.get(largest.case, {})))
    cause, firm = main.cause, main.firm
    if taken and explains(taken, main.share) and not largest.injected:
        return replace(
            found, efficiency=said, interference=messages.interference(taken), loss=_inside(own.efficiency)
        )
    axis = _costliest(own.axes, cause).axis if own.axes and cause in _OF_AXES else ""
    known = "" if largest.injected or not firm else advice(cause, axis, planned.get(largest.case, {}))
    found = replace(
        found,
        efficiency=said,
        loss=main.text,
        meaning=main.meaning,
        cause=cause,
        firm=firm,
        cause_to_decide=main.to_decide,
        advice=known,
    )
    return _with_injection(found, largest) if largest.injected else found


def _with_injection(verdict: Verdict, point: Row) -> Verdict:
    """Say in the first sentence which delays were injected, unless the name of the series does."""
    if not verdict.compares_sizes and point.injected in verdict.series:
        return verdict
    return replace(verdict, efficiency=f"{injection_warning(point)} {verdict.efficiency}")


def _asked(expectations: Iterable[Row]) -> Row | None:
    """Return what is expected of the efficiency: of several demands the one that is furthest from holding."""
    order = ("falls short", "undecided", "holds")
    found = [each for each in expectations if each.metric == "efficiency" and each.answer in order]
    return min(found, key=lambda each: order.index(each.answer), default=None)


def _answer(asked: Row | None, known: Estimate | None) -> Any:
    if asked is not None:
        return asked.answer
    return "undecided" if known and known.low is not None and _vague(known) else ""


def _vague(known: Estimate) -> bool:
    return known.low is not None and known.high is not None and known.high - known.low > VAGUE


def instead(interference: str) -> str:
    """Say what others took, which is said instead of a cause."""
    return (
        f"Disturbed: {interference}, so these times are not the program's alone. "
        "Free the machine and measure again."
    )


def _inside(trees: Sequence[Row]) -> str:
    """Say how efficient steps were inside, where that is firm although the machine was not its own."""
    known = next((tree.parallel for tree in trees), None)
    if known is None or known.low is None or known.high is None or known.high - known.low > 2 * _FIRM:
        return ""
    return f"Within a step, parallel efficiency is {percent(known.value)}{interval(known)}."


def interval(known: Estimate) -> str:
    """Return the interval of a share in words; empty without one."""
    if known.low is None or known.high is None:
        return ""
    if known.stated is None:
        return " (95% interval too wide to state)"
    return f" (95% interval {percent(known.low)} to {percent(known.high)})"


def _nothing(points: Sequence[Row]) -> str:
    if all(point.status == "pending" for point in points):
        return "Nothing has been measured yet."
    return "Nothing was measured: every launch failed. The failed launches are listed with their reasons."


def _efficiency(largest: Row, points: Sequence[Row], good: Sequence[Row], verdict: Verdict) -> str:
    base = next((point for point in points if point.base), None)
    if largest.scaling == "throughput":
        return f"At {size(largest)} {_speed(largest)}."
    if base is None or base.step_s is None:
        failed = f"{base.label}: {base.status}" if base else "none"
        return (
            f"No speed-up or efficiency, because the base case ({failed}) was not measured; "
            f"at {size(largest)} {_speed(largest)}{_larger(largest, points)}."
        )
    if len(good) == 1:
        return (
            f"Scaling is unknown, because only one size was measured ({size(largest)}, {_rate(largest)})"
            f"{_larger(largest, points)}."
        )
    if largest.efficiency is None:
        return f"The efficiency at {size(largest)} is unknown."
    judged = f"{_judged(largest, largest.efficiency, size(base), verdict)}{_larger(largest, points)}."
    return f"{judged} {deciding.sentence(verdict.to_decide)}" if verdict.to_decide else judged


def _larger(largest: Row, points: Sequence[Row]) -> str:
    """Return how many cases are larger than the largest that was measured; empty for none."""
    missing = [point for point in points if point.cores > largest.cores and not point.step_s]
    if not missing:
        return ""
    return f"; {len(missing)} larger {'case has' if len(missing) == 1 else 'cases have'} no result"


def _judged(largest: Row, known: Estimate, base: str, verdict: Verdict) -> str:
    """Say how efficient the largest case is, and whether it meets its target."""
    known_to = interval(known) or " (no interval: one launch per case)"
    value = f"{largest.scaling} scaling is {percent(known.value)} efficient relative to {base}{known_to}"
    match verdict.answer:
        case "undecided" if verdict.demand:
            return f"Undecided: at {size(largest)}, {value}; the target is {verdict.demand}"
        case "undecided":
            return (
                f"Undecided: at {size(largest)}, {value}; "
                f"an interval wider than {100 * VAGUE:.0f} percentage points allows no verdict"
            )
        case "holds":
            return f"At {size(largest)}, {value}, which meets the target ({verdict.demand})"
        case "falls short":
            return f"At {size(largest)}, {value}, which misses the target ({verdict.demand})"
    return f"At {size(largest)}, {value}"


class _Loss(NamedTuple):
    """The main loss: a share of the frame `lost_time`, or empty; a sentence; its share of the step."""

    cause: str
    text: str
    share: float
    firm: bool = True
    meaning: str = ""
    to_decide: str = ""


def _largest_loss(costs: Costs, launches: int, round_s: float, *, of_program: bool) -> _Loss:
    """Return what is lost most, and whether its interval tells it from other losses."""
    if not costs.lost_time:
        advised = " To see it, record MPI calls: `--set workload.watch=true`." if of_program else ""
        return _Loss("", f"The main loss is unknown, because steps have no breakdown.{advised}", 0.0)
    (row,) = costs.lost_time
    shares: dict[str, float] = {name: share.value for name in LOSSES if (share := getattr(row, name))}
    beyond = {**shares, "scaling": _of_typical_ranks(row, costs.ranks)}
    cause, second = sorted(beyond, key=lambda name: -beyond[name])[:2]
    if shares[cause] < _SMALL:
        return _Loss("", f"No single loss reaches {_SMALL:.0%} of the step.", shares[cause])
    costs = replace(
        costs, stragglers=[each for each in costs.stragglers if each.step_share >= _TELLING * shares[cause]]
    )
    name, explanation = _explained(cause, costs)
    if costs.stragglers and cause not in _EXPLAINED_BY_RANKS:
        explanation = f"{explanation} {messages.straggler(costs.stragglers[0])}".lstrip()
    slow = any(tree.computation and tree.computation.value > 1 + _GAINED for tree in costs.efficiency[:1])
    share = f"{messages.loss(row, cause)} of the step{', slow steps included' if slow else ''}"
    if exceeds(row, cause, second, beyond[second]):
        return _Loss(cause, f"The main loss is {name}, {share}.", shares[cause], meaning=explanation)
    if getattr(row, cause).low is None:
        text = f"The main loss is undecided from one launch: probably {name} ({share})."
        return _Loss(cause, text, shares[cause], firm=False, meaning=explanation)
    ahead = ""
    if getattr(row, second).value >= _SMALL:
        ahead = f", ahead of {LOSSES[second]} ({messages.loss(row, second)})"
    rounds = rounds_to_exceed(row, cause, second, beyond[second], launches)
    need = deciding.in_words(rounds, round_s) if rounds else ""
    ending = deciding.sentence(need) if need else "No reasonable number of rounds would decide."
    text = f"The main loss is undecided: probably {name} ({share}){ahead}. {ending}"
    return _Loss(cause, text, shares[cause], firm=False, to_decide=need)


def _of_typical_ranks(lost: Row, ranks: Sequence[Row]) -> float:
    """Return what a typical rank computes beyond the base case: the rest is a slow rank's, and imbalance."""
    if not ranks:
        return float(lost.scaling.value)
    useful, scaling = lost.useful.value, lost.scaling.value
    useful += lost.threads.value if lost.threads else 0.0
    typical = (useful + scaling + lost.imbalance.value) / (1 + ranks[0].excess)
    return float(min(scaling, max(0.0, typical - useful)))


def _explained(cause: str, costs: Costs) -> tuple[str, str]:
    """Return the name of a loss with its place, and a sentence about its origin, which may be empty."""
    match cause:
        case "imbalance":
            return LOSSES[cause], _slowest(costs.ranks)
        case "threads":
            return LOSSES[cause], f"The cores of a rank lose {lost(costs.threads[0])}."
        case "serialisation":
            phase = max(costs.phases, key=_ranks_s).phase
            return f"serialisation in {phase}{_on_axis(costs.axes, 'serialisation')}", _by_turns(costs)
        case "transfer":
            place = max(costs.phases, key=_network_s).phase + _on_axis(costs.axes, "transfer")
            return f"transfer in {place}", "This is the communication itself, after every rank has arrived."
        case "wait_or_transfer":
            phase = max(costs.phases, key=lambda phase: phase.wait_or_transfer_s).phase
            return f"communication in {phase}", "The clocks cannot tell waiting from transfer here."
    return _EVERYWHERE[cause]


def _ranks_s(phase: Row) -> float:
    """Return the wait that is no network's; all of it where that is not known."""
    return float(phase.wait_s if phase.ideal_wait_s is None else phase.ideal_wait_s)


def _network_s(phase: Row) -> float:
    """Return what an ideal network would save; transfer alone where that is not known."""
    return float(phase.transfer_s + phase.wait_s - _ranks_s(phase))


def _by_turns(costs: Costs) -> str:
    """Say why ranks wait for each other though none is slower than the others for long."""
    if costs.stragglers:
        return messages.straggler(costs.stragglers[0])
    if costs.axes and _costliest(costs.axes, "serialisation").axis == "pp":
        return "The stages of a pipeline wait for each other's results in turn: the pipeline bubble."
    return "Different ranks are late in different steps: noise, not imbalance."


def _on_axis(axes: Sequence[Row], factor: str) -> str:
    """Name the axis that loses most by a factor, if there are several."""
    return f" on {_costliest(axes, factor).axis}" if len(axes) > 1 else ""


def _costliest(axes: Sequence[Row], factor: str) -> Row:
    return min(axes, key=lambda axis: getattr(axis, factor) or axis.parallel)


def _slowest(ranks: Sequence[Row]) -> str:
    if not ranks:
        return ""
    slow = ranks[0]
    host = f" on {slow.host}" if slow.host else ""
    return (
        f"Rank {slow.rank}{host} computes {percent(slow.excess)} longer than a typical rank, "
        f"mostly in {slow.phase}, and the others wait for it."
    )


def size(point: Row) -> str:
    """Return the size of a case in words."""
    ranks = f"{point.ranks} rank{'s' if point.ranks > 1 else ''}"
    return ranks if point.threads == 1 else f"{ranks} × {point.threads} threads"


def _speed(point: Row) -> str:
    """Say how fast a case is: of a program that is no training, how long its steps are."""
    if point.step_s and not point.samples_per_s:
        return f"a step takes {duration(point.step_s.value)}"
    return f"it trains {_rate(point)}"


def _rate(point: Row) -> str:
    if point.step_s and not point.samples_per_s:
        return f"{duration(point.step_s.value)} a step"
    rate = point.samples_per_s
    return f"{write_rate(rate.value)} samples/s" if rate else "at an unknown rate"
