"""A recorded program on another network: the events of a rank, its walk through them, all ranks at once.

Where the walk of a rank depends on others it makes a query, and its leader answers: the ranks of a job by
exchanging clocks (`worker.waits`), those of a recorded run by taking turns in one process (`simulate`). It
needs no plan, so programs that pscale only watched have it too; `predict.walk` is of plans that nobody ran.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pscale.errors import ResultsError
from pscale.runs.schema import FROM_ROOT, TO_ROOT, VERBS, Kind
from pscale.simulator.network import Prices

Rows = Mapping[str, NDArray[np.int64]]
Times = NDArray[np.float64]  # ns; whole numbers are exact

COMMUNICATION = (Kind.CALL, Kind.ROOT, Kind.POSTED, Kind.POLLED, Kind.POLLED_COMPLETE, Kind.COMPLETED)
_NEVER = float("-inf")


class Action(IntEnum):
    """What an event does."""

    COLLECTIVE = 0  # a blocking call of several ranks
    POST = 1  # starts such a call
    SEND = 2
    RECEIVE = 3  # starts to
    WAIT = 4  # relies on a started call


class Event(NamedTuple):
    """A point at which a rank learns of others or they of it."""

    at: float  # on a clock that stands still in calls on priced axes, and while waiting, in ns
    action: Action
    axis: int
    request: int
    partner: int
    sending: float  # ns for which the rank's link is busy
    latency: float  # ns
    link: str
    gives: bool  # others wait for this rank
    takes: bool  # this rank waits for others


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A rank's events in order, and what puts them back in place among all its rows."""

    events: list[Event]
    places: NDArray[np.intp]  # the row of each event
    clock: Times  # at the end of every row, without any wait

    def waits(self, waited: Sequence[float]) -> Times:
        """Return the wait of every row, given that of every event."""
        waits = np.zeros(len(self.clock))
        waits[self.places] = waited
        return waits

    def ends(self, waits: Times) -> Times:
        """Return when every row ended, given all waits."""
        return self.clock + np.cumsum(waits)


def rank_program(
    rows: Rows, wait: NDArray[np.int64], prices: Sequence[Prices | None], start_ns: int
) -> Program:
    """Prepare the walk of one rank's events where calls have `prices`, one for each axis number.

    Without a price a call costs what it cost beyond waiting. `wait` is that of every row, in ns.
    """
    communicates = np.isin(rows["kind"], COMMUNICATION)
    priced = communicates & np.array([*(each is not None for each in prices), False])[rows["axis"]]
    length = rows["leave"] - rows["enter"]
    removed = np.where(priced, length, np.where(communicates, wait, 0))
    clock = (rows["leave"] - start_ns - np.cumsum(removed)).astype(np.float64)
    places = _places(rows)
    began = (clock - (length - removed))[places].tolist()
    names = ("kind", "axis", "verb", "bytes", "request", "partner")
    columns = (rows[name][places].tolist() for name in names)
    cost = lru_cache(maxsize=None)(partial(_cost, prices))
    events = [
        Event(at, _action(kind, verb), axis, request, partner, *cost(axis, verb, size), *_sides(kind, verb))
        for at, kind, axis, verb, size, request, partner in zip(began, *columns, strict=True)
    ]
    return Program(events=events, places=places, clock=clock)


def _places(rows: Rows) -> NDArray[np.intp]:
    """Return the rows at which ranks meet; a started call is relied on once, at its first wait."""
    arrives = np.flatnonzero(np.isin(rows["kind"], (Kind.CALL, Kind.ROOT, Kind.POSTED)))
    completed = np.flatnonzero(rows["kind"] == Kind.COMPLETED)
    _, first = np.unique(rows["request"][completed], return_index=True)
    return np.sort(np.concatenate([arrives, completed[first]]))


def _cost(
    prices: Sequence[Prices | None], axis: int, verb: int, payload_bytes: int
) -> tuple[float, float, str]:
    """Return for how long a call keeps its link busy, its latency, in ns, and the link."""
    of_axis = prices[axis]
    if of_axis is None:
        return 0.0, 0.0, ""
    price = of_axis(VERBS[verb], payload_bytes)
    return price.busy_s * 1e9, price.latency_s * 1e9, price.link


@cache
def _action(kind: int, verb: int) -> Action:
    if kind == Kind.COMPLETED:
        return Action.WAIT
    if kind != Kind.POSTED:
        return Action.COLLECTIVE
    return {"send": Action.SEND, "receive": Action.RECEIVE}.get(VERBS[verb], Action.POST)


@cache
def _sides(kind: int, verb: int) -> tuple[bool, bool]:
    """Return whether others wait for the rank that makes this call, and whether it waits for them."""
    if VERBS[verb] in FROM_ROOT:
        return kind == Kind.ROOT, kind != Kind.ROOT
    if VERBS[verb] in TO_ROOT:
        return kind != Kind.ROOT, kind == Kind.ROOT
    return True, True


class Collective(NamedTuple):
    """Asks for the latest clock of any rank of the axis at its next blocking call."""

    axis: int
    clock: float


class Post(NamedTuple):
    """States when this rank's part of a started call can arrive; `Wait` asks for the answer."""

    request: int
    axis: int
    clock: float


class Send(NamedTuple):
    """States when a message can be with its receiver."""

    axis: int
    partner: int
    clock: float


class Receive(NamedTuple):
    """Expects the next message of a partner; `Wait` asks when it arrived."""

    request: int
    axis: int
    partner: int


