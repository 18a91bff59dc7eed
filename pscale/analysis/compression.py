"""What compression of gradients saves and costs: bytes, time and loss beside those without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pscale.analysis.alike import Planned, alike, loss_more, sent_bytes, step_ratio
from pscale.analysis.phases import CallTime, PhaseTime
from pscale.analysis.scaling import Point

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
    planned: Planned,
    points: Sequence[Point],
    phases: Sequence[PhaseTime],
    calls: Sequence[CallTime],
) -> tuple[Compressed, ...]:
    """Return all measured cases that are, or have beside them, one whose gradients are compressed."""
    found: list[Compressed] = []
    if all(case.get("plan", {}).get("compression", "none") == "none" for case in planned.values()):
        return ()  # as in most runs, and cases to group may be thousands
    for members in alike(planned, points, {"plan": _OF_COMPRESSION}):
        kinds = {point.case: str(planned[point.case]["plan"].get("compression", "none")) for point in members}
        if any(kind != "none" for kind in kinds.values()):
            plain = next((point for point in members if kinds[point.case] == "none"), None)
            found += [_compared(point, kinds[point.case], plain, phases, calls) for point in members]
    return tuple(found)


def _compared(
    point: Point, kind: str, plain: Point | None, phases: Sequence[PhaseTime], calls: Sequence[CallTime]
) -> Compressed:
    sent = sent_bytes(point, calls)
    sent_plain = sent_bytes(plain, calls) if plain else 0.0
    in_sync = [time.compute_s for time in phases if time.case == point.case and time.phase == "sync"]
    return Compressed(
        case=point.case,
        compression=kind,
        sent_bytes=sent,
        sent_ratio=sent / sent_plain if sent_plain else None,
        step_ratio=step_ratio(point, plain),
        sync_compute_s=sum(in_sync),
        loss_last=point.loss_last,
        loss_more=loss_more(point, plain),
    )
