"""Cases that differ in one choice alone, to be set beside the one without it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pscale.analysis.phases import CallTime
from pscale.analysis.scaling import Point

_OF_A_NAME = ("id", "label", "series", "base")
Planned = Mapping[str, Mapping[str, Any]]


def alike(
    planned: Planned, points: Sequence[Point], choice: Mapping[str, Collection[str]]
) -> list[list[Point]]:
    """Group the measured cases that differ in the members `choice` of their groups at most."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        if point.step_s and choice.keys() <= planned.get(point.case, {}).keys():
            groups.setdefault(_work(planned[point.case], choice), []).append(point)
    return list(groups.values())


def _work(case: Mapping[str, Any], choice: Mapping[str, Collection[str]]) -> str:
    same = {name: value for name, value in case.items() if name not in _OF_A_NAME}
    for group, members in choice.items():
        same[group] = {name: value for name, value in case[group].items() if name not in members}
    return json.dumps(same, sort_keys=True)


def sent_bytes(point: Point, calls: Sequence[CallTime]) -> float:
    """Return the payload of a rank and step, of all its calls: mean."""
    return sum(call.bytes for call in calls if call.case == point.case)


def step_ratio(point: Point, plain: Point | None) -> float | None:
    """Return the step time over that of `plain`."""
    return point.step_s.value / plain.step_s.value if plain and plain.step_s and point.step_s else None


def loss_more(point: Point, plain: Point | None) -> float | None:
    """Return by how much the last loss is beyond that of `plain`, over it."""
    if plain and plain.loss_last and point.loss_last is not None:
        return point.loss_last / plain.loss_last - 1
    return None
