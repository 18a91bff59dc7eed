"""What offload saves and costs: memory, bytes moved, stalls and step time beside those without it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pscale.analysis.frames import Run, records
from pscale.analysis.memory import Memory
from pscale.analysis.scaling import Point

_OF_A_NAME = ("id", "label", "series", "base")
_SUMS = ("offload_s", "offload_io_s", "offload_read_bytes", "offload_write_bytes")


@dataclass(frozen=True, kw_only=True)
class Offloaded:
    """One case among those that differ in offload alone; means over ranks and steps.

    The ratios are to the case without any.
    """

    case: str
    offload: str
    file_bytes: int | None  # of the fullest rank, not in its memory
    read_bytes: float
    written_bytes: float
    stall_s: float  # the step waited
    io_s: float  # the thread beside it read and wrote
    bytes_per_s: float | None  # both ways, over that
    memory_bytes: int | None  # of the fullest rank, measured
    memory_ratio: float | None
    step_ratio: float | None


def offloaded(run: Run, points: Sequence[Point], memory: Sequence[Memory]) -> tuple[Offloaded, ...]:
    """Return all measured cases that offload something, or have one beside them that does."""
    if all(case.get("plan", {}).get("offload", "none") == "none" for case in run.planned.values()):
        return ()  # as in most runs, and cases to group may be thousands
    groups: dict[str, list[Point]] = {}
    for point in points:
        if point.step_s and "plan" in run.planned.get(point.case, {}):
            groups.setdefault(_work(run.planned[point.case]), []).append(point)
    sums, held = _sums(run), {each.case: each for each in memory}
    found: list[Offloaded] = []
    for members in groups.values():
        kinds = {point.case: str(run.planned[point.case]["plan"].get("offload", "none")) for point in members}
        if any(kind != "none" for kind in kinds.values()):
            plain = next((point for point in members if kinds[point.case] == "none"), None)
            found += [_compared(point, kinds[point.case], plain, sums, held) for point in members]
    return tuple(found)


def _work(planned: Mapping[str, Any]) -> str:
    """Return what two cases share that differ in offload alone."""
    plan = {name: value for name, value in planned["plan"].items() if not name.startswith("offload")}
    same = {name: value for name, value in planned.items() if name not in _OF_A_NAME}
    return json.dumps(same | {"plan": plan}, sort_keys=True)


def _sums(run: Run) -> dict[str, Mapping[str, Any]]:
    """Return what was moved by a rank in a step, and how long that took, by case."""
    sums = run.phases.groupby("case", observed=True)[list(_SUMS)].sum()
    steps = run.seats.groupby("case", observed=True)["steps"].sum()
    means = sums.div(steps, axis=0).dropna().reset_index().astype({"case": str})
    return {row["case"]: row for row in records(means)}


def _compared(
    point: Point,
    kind: str,
    plain: Point | None,
    sums: Mapping[str, Mapping[str, Any]],
    held: Mapping[str, Memory],
) -> Offloaded:
    mean, memory = sums.get(point.case, dict.fromkeys(_SUMS, 0.0)), held.get(point.case)
    moved = mean["offload_read_bytes"] + mean["offload_write_bytes"]
    beside = held.get(plain.case) if plain else None
    measured = memory.measured_bytes if memory else None
    without = beside.measured_bytes if beside else None
    return Offloaded(
        case=point.case,
        offload=kind,
        file_bytes=memory.offloaded_bytes if memory else None,
        read_bytes=mean["offload_read_bytes"],
        written_bytes=mean["offload_write_bytes"],
        stall_s=mean["offload_s"],
        io_s=mean["offload_io_s"],
        bytes_per_s=moved / mean["offload_io_s"] if mean["offload_io_s"] else None,
        memory_bytes=measured,
        memory_ratio=measured / without if measured is not None and without else None,
        step_ratio=point.step_s.value / plain.step_s.value
        if plain and plain.step_s and point.step_s
        else None,
    )
