"""When the actions of a pipeline start if each takes a given time: how long stages idle, and a picture."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pscale.config import Case
from pscale.nn import counts
from pscale.parallel import recompute
from pscale.parallel.pipeline import stage_units, timetable
from pscale.parallel.schedule import Action, Timetable

# In units of a forward: a product of matrices costs as much in each of its two gradients.
UNITS = {"forward": 1, "backward": 2, "input": 1, "weight": 1}
_LETTERS = {"forward": "F", "backward": "B", "input": "B", "weight": "W"}


class Slot(NamedTuple):
    """An action and when it runs."""

    action: Action
    start: float
    stop: float


def in_units(action: Action) -> int:
    """Return the time of an action where all parts cost the same, in units of a forward."""
    return UNITS[action.kind]


def time_slots(timetable: Timetable, time: Callable[[Action], float] = in_units) -> list[list[Slot]]:
    """Return when each stage does what, if `time` says how long actions take and messages take none."""
    waiting = [deque(timetable.actions(stage)) for stage in range(timetable.stages)]
    slots: list[list[Slot]] = [[] for _ in waiting]
    done: dict[Action, float] = {}
    while any(waiting):
        moved = False
        for stage, actions in enumerate(waiting):
            while actions:
                source = timetable.source(actions[0])
                if source is not None and source not in done:
                    break
                action = actions.popleft()
                free = slots[stage][-1].stop if slots[stage] else 0.0
                start = free if source is None else max(free, done[source])
                slots[stage].append(Slot(action, start, start + time(action)))
                done[action] = start + time(action)
                moved = True
        assert moved, f"the stages wait for each other: {[actions[0] for actions in waiting if actions]}"
    return slots


def bubble(slots: Sequence[Sequence[Slot]]) -> float:
    """Return the idle time over that of the busiest stage's work: (wall - ideal) / ideal."""
    wall = max(stage[-1].stop for stage in slots)
    ideal = max(sum(slot.stop - slot.start for slot in stage) for stage in slots)
    return wall / ideal - 1


def pipeline_bubble(case: Case) -> float | None:
    """Return the idle share of the stages' time, with time proportional to FLOPs; None without stages."""
    drawn = timetable(case.plan, case.train.micro_batches)
    if drawn.stages == 1:
        return None
    flops = [cost for _, cost in counts.unit_flops(case.model)]
    again = recompute.unit_flops(case)
    thirds, more = Counter[int](), Counter[int]()  # FLOPs of a forward, and those that backward does again
    for stage in range(drawn.stages):
        for part, units in stage_units(case.model, case.plan, stage).items():
            thirds[part] = sum(flops[unit] for unit in units) * case.train.batch
            more[part] = 3 * sum(again.get(unit, 0) for unit in units)

    def time(action: Action) -> int:
        extra = more[action.part] if action.kind in ("backward", "input") else 0
        return UNITS[action.kind] * thirds[action.part] + extra

    slots = time_slots(drawn, time)
    wall = max(stage[-1].stop for stage in slots)
    return 1 - sum(slot.stop - slot.start for stage in slots for slot in stage) / (drawn.stages * wall)


def table(timetable: Timetable, columns: int | None = None) -> str:
    """Draw the schedule as text: a row for each stage, time to the right in units of a forward.

    F is a forward, B a backward, W the gradients of matrices where they are deferred; the number is that of
    the micro-batch, the letter that of the chunk. A schedule wider than `columns` characters is drawn in
    parts, below each other, and the time at which each begins.
    """
    slots = time_slots(timetable)
    width = max(len(_label(timetable, slot.action)) for stage in slots for slot in stage)
    wall = int(max(stage[-1].stop for stage in slots))
    names = [f"stage {stage}" for stage in range(timetable.stages)]
    rows = []
    for stage in slots:
        cells = ["·".ljust(width)] * wall
        for slot in stage:
            cells[int(slot.start)] = _label(timetable, slot.action).ljust(width)
            for rest in range(int(slot.start) + 1, int(slot.stop)):
                cells[rest] = "─" * width
        rows.append(cells)
    margin = len(names[-1]) + 2
    room = wall if columns is None else max(1, (columns - margin + 1) // (width + 1))
    parts = []
    for first in range(0, wall, room):
        begin = [f"{'time':{margin}}{first}"] if wall > room else []
        drawn = [
            f"{name:{margin}}{' '.join(cells[first : first + room])}"
            for name, cells in zip(names, rows, strict=True)
        ]
        parts.append("\n".join(line.rstrip() for line in [*begin, *drawn]))
    return "\n\n".join(parts)


def _label(timetable: Timetable, action: Action) -> str:
    chunk = chr(ord("a") + action.part // timetable.stages) if timetable.chunks > 1 else ""
    return f"{_LETTERS[action.kind]}{action.micro}{chunk}"
