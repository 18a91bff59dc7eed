"""What numbers of 16 bits save and cost: bytes, memory, time and loss beside those of more bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pscale.analysis.alike import Planned, alike, loss_more, sent_bytes, step_ratio
from pscale.analysis.memory import Memory
from pscale.analysis.phases import CallTime
from pscale.analysis.scaling import Point
from pscale.number import narrow

_WIDEST_LAST = ("float32", "float64")  # what the others are set beside, the first that is there


@dataclass(frozen=True, kw_only=True)
class FewerBits:
    """One case among those that differ in precision alone; the ratios are to the one of float32."""

    case: str
    precision: str
    reduce: str
    sent_bytes: float  # payload of a rank and step, of all its calls: mean
    sent_ratio: float | None
    held_bytes: int | None  # by the fullest rank
    held_ratio: float | None
    step_ratio: float | None
    loss_last: float | None
    loss_more: float | None  # beyond that of float32, over it


def fewer_bits(
    planned: Planned, points: Sequence[Point], memory: Sequence[Memory], calls: Sequence[CallTime]
) -> tuple[FewerBits, ...]:
    """Return all measured cases that are, or have beside them, one of 16 bits."""
    if not any(narrow(case.get("model", {}).get("dtype", "")) for case in planned.values()):
        return ()  # as in most runs, and cases to group may be thousands
    held = {each.case: sum(each.expected.values()) for each in memory if each.expected}
    found: list[FewerBits] = []
    choice = {"model": ("dtype",), "precision": ("reduce", "loss_scale", "initial_scale", "growth_interval")}
    for members in alike(planned, points, choice):
        types = {point.case: str(planned[point.case]["model"]["dtype"]) for point in members}
        if any(narrow(dtype) for dtype in types.values()):
            wide = [point for dtype in _WIDEST_LAST for point in members if types[point.case] == dtype]
            found += [_beside(point, planned, wide[0] if wide else None, held, calls) for point in members]
    return tuple(found)


def _beside(
    point: Point, planned: Planned, plain: Point | None, held: dict[str, int], calls: Sequence[CallTime]
) -> FewerBits:
    sent, mine = sent_bytes(point, calls), held.get(point.case)
    sent_plain = sent_bytes(plain, calls) if plain else 0.0
    held_plain = held.get(plain.case) if plain else None
    case = planned[point.case]
    return FewerBits(
        case=point.case,
        precision=str(case["model"]["dtype"]),
        reduce=str(case["precision"].get("reduce", "wire")),
        sent_bytes=sent,
        sent_ratio=sent / sent_plain if sent_plain else None,
        held_bytes=mine,
        held_ratio=mine / held_plain if mine and held_plain else None,
        step_ratio=step_ratio(point, plain),
        loss_last=point.loss_last,
        loss_more=loss_more(point, plain),
    )
