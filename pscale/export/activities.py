"""What the ranks of a traced launch did, in order: computing, calls, waits for started calls."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

import pandas as pd

from pscale.analysis.frames import records
from pscale.analysis.timeline import Event, rows_of_events
from pscale.errors import ResultsError
from pscale.runs.schema import AMONG_ALL, BETWEEN_TWO, FROM_ROOT, TO_ROOT

KNOWN = (*AMONG_ALL, *FROM_ROOT, *TO_ROOT, *BETWEEN_TWO)  # verbs that every format has a word for
_OUTSIDE = "outside"


Kind = Literal["compute", "call", "start", "test", "wait"]
_KINDS: Mapping[str, Kind] = {
    "call": "call",
    "root": "call",
    "posted": "start",
    "polled": "test",
    "polled_complete": "test",
    "completed": "wait",
}
_COMPLETING = ("completed",), ("completed", "polled_complete")  # nobody relies on what was sent


class CallId(NamedTuple):
    """Which call of several ranks it is: the `number`-th blocking or started one of a group on an axis."""

    axis: str
    group: int  # the first rank of the group
    number: int


@dataclass(frozen=True, kw_only=True)
class Activity:
    """Something that a rank did from `enter` to `leave`, in ns.

    `test` and `wait` are about the started call `request`, and say of it what its start said; one of them
    `completes` it. A call among ranks has an `id`, a message its `partner`, both its ends the same `bytes`.
    """

    kind: Kind
    phase: str  # with what it is about: "forward 3"
    enter: int
    leave: int
    step: int
    verb: str = ""
    axis: str = ""
    bytes: int = 0
    request: int = -1
    completes: bool = False
    partner: int = -1
    id: CallId | None = None

    @property
    def name(self) -> str:
        """What it is, for people."""
        return f"{self.verb} {self.axis}" if self.verb else self.phase

    @property
    def length(self) -> int:
        """How long it took, in ns."""
        return self.leave - self.enter


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The activities of every rank, in order, without gaps from the first step of any to the end of its last.

    `groups` are the ranks of a call by axis and first rank, `roots` the rank that a call with a root has, and
    `bytes` what each rank handed to a call.
    """

    ranks: Mapping[int, Sequence[Activity]]
    groups: Mapping[tuple[str, int], Sequence[int]]
    roots: Mapping[CallId, int] = field(repr=False)

    @cached_property
    def bytes(self) -> Mapping[tuple[CallId, int], int]:
        """What each rank handed to a call."""
        return {
            (each.id, rank): each.bytes
            for rank, own in self.ranks.items()
            for each in own
            if each.id and each.kind in ("call", "start")
        }


def launch_of(table: pd.DataFrame, title: str) -> Launch:
    """Return what the ranks did, of rows of `launch_events`; raises ResultsError for calls of no format."""
    foreign = sorted({*table.loc[table["kind"].isin(_KINDS), "verb"].unique()} - {*KNOWN})
    if foreign:
        raise ResultsError(f"{title}: other tools have no words for its calls of {', '.join(foreign)}")
    roots: dict[CallId, int] = {}
    parts = {int(rows["rank"].iloc[0]): rows for _, rows in table.groupby("rank")}
    origin = int(table.loc[table["kind"] == "step", "enter"].min())
    own = {rank: list(_activities(rows, origin, roots, rank)) for rank, rows in parts.items()}
    sizes = _sent(own)
    ranks = {rank: list(_with_sizes(activities, rank, sizes)) for rank, activities in own.items()}
    return Launch(ranks=ranks, groups=_groups(table), roots=roots)


def _groups(table: pd.DataFrame) -> dict[tuple[str, int], list[int]]:
    """Return the ranks that exchange with each other, by axis and the first of them."""
    seats = table.loc[table["axis"] != "", ["axis", "group", "rank"]].drop_duplicates()
    found: dict[tuple[str, int], list[int]] = {}
    for row in records(seats.sort_values("rank")):
        found.setdefault((str(row["axis"]), int(row["group"])), []).append(int(row["rank"]))
    return found


