"""Which plan is fastest, and why the others are not: plans of the same work on the same ranks, compared.

None is called slower where the interval of its ratio to the fastest allows the opposite.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pscale.analysis.columns import Row, row
from pscale.analysis.deciding import in_words, more_rounds
from pscale.analysis.frames import by_case, grouped, shared_work
from pscale.analysis.stats import Estimate, Sample, ratio
from pscale.analysis.steps import waits_for_stages
from pscale.analysis.wording import in_common
from pscale.config import JOINT

EQUAL = 0.05  # of a step time: where the interval is within, the order does not matter
_SAME = 1.005  # times the fastest: that is not slower, however certain
_SMALL = 0.01  # of the step: a smaller loss is not worth a name

LOSSES = {
    "exchange": "exchange",
    "bubble": "the bubble",
    "wait": "wait",
    "copies": "copies",
    "offload": "stalls for offloaded data",
    "extra": "extra compute",
}


Answer = Literal["fastest", "equal", "slower", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A step time beside the fastest: what is known of their order."""

    ratio: Estimate
    answer: Answer  # equal: within `EQUAL`
    rounds: int | None = None  # so many more should decide; None: decided, or no number of them is known to

    def to_decide(self, round_s: float) -> str:
        """Return what would decide, where a round takes `round_s`; empty where it is decided."""
        if self.answer != "undecided":
            return ""
        if self.ratio.low is None:
            return "several launches"
        return in_words(self.rounds, round_s)


def standing(times: Sample, fastest: Sample) -> Standing:
    """Set a step time beside the fastest of the same work."""
    known = ratio(times, fastest)
    if times is fastest:
        return Standing(ratio=known, answer="fastest")
    if known.low is None or known.high is None:
        return Standing(ratio=known, answer="undecided")
    if known.low > 1 and known.value > _SAME:
        return Standing(ratio=known, answer="slower")
    if max(known.high, 1 / known.low) <= 1 + EQUAL:
        return Standing(ratio=known, answer="equal")
    return Standing(ratio=known, answer="undecided", rounds=_more_rounds(known, times, fastest))


def _more_rounds(known: Estimate, times: Sample, fastest: Sample) -> int | None:
    """Return how many more rounds should tell which is faster, or that they are equal."""
    assert known.low is not None, "it is known how launches scatter"
    apart = abs(math.log(known.value))
    half_width, rounds = math.log(known.value / known.low), min(times.launches, fastest.launches)
    return more_rounds(half_width, max(apart, math.log1p(EQUAL) - apart), rounds)


def main_loss(plan: Row) -> str:
    """Return the largest loss of a plan in a ranking; empty where none is worth a name."""
    largest = max(LOSSES, key=lambda name: float(getattr(plan, name)))
    return largest if getattr(plan, largest) >= _SMALL else ""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Where the steps of all cases went; in the cases `sharing`, ranks share cores."""

    phases: Sequence[Row]
    calls: Sequence[Row]
    sharing: Collection[str]

    @cached_property
    def by_case(self) -> dict[str, list[Row]]:
        """The phases of each case."""
        return by_case(self.phases)

    @cached_property
    def stages(self) -> dict[str, float]:
        """The wait of a step for other stages of a pipeline, by case."""
        return waits_for_stages(self.calls)


def ranking(
    planned: Mapping[str, Mapping[str, Any]],
    points: Sequence[Row],
    times: Mapping[str, Sample],
    spent: Spent,
) -> tuple[Row, ...]:
    """Rank every group of two or more plans that were measured on the same work, fastest first."""
    measured = (point for point in points if point.step_s and point.case in spent.by_case)
    trained = (point for point in measured if _trains(planned.get(point.case)))
    of_a_plan: dict[str, Collection[str]] = {"train": ("micro_batches",)}
    groups = grouped(trained, lambda point: shared_work(planned[point.case], "scaling", "plan", **of_a_plan))
    found: list[Row] = []
    for members in sorted(groups.values(), key=lambda members: members[0].ranks):
        plans = {json.dumps(planned[point.case].get("plan"), sort_keys=True) for point in members}
        if len(plans) > 1:
            found += _placed(members, times, spent)
    return tuple(found)


def _trains(planned: Mapping[str, Any] | None) -> bool:
    """Tell whether a case is known, and has a step whose time is worth comparing: not bare collectives."""
    return planned is not None and planned.get("model", {}).get("kind") != "collectives"


def _placed(members: Sequence[Row], times: Mapping[str, Sample], spent: Spent) -> list[Row]:
    order = sorted(members, key=lambda point: times[point.case].value)
    common = in_common([point.label.split(JOINT) for point in members])
    stages = spent.stages
    of = {point.case: spent.by_case[point.case] for point in members}
    least = min(sum(time.compute_s for time in own) for own in of.values())
    places = []
    fastest, round_s = times[order[0].case], sum(point.wall_s or 0.0 for point in members)
    for number, point in enumerate(order, 1):
        own = of[point.case]
        step_s, compute_s = own[0].step_s, sum(time.compute_s for time in own)
        found, waited = standing(times[point.case], fastest), sum(time.wait_s for time in own)
        bubble = min(waited, stages.get(point.case, 0.0))
        places.append(
            row(
                "ranking",
                case=point.case,
                group=JOINT.join(common),
                plan=JOINT.join(part for part in point.label.split(JOINT) if part not in common),
                place=1 if found.answer == "equal" else number,
                answer=found.answer,
                ratio=found.ratio,
                to_decide=found.to_decide(round_s),
                rounds_to_decide=found.rounds,
                compute=compute_s / step_s,
                exchange=sum(time.transfer_s + time.wait_or_transfer_s for time in own) / step_s,
                bubble=bubble / step_s,
                wait=(waited - bubble) / step_s,
                copies=sum(time.copy_s for time in own) / step_s,
                offload=sum(time.offload_s for time in own) / step_s,
                extra=0.0 if point.case in spent.sharing else (compute_s - least) / step_s,
            )
        )
    return places