class Wait(NamedTuple):
    """Asks when a started call was complete."""

    request: int


Query = Collective | Post | Send | Receive | Wait
Walk = Generator[Query, float, list[float]]


def walk(program: Program) -> Walk:
    """Walk through the events; returns the wait of each in ns.

    A rank's link sends one thing after another, of all axes that use it; it receives at any time. Messages
    are buffered: the sender has to wait for its link alone.
    """
    waited: list[float] = []
    behind = 0.0  # by all waits so far
    free: defaultdict[str, float] = defaultdict(lambda: _NEVER)  # by link: when all before is sent
    sent_at: dict[int, float] = {}  # by request: when a message had left
    for at, action, axis, request, partner, sending, latency, link, gives, takes in program.events:
        now = until = at + behind
        if action is Action.WAIT:
            until = sent_at.pop(request) if request in sent_at else (yield Wait(request))
        elif action is Action.RECEIVE:
            yield Receive(request, axis, partner)
        else:
            sent = _NEVER
            if gives:
                sent = free[link] = max(now, free[link]) + sending
            if action is Action.COLLECTIVE:
                latest = yield Collective(axis, sent + latency)
                until = latest if takes else sent
            elif action is Action.POST:
                yield Post(request, axis, sent + latency)
            else:
                sent_at[request] = sent
                yield Send(axis, partner, sent + latency)
        waited.append(max(0.0, until - now))
        behind += waited[-1]
    return waited


Meeting = Hashable  # a call of a group, or a message


class Position(NamedTuple):
    """A rank's place on one axis."""

    group: int  # the same for ranks that exchange with each other
    size: int
    rank: int  # among them


def simulate(programs: Sequence[Program], positions: Sequence[Sequence[Position]]) -> list[list[float]]:
    """Return the wait of every rank's events in ns; `positions[rank][axis]` is its place there.

    Raises ResultsError where the events do not match, so that ranks wait for each other for ever.
    """
    walks = [walk(program) for program in programs]
    waited: dict[int, list[float]] = {}
    exchange = _Exchange(positions)
    turns: list[tuple[int, float | None]] = [(rank, None) for rank in range(len(walks))]
    while turns:
        rank, answer = turns.pop()
        try:
            query = walks[rank].send(answer) if answer is not None else next(walks[rank])
            while (answer := exchange.answer(rank, query)) is not None:
                query = walks[rank].send(answer)
        except StopIteration as over:
            waited[rank] = over.value
        turns += exchange.ready()
    if stuck := sorted(set(range(len(walks))) - set(waited)):
        raise ResultsError(f"the events of ranks {', '.join(map(str, stuck[:8]))} do not match")
    return [waited[rank] for rank in range(len(walks))]


class _Exchange:
    """The clocks that ranks leave for each other."""

    def __init__(self, positions: Sequence[Sequence[Position]]):
        self._positions = positions
        self._calls: Counter[Hashable] = Counter()  # made so far, by rank or pair and axis
        self._arrived: Counter[Meeting] = Counter()
        self._latest: defaultdict[Meeting, float] = defaultdict(lambda: _NEVER)
        self._expected: dict[Meeting, int] = {}
        self._started: dict[tuple[int, int], Meeting] = {}  # by rank and request
        self._waiting: defaultdict[Meeting, list[int]] = defaultdict(list)
        self._ready: list[tuple[int, float | None]] = []

    def answer(self, rank: int, query: Query) -> float | None:
        """Return what is asked for; None where it is not known yet, so that the rank has to wait."""
        match query:
            case Collective(axis, clock):
                return self._wait(rank, self._join(rank, axis, clock))
            case Post(request, axis, clock):
                self._started[rank, request] = self._join(rank, axis, clock)
            case Send(axis, partner, clock):
                position = self._positions[rank][axis]
                self._arrive(self._message(axis, position.group, position.rank, partner, "sent"), clock, 1)
            case Receive(request, axis, partner):
                position = self._positions[rank][axis]
                message = self._message(axis, position.group, partner, position.rank, "received")
                self._started[rank, request] = message
            case Wait(request):
                return self._wait(rank, self._started.pop((rank, request)))
        return 0.0

    def ready(self) -> list[tuple[int, float | None]]:
        """Return the ranks that no longer wait, each with its answer."""
        ready, self._ready = self._ready, []
        return ready

    def _join(self, rank: int, axis: int, clock: float) -> Meeting:
        position = self._positions[rank][axis]
        self._calls[rank, axis] += 1
        call = (axis, position.group, self._calls[rank, axis])
        self._arrive(call, clock, position.size)
        return call

    def _message(self, axis: int, group: int, source: int, to: int, end: str) -> Meeting:
        """Return the next message of a pair, as seen from one of its ends."""
        self._calls[axis, group, source, to, end] += 1
        return axis, group, source, to, self._calls[axis, group, source, to, end]

    def _arrive(self, meeting: Meeting, clock: float, expected: int) -> None:
        self._arrived[meeting] += 1
        self._latest[meeting] = max(self._latest[meeting], clock)
        self._expected[meeting] = expected
        if self._arrived[meeting] == expected:
            self._ready += [(rank, self._latest[meeting]) for rank in self._waiting.pop(meeting, ())]

    def _wait(self, rank: int, meeting: Meeting) -> float | None:
        if self._arrived[meeting] == self._expected.get(meeting):
            return self._latest[meeting]
        self._waiting[meeting].append(rank)
        return None
