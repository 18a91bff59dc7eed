"""What compression of gradients saves and costs: bytes, time and loss beside those without it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pscale.analysis.phases import CallTime, PhaseTime
from pscale.analysis.scaling import Point

_OF_A_NAME = ("id", "label", "series", "base")
_OF_COMPRESSION = ("compression", "compression_share", "compression_rank")


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """One case among those that differ in compression alone; the ratios are to the one without any."""

    case: str
    compression: str
    sent_bytes: float  # payload of a rank and step, of all its calls: mean
    sent_ratio: float | None
    step_ratio: float | None
    sync_compute_s: float  # encoding, decoding and adding up, where there is compression
    loss_last: float | None
    loss_more: float | None  # beyond that without compression, over it


def compressed(
    planned: Mapping[str, Mapping[str, Any]],
    points: Sequence[Point],
    phases: Sequence[PhaseTime],
    calls: Sequence[CallTime],
) -> tuple[Compressed, ...]:
    """Return all measured cases that are, or have beside them, one whose gradients are compressed."""
    groups: dict[str, list[Point]] = {}
    for point in points:
        if point.step_s and "plan" in planned.get(point.case, {}):
            groups.setdefault(_work(planned[point.case]), []).append(point)
    found: list[Compressed] = []
    for members in groups.values():
        kinds = {point.case: str(planned[point.case]["plan"].get("compression", "none")) for point in members}
        if any(kind != "none" for kind in kinds.values()):
            plain = next((point for point in members if kinds[point.case] == "none"), None)
            found += [_compared(point, kinds[point.case], plain, phases, calls) for point in members]
    return tuple(found)


def _work(planned: Mapping[str, Any]) -> str:
    """Return what two cases share that differ in compression alone."""
    plan = {name: value for name, value in planned["plan"].items() if name not in _OF_COMPRESSION}
    same = {name: value for name, value in planned.items() if name not in _OF_A_NAME}
    return json.dumps(same | {"plan": plan}, sort_keys=True)


def _compared(
    point: Point, kind: str, plain: Point | None, phases: Sequence[PhaseTime], calls: Sequence[CallTime]
) -> Compressed:
    sent = _sent(point.case, calls)
    sent_plain = _sent(plain.case, calls) if plain else 0.0
    in_sync = [time.compute_s for time in phases if time.case == point.case and time.phase == "sync"]
    more = None
    if plain and plain.loss_last and point.loss_last is not None:
        more = point.loss_last / plain.loss_last - 1
    return Compressed(
        case=point.case,
        compression=kind,
        sent_bytes=sent,
        sent_ratio=sent / sent_plain if sent_plain else None,
        step_ratio=point.step_s.value / plain.step_s.value
        if plain and plain.step_s and point.step_s
        else None,
        sync_compute_s=sum(in_sync),
        loss_last=point.loss_last,
        loss_more=more,
    )


def _sent(case: str, calls: Sequence[CallTime]) -> float:
    return sum(call.bytes for call in calls if call.case == case)