def _sent(ranks: Mapping[int, Sequence[Activity]]) -> dict[tuple[str, int, int, int], int]:
    """Return the bytes of every message, by axis, both ends and number."""
    sizes: dict[tuple[str, int, int, int], int] = {}
    for rank, own in ranks.items():
        numbers: Counter[tuple[str, int]] = Counter()
        for each in own:
            if (each.kind, each.verb) == ("start", "send"):
                pair = each.axis, each.partner
                sizes[each.axis, rank, each.partner, numbers[pair]] = each.bytes
                numbers[pair] += 1
    return sizes


def _with_sizes(
    own: Sequence[Activity], rank: int, sizes: Mapping[tuple[str, int, int, int], int]
) -> Iterator[Activity]:
    """Yield the activities of a rank: what it receives with the bytes sent, waits as their starts."""
    numbers: Counter[tuple[str, int]] = Counter()
    started: dict[int, Activity] = {}
    for each in own:
        if each.kind == "start":
            found = each
            if each.verb == "receive":
                pair = each.axis, each.partner
                found = replace(each, bytes=sizes.get((each.axis, each.partner, rank, numbers[pair]), 0))
                numbers[pair] += 1
            yield started.setdefault(each.request, found)
        elif each.kind in ("test", "wait") and (start := started.get(each.request)):
            yield replace(each, bytes=start.bytes, partner=start.partner, id=start.id)
        else:
            yield each


def _activities(rows: pd.DataFrame, origin: int, roots: dict[CallId, int], rank: int) -> Iterator[Activity]:
    """Yield what one rank did since `origin`; between calls it computes, cut where phases begin and end."""
    ordered = rows.sort_values(["enter", "leave"], kind="stable")
    groups = ordered["group"].to_dict()
    events = list(rows_of_events(ordered))
    phases = _Phases([event for event in events if event.kind == "phase"])
    steps = [event for event in events if event.kind == "step"]
    numbers: Counter[tuple[str, int]] = Counter()
    under_way: set[int] = set()
    at = origin
    for event in events:
        kind = _KINDS.get(event.kind)
        if kind is None:
            continue
        enter, leave = max(at, event.enter), max(at, event.leave)
        yield from phases.cut(at, enter, event.step)
        at = leave
        key = (event.axis, int(groups[event.row]))
        if kind == "start":
            under_way.add(event.request)
        if completes := event.kind in _COMPLETING[event.verb == "send"] and event.request in under_way:
            under_way.remove(event.request)  # and is found complete again where it is waited for
        id_ = None
        if kind in ("call", "start") and event.verb not in BETWEEN_TWO:
            id_ = CallId(*key, numbers[key])
            numbers[key] += 1
            if event.kind == "root":
                roots[id_] = rank
        yield Activity(
            kind=kind,
            phase=phases.label(enter),
            enter=enter,
            leave=leave,
            step=event.step,
            verb=event.verb,
            axis=event.axis,
            bytes=event.bytes,
            request=event.request,
            completes=completes,
            partner=event.partner,
            id=id_,
        )
    yield from phases.cut(at, steps[-1].leave, steps[-1].step)


class _Phases:
    """The phases of a rank, which cut what it computes."""

    def __init__(self, phases: Sequence[Event]):
        self._phases = sorted(phases, key=lambda event: event.enter)
        self._begins = [event.enter for event in self._phases]
        self._cuts = sorted({at for event in phases for at in (event.enter, event.leave)})

    def cut(self, start: int, stop: int, step: int) -> Iterator[Activity]:
        """Yield what is computed from `start` to `stop`."""
        first = bisect_right(self._cuts, start)
        last = bisect_right(self._cuts, stop - 1)
        bounds = [start, *self._cuts[first:last], stop]
        for enter, leave in pairwise(bounds):
            if leave > enter:
                yield Activity(kind="compute", phase=self.label(enter), enter=enter, leave=leave, step=step)

    def label(self, at: int) -> str:
        """Return the label of the phase at some time."""
        place = bisect_right(self._begins, at) - 1
        inside = place >= 0 and at < self._phases[place].leave
        return self._phases[place].label if inside else _OUTSIDE
