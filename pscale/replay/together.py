"""All ranks of a recorded run on their walks in one process, taking turns where one depends on another."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from pscale.errors import ResultsError
from pscale.replay.script import Script
from pscale.replay.walk import NEVER, Ask, Meet, Post, Receive, Send, Take, walk

Occasion = Hashable  # that ranks wait for: a call of a group, or a message


class Seat(NamedTuple):
    """A rank's place on one axis."""

    group: int  # the same for ranks that exchange with each other
    size: int
    rank: int  # among them


def together(scripts: Sequence[Script], seats: Sequence[Sequence[Seat]]) -> list[list[float]]:
    """Return the wait of every rank's events in ns; `seats[rank][axis]` is its place there.

    Raises ResultsError where the notes do not fit together, so that ranks wait for each other for ever.
    """
    walks = [walk(script) for script in scripts]
    waited: list[list[float] | None] = [None] * len(walks)
    table = _Table(seats)
    turns: list[tuple[int, float | None]] = [(rank, None) for rank in range(len(walks))]
    while turns:
        rank, answer = turns.pop()
        try:
            ask = walks[rank].send(answer) if answer is not None else next(walks[rank])
            while (answer := table.answer(rank, ask)) is not None:
                ask = walks[rank].send(answer)
        except StopIteration as over:
            waited[rank] = over.value
        turns += table.woken()
    stuck = [rank for rank, found in enumerate(waited) if found is None]
    if stuck:
        raise ResultsError(f"the events of ranks {', '.join(map(str, stuck[:8]))} do not fit together")
    return [found for found in waited if found is not None]


class _Table:
    """Where ranks leave their clocks for each other."""

    def __init__(self, seats: Sequence[Sequence[Seat]]):
        self._seats = seats
        self._calls: Counter[Hashable] = Counter()  # made so far, by rank or pair and axis
        self._came: Counter[Occasion] = Counter()
        self._latest: defaultdict[Occasion, float] = defaultdict(lambda: NEVER)
        self._expected: dict[Occasion, int] = {}
        self._started: dict[tuple[int, int], Occasion] = {}  # by rank and request
        self._waiting: defaultdict[Occasion, list[int]] = defaultdict(list)
        self._woken: list[tuple[int, float | None]] = []

    def answer(self, rank: int, ask: Ask) -> float | None:
        """Return what is asked for; None where it is not known yet, and the rank has to wait."""
        match ask:
            case Meet(axis, clock):
                return self._wait(rank, self._join(rank, axis, clock))
            case Post(request, axis, clock):
                self._started[rank, request] = self._join(rank, axis, clock)
            case Send(axis, partner, clock):
                seat = self._seats[rank][axis]
                self._come(self._message(axis, seat.group, seat.rank, partner, "sent"), clock, 1)
            case Receive(request, axis, partner):
                seat = self._seats[rank][axis]
                message = self._message(axis, seat.group, partner, seat.rank, "received")
                self._started[rank, request] = message
            case Take(request):
                return self._wait(rank, self._started.pop((rank, request)))
        return 0.0

    def woken(self) -> list[tuple[int, float | None]]:
        """Return the ranks that need not wait any longer, each with its answer."""
        woken, self._woken = self._woken, []
        return woken

    def _join(self, rank: int, axis: int, clock: float) -> Occasion:
        seat = self._seats[rank][axis]
        self._calls[rank, axis] += 1
        call = (axis, seat.group, self._calls[rank, axis])
        self._come(call, clock, seat.size)
        return call

    def _message(self, axis: int, group: int, source: int, to: int, end: str) -> Occasion:
        """Return the next message of a pair, as seen from one of its ends."""
        self._calls[axis, group, source, to, end] += 1
        return axis, group, source, to, self._calls[axis, group, source, to, end]

    def _come(self, occasion: Occasion, clock: float, expected: int) -> None:
        self._came[occasion] += 1
        self._latest[occasion] = max(self._latest[occasion], clock)
        self._expected[occasion] = expected
        if self._came[occasion] == expected:
            self._woken += [(rank, self._latest[occasion]) for rank in self._waiting.pop(occasion, ())]

    def _wait(self, rank: int, occasion: Occasion) -> float | None:
        if self._came[occasion] == self._expected.get(occasion):
            return self._latest[occasion]
        self._waiting[occasion].append(rank)
        return None
