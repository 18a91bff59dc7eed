"""Which plan is fastest, and why the others are not: plans of the same work on the same ranks, compared."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pscale.analysis.phases import CallTime, PhaseTime
from pscale.analysis.scaling import Point
from pscale.analysis.stats import Estimate, Sample, ratio

_VAGUE = 10.0  # upper bound over lower bound
_SMALL = 0.01  # of the step: a smaller loss is not worth a name
# Fields in which cases of the same work differ:
_OF_A_NAME = ("id", "label", "series", "base", "scaling", "plan")

LOSSES = {
    "exchange": "exchange",
    "bubble": "the bubble",
    "wait": "wait",
    "copies": "copies",
    "offload": "waiting for what is offloaded",
    "extra": "extra computing",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """One plan among those of the same work. The losses are shares of its step, means over ranks.

    `bubble` is wait for other stages of a pipeline, `wait` all other; `extra` is computing beyond that of the
    plan in the group that computes least, 0 where ranks share cores: what computing takes is then chance.
    """

    case: str
    group: str  # what the plans of a group have in common, in the words of their labels
    plan: str  # the rest of the label
    place: int  # from 1; plans that cannot be told apart from the fastest share the first
    tied: bool  # with the fastest, by the interval of their ratio
    vague: bool  # that interval is so wide that it says nothing
    ratio: Estimate  # step time over that of the fastest
    compute: float
    exchange: float
    bubble: float
    wait: float
    copies: float
    offload: float  # waiting for what lies in a file
    extra: float

    @property
    def loss(self) -> str:
        """The largest of the losses, or nothing."""
        largest = max(LOSSES, key=lambda name: float(getattr(self, name)))
        return largest if getattr(self, largest) >= _SMALL else ""


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Where the steps of all cases went; in the cases `sharing`, ranks share cores."""

    phases: Sequence[PhaseTime]
    calls: Sequence[CallTime]
    sharing: Collection[str]

    @cached_property
    def by_case(self) -> dict[str, list[PhaseTime]]:
        """The phases of each case."""
        found: dict[str, list[PhaseTime]] = {}
        for time in self.phases:
            found.setdefault(time.case, []).append(time)
        return found

    @cached_property
    def stages(self) -> dict[str, float]:
        """The wait of a step for other stages of a pipeline, by case."""
        return waits_for_stages(self.calls)


def ranking(
    planned: Mapping[str, Mapping[str, Any]],
    points: Sequence[Point],
    times: Mapping[str, Sample],
    spent: Spent,
) -> tuple[Place, ...]:
    """Rank every group of two or more plans that were measured on the same work, fastest first."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        if point.step_s and point.case in spent.by_case and _trains(planned.get(point.case)):
            groups.setdefault(_work(planned[point.case]), []).append(point)
    found: list[Place] = []
    for members in sorted(groups.values(), key=lambda members: members[0].ranks):
        plans = {json.dumps(planned[point.case].get("plan"), sort_keys=True) for point in members}
        if len(plans) > 1:
            found += _placed(members, times, spent)
    return tuple(found)


def _trains(planned: Mapping[str, Any] | None) -> bool:
    """Tell whether a case is known, and has a step whose time is worth comparing: not bare collectives."""
    return planned is not None and planned.get("model", {}).get("kind") != "collectives"


def waits_for_stages(calls: Sequence[CallTime]) -> dict[str, float]:
    """Return the wait of a step in messages between the stages of a pipeline, by case."""
    waits: dict[str, float] = {}
    for call in calls:
        if call.axis == "pp":
            waits[call.case] = waits.get(call.case, 0.0) + call.wait_s
    return waits


def _work(planned: Mapping[str, Any]) -> str:
    """Return what two cases share that differ in their plans alone: micro-batches are part of a plan."""
    same = {name: value for name, value in planned.items() if name not in _OF_A_NAME}
    train = {name: value for name, value in planned.get("train", {}).items() if name != "micro_batches"}
    return json.dumps(same | {"train": train}, sort_keys=True)


def _placed(members: Sequence[Point], times: Mapping[str, Sample], spent: Spent) -> list[Place]:
    order = sorted(members, key=lambda point: times[point.case].value)
    common = _common([point.label for point in members])
    stages = spent.stages
    of = {point.case: spent.by_case[point.case] for point in members}
    least = min(sum(time.compute_s for time in own) for own in of.values())
    places = []
    for number, point in enumerate(order, 1):
        own = of[point.case]
        step_s, compute_s = own[0].step_s, sum(time.compute_s for time in own)
        slower, waited = ratio(times[point.case], times[order[0].case]), sum(time.wait_s for time in own)
        bubble = min(waited, stages.get(point.case, 0.0))
        vague = slower.low is not None and slower.high is not None and slower.high > _VAGUE * slower.low
        tied = number > 1 and not vague and slower.low is not None and slower.low <= 1
        places.append(
            Place(
                case=point.case,
                group=" · ".join(common),
                plan=" · ".join(part for part in point.label.split(" · ") if part not in common),
                place=1 if tied else number,
                tied=tied,
                vague=vague,
                ratio=slower,
                compute=compute_s / step_s,
                exchange=sum(time.transfer_s + time.together_s for time in own) / step_s,
                bubble=bubble / step_s,
                wait=(waited - bubble) / step_s,
                copies=sum(time.copy_s for time in own) / step_s,
                offload=sum(time.offload_s for time in own) / step_s,
                extra=0.0 if point.case in spent.sharing else (compute_s - least) / step_s,
            )
        )
    return places


def _common(labels: Sequence[str]) -> list[str]:
    """Return the parts that all labels have, in order."""
    parts = [label.split(" · ") for label in labels]
    return [part for part in parts[0] if all(part in other for other in parts)]
