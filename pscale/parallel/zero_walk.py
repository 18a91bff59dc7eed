"""A step of sharded replicas on paper: how often weights are gathered, and how much is here for a while."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from pscale.config import Case
from pscale.parallel import division, pipeline
from pscale.parallel.recompute import Segment, segments
from pscale.parallel.shards import Shards

Kind = Literal["gather", "release", "leave", "drop", "claim", "ready"]


_KINDS: dict[str, tuple[Kind, ...]] = {  # of an action, for each of its units
    "forward": ("gather", "release"),
    "again": ("gather", "leave"),
    "backward": ("gather", "claim", "drop", "ready"),
    "input": ("gather", "claim", "drop"),
    "weight": ("claim", "ready"),
}


class Event(NamedTuple):
    """What the training loop tells the replicas of a unit; `claim`: it contributes to gradients."""

    kind: Kind
    unit: int


def events(case: Case, rank: int) -> list[Event]:
    """Return what happens to the units of `rank` in one step, in order."""
    stage = pipeline.stage_of(case.plan, rank)
    names, start = division.units(case, rank), 0
    parts: dict[int, list[Segment]] = {}
    for part, units in pipeline.stage_units(case.model, case.plan, stage).items():
        parts[part] = segments(case.plan, names[start : start + len(units)], start)
        start += len(units)
    table = pipeline.timetable(case.plan, case.train.micro_batches)
    return [
        event
        for action in table.actions(stage)
        for segment in (parts[action.part] if action.kind == "forward" else reversed(parts[action.part]))
        for event in _events(action.kind, segment)
        # A table of tokens is no matrix of a product: there is nothing to put off.
        if (action.kind, event.kind, names[event.unit]) != ("weight", "claim", "embedding")
    ]


def _events(action: str, segment: Segment) -> Iterator[Event]:
    """Yield what an action tells of the units of a segment.

    Of one that is computed again the last unit's weights stay: its backward comes next.
    """
    if action == "forward":
        yield from (Event(kind, unit) for unit in segment.units for kind in _KINDS[action])
        return
    again = segment.recomputed and action != "weight"
    if again:
        yield from (Event(kind, unit) for unit in segment.units[:-1] for kind in _KINDS["again"])
    for unit in reversed(segment.units):
        yield from (Event(kind, unit) for kind in _KINDS[action])


class _Held:
    """Elements of a pool, by size of the slot: how many slots of it were ever taken at once."""

    def __init__(self) -> None:
        self._taken: Counter[int] = Counter()
        self._most: Counter[int] = Counter()

    def take(self, size: int) -> None:
        self._taken[size] += 1
        self._most[size] = max(self._most[size], self._taken[size])

    def give(self, size: int) -> None:
        self._taken[size] -= 1

    @property
    def elements(self) -> int:
        return sum(size * count for size, count in self._most.items())


def gathered(told: Sequence[Event], layouts: Mapping[int, Shards], *, keep: bool) -> tuple[Counter[int], int]:
    """Return how often each unit is gathered in a step, and the elements of memory that this takes.

    A unit is fetched while the one before it in the order of use computes. `keep`: it stays as long as any
    micro-batch is between its forward and its backward, in memory of its own size.
    """
    slot = 0 if keep else max(layout.padded for layout in layouts.values())
    order = [event.unit for event in told if event.kind == "gather"]
    times: Counter[int] = Counter()
    uses: Counter[int] = Counter()
    here: dict[int, int] = {}  # units with the size of their memory
    held, place = _Held(), 0

    def start(unit: int) -> None:
        if unit in layouts and unit not in here:
            here[unit] = max(slot, layouts[unit].padded)
            held.take(here[unit])
            times[unit] += 1

    for kind, unit in told:
        if kind == "gather":
            place += 1
            start(unit)
        elif kind in ("release", "leave", "drop"):
            uses[unit] += {"release": 1, "leave": 0, "drop": -1}[kind]
            freed = not keep or (kind == "drop" and uses[unit] <= 0)
            if freed and unit in here:
                held.give(here.pop(unit))
        for following in order[place : place + 1]:
            start(following)
    return times, held.elements


def contributed(told: Sequence[Event], layouts: Mapping[int, Shards]) -> int:
    """Return the elements of memory for gradients that fill, or travel while those of the next unit fill."""
    slot = max(layout.padded for layout in layouts.values())
    filling: set[int] = set()
    travelling: set[int] = set()
    held = _Held()

    def claim(unit: int) -> None:
        if unit in layouts and unit not in filling:
            filling.add(unit)
            held.take(slot)

    for kind, unit in told:
        if kind == "claim":
            claim(unit)
        elif kind == "ready":
            for _ in travelling:
                held.give(slot)
            claim(unit)
            travelling = {unit} & filling
            filling -= travelling
    return held.elements
