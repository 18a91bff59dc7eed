"""What one rank did, as far as other ranks matter: its notes turned into the events of a walk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pscale.replay.network import Link
from pscale.results.events import FROM_ROOT, TO_ROOT, VERBS, Kind

Rows = Mapping[str, NDArray[np.int64]]
Times = NDArray[np.float64]  # ns; whole numbers are exact

COMMUNICATION = (Kind.CALL, Kind.ROOT, Kind.POSTED, Kind.POLLED, Kind.FOUND, Kind.COMPLETED)


class Action(IntEnum):
    """What an event does."""

    MEET = 0  # a blocking call of several ranks
    POST = 1  # starts such a call
    SEND = 2
    RECEIVE = 3  # starts to
    TAKE = 4  # relies on a started call


class Event(NamedTuple):
    """A point at which a rank learns of others or they of it."""

    at: float  # on a clock that stands still in calls on priced axes, and while waiting, in ns
    action: Action
    axis: int
    request: int
    partner: int
    sending: float  # ns for which the rank's link is busy
    latency: float  # ns
    gives: bool  # others wait for this rank
    takes: bool  # this rank waits for others


@dataclass(frozen=True, kw_only=True, eq=False)
class Script:
    """A rank's events in order, and what puts them back in place among all its notes."""

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


def script(
    rows: Rows, wait: NDArray[np.int64], sizes: Sequence[int], links: Sequence[Link | None], start_ns: int
) -> Script:
    """Prepare the walk of one rank's notes on the network `links`, one for each axis number.

    On an axis with a link a call costs what the link says; without one, what it cost beyond waiting. `wait`
    is that of every row, in ns; `sizes` are the numbers of ranks of the axes.
    """
    communicates = np.isin(rows["kind"], COMMUNICATION)
    priced = communicates & np.array([*(link is not None for link in links), False])[rows["axis"]]
    length = rows["leave"] - rows["enter"]
    removed = np.where(priced, length, np.where(communicates, wait, 0))
    clock = (rows["leave"] - start_ns - np.cumsum(removed)).astype(np.float64)
    places = _places(rows)
    began = (clock - (length - removed))[places].tolist()
    names = ("kind", "axis", "verb", "bytes", "request", "partner")
    columns = (rows[name][places].tolist() for name in names)
    cost = lru_cache(maxsize=None)(partial(_cost, sizes, links))
    events = [
        Event(at, _action(kind, verb), axis, request, partner, *cost(axis, verb, size), *_sides(kind, verb))
        for at, kind, axis, verb, size, request, partner in zip(began, *columns, strict=True)
    ]
    return Script(events=events, places=places, clock=clock)


def _places(rows: Rows) -> NDArray[np.intp]:
    """Return the rows at which ranks meet; a started call is relied on once, at its first wait."""
    arrives = np.flatnonzero(np.isin(rows["kind"], (Kind.CALL, Kind.ROOT, Kind.POSTED)))
    completed = np.flatnonzero(rows["kind"] == Kind.COMPLETED)
    _, first = np.unique(rows["request"][completed], return_index=True)
    return np.sort(np.concatenate([arrives, completed[first]]))


def _cost(
    sizes: Sequence[int], links: Sequence[Link | None], axis: int, verb: int, payload_bytes: int
) -> tuple[float, float]:
    link = links[axis]
    if link is None:
        return 0.0, 0.0
    name, size = VERBS[verb], sizes[axis]
    return link.sending_ns(name, size, payload_bytes), link.latency_ns(name, size)


@cache
def _action(kind: int, verb: int) -> Action:
    if kind == Kind.COMPLETED:
        return Action.TAKE
    if kind != Kind.POSTED:
        return Action.MEET
    return {"send": Action.SEND, "receive": Action.RECEIVE}.get(VERBS[verb], Action.POST)


@cache
def _sides(kind: int, verb: int) -> tuple[bool, bool]:
    """Return whether others wait for the rank that makes this call, and whether it waits for them."""
    if VERBS[verb] in FROM_ROOT:
        return kind == Kind.ROOT, kind != Kind.ROOT
    if VERBS[verb] in TO_ROOT:
        return kind != Kind.ROOT, kind == Kind.ROOT
    return True, True
