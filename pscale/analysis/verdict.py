"""The verdict on a series, in facts: how well its largest case scales, and what costs it most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from pscale.analysis import messages
from pscale.analysis.columns import Row, row
from pscale.analysis.efficiency import LOSSES, exceeds, rounds_to_exceed
from pscale.analysis.expect import bounds
from pscale.analysis.frames import is_program
from pscale.analysis.interference import explains
from pscale.analysis.messages import SMALL, VAGUE
from pscale.analysis.scaling import by_series
from pscale.analysis.stats import Estimate
from pscale.analysis.threads import lost
from pscale.config.workload import IMPORTED

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
    slow_steps = any(_gained(tree) for tree in of_case["efficiency"][:1])
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
        "firm": exceeds(lost_time, cause, second, beyond[second]),
    }
    if facts["firm"] or share.low is None:
        return facts
    rounds = rounds_to_exceed(lost_time, cause, second, beyond[second], launches)
    if getattr(lost_time, second).value >= SMALL:
        facts |= {"second": second, "second_share": getattr(lost_time, second)}
    return facts | {"cause_to_decide": messages.rounds_needed(rounds, round_s) if rounds else ""}


def _gained(tree: Row) -> bool:
    return bool(tree.computation and tree.computation.value > 1 + _GAINED)


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
