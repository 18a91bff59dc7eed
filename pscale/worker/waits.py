"""How long ranks wait for each other, worked out after the steps: measured, attributed, on an ideal network.

A rank waits while it is inside a call that depends on ranks that have not entered it yet. All ranks of an
axis make the same calls in the same order, so one exchange of enter times per axis gives the wait of every
call. The same exchange attributes each wait to the rank that entered last (Scalasca's delay costs). On an
ideal network the waits that remain follow from the program alone: every rank simulates its recorded events
and exchanges clocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Axis, Pending, Tag
from pscale.runs.schema import FROM_ROOT, TO_ROOT, VERBS, Kind
from pscale.simulator.network import IDEAL
from pscale.simulator.program import (
    Collective,
    Post,
    Query,
    Receive,
    Rows,
    Send,
    Wait,
    Walk,
    rank_program,
    walk,
)
from pscale.worker.tables import Column, Mask, by_request

Clock = NDArray[np.float64]

_NEVER = np.iinfo(np.int64).min
_FROM_ROOT = [VERBS.index(verb) for verb in FROM_ROOT]
_TO_ROOT = [VERBS.index(verb) for verb in TO_ROOT]
_SEND, _RECEIVE = VERBS.index("send"), VERBS.index("receive")


def waits(rows: Rows, axes: Sequence[Axis]) -> Column:
    """Return the wait of every row in ns; collective. `axes` are in the order of the rows' axis numbers.

    all-to-all-type: until the last rank has entered. From a root: until the root has. To a root: the root
    alone waits, for the last. Started calls: the same, inside the completing call only; a send that is over
    before its receiver has come was buffered and waits for nobody.
    """
    wait = np.zeros_like(rows["enter"])
    latest = np.zeros(rows["request"].max(initial=-1) + 1, np.int64)  # last arrival at each started call
    for number, axis in enumerate(axes):
        mine = rows["axis"] == number
        arrives, pairwise = arrivals(rows, number), messages(rows, number)
        last = last_arrival(rows, arrives, axis)
        posted = arrives & (rows["kind"] == Kind.POSTED)
        latest[rows["request"][posted]] = last[posted[arrives]]
        latest[rows["request"][pairwise]] = from_partners(rows, pairwise, axis, rows["enter"])[pairwise]
        dependent = arrives & ~posted & _depends(rows)
        completed = mine & (rows["kind"] == Kind.COMPLETED)
        wait[dependent] = last[dependent[arrives]] - rows["enter"][dependent]
        until = latest[rows["request"][completed]]
        buffered = (rows["verb"][completed] == _SEND) & (until > rows["leave"][completed])
        wait[completed] = np.where(buffered, 0, until - rows["enter"][completed])
    return np.clip(wait, 0, rows["leave"] - rows["enter"])


def messages(rows: Rows, axis: int) -> Mask:
    """Return which rows started sending or receiving over an axis."""
    found: Mask = (rows["axis"] == axis) & (rows["kind"] == Kind.POSTED)
    return found & np.isin(rows["verb"], (_SEND, _RECEIVE))


def arrivals(rows: Rows, axis: int) -> Mask:
    """Return which rows entered a call of all ranks of an axis."""
    found: Mask = (rows["axis"] == axis) & np.isin(rows["kind"], (Kind.CALL, Kind.ROOT, Kind.POSTED))
    return found & ~np.isin(rows["verb"], (_SEND, _RECEIVE))


def from_partners(rows: Rows, posted: Mask, axis: Axis, values: Column) -> Column:
    """Return on rows that started messages the value on the partner's row; those of a pair keep order."""
    found, exchanged = np.zeros_like(values), []
    for partner in np.unique(rows["partner"][posted]).tolist():
        mine = posted & (rows["partner"] == partner)
        sends, receives = (np.flatnonzero(mine & (rows["verb"] == verb)) for verb in (_SEND, _RECEIVE))
        own, theirs = values[np.concatenate([sends, receives])], np.empty(mine.sum(), np.int64)
        sending = axis.start_send(own, partner, Tag.WAITS)
        pending = sending, axis.start_receive(theirs, partner, Tag.WAITS)
        # The partner's sends are my receives and the other way round.
        exchanged.append((pending, own, np.concatenate([receives, sends]), theirs))
    for pending, _, matching, theirs in exchanged:
        for call in pending:
            call.wait()
        found[matching] = theirs
    return found


def last_arrival(rows: Rows, arrives: Mask, axis: Axis) -> Column:
    """Return when the last rank that a call depends on entered it, for each arriving row."""
    arrival = rows["enter"][arrives].copy()
    from_root = np.isin(rows["verb"][arrives], _FROM_ROOT)
    arrival[from_root & (rows["kind"][arrives] != Kind.ROOT)] = _NEVER
    axis.all_reduce(arrival, "max")
    return arrival


def _depends(rows: Rows) -> Mask:
    """Return which blocking rows can wait at all: not a sender to the root, nor a root that sends."""
    is_root = rows["kind"] == Kind.ROOT
    sends = np.where(is_root, np.isin(rows["verb"], _FROM_ROOT), np.isin(rows["verb"], _TO_ROOT))
    return np.logical_not(sends)


def caused_waits(rows: Rows, wait: Column, axes: Sequence[Axis]) -> Column:
    """Return how long others waited for this rank in the call that a row entered, in ns; collective.

    Waits of several are added up. The two sides of a message wait for each other; of the ranks of an axis,
    the last to enter is the cause.
    """
    found, waited = np.zeros_like(wait), _at_start(rows, wait)
    for number, axis in enumerate(axes):
        posted = messages(rows, number)
        found[posted] = from_partners(rows, posted, axis, waited)[posted]
        arrives = arrivals(rows, number)
        last = last_arrival(rows, arrives, axis)
        total = waited[arrives]
        axis.all_reduce(total, "sum")
        found[arrives] = np.where(rows["enter"][arrives] == last, total, 0)
    return found


def _at_start(rows: Rows, wait: Column) -> Column:
    """Return the waits with those of nonblocking calls on the rows that started them."""
    over, posted = rows["kind"] == Kind.COMPLETED, rows["kind"] == Kind.POSTED
    moved = np.where(over, 0, wait)
    moved[posted] = by_request(rows, over, wait)[rows["request"][posted]]
    return moved


def ideal(rows: Rows, wait: NDArray[np.int64], axes: Sequence[Axis], start_ns: int) -> tuple[Clock, Clock]:
    """Return the wait of every row in ns, and when each step ended in s, on an ideal network.

    Collective: one message of 8 bytes for every recorded call. `wait` is that of every row as measured.
    """
    own = rank_program(rows, wait, [IDEAL.prices(axis.size) for axis in axes], start_ns)
    waited = own.waits(_exchange(walk(own), axes))
    return waited, own.ends(waited)[rows["kind"] == Kind.STEP] * 1e-9


def _exchange(walk: Walk, axes: Sequence[Axis]) -> list[float]:
    """Run one rank's walk: answer its queries by exchanging clocks with the other ranks."""
    others = _Others(axes)
    try:
        query = next(walk)
        while True:
            query = walk.send(others.answer(query))
    except StopIteration as over:
        waited: list[float] = over.value
    others.finish()
    return waited


class _Others:
    """The other ranks of every axis, each on a walk of its own."""

    def __init__(self, axes: Sequence[Axis]):
        self._axes = axes
        self._under_way: dict[int, tuple[Clock, Pending]] = {}
        self._sent: list[tuple[Clock, Pending]] = []

    def answer(self, query: Query) -> float:
        """Return the time that is asked for, if one is."""
        match query:
            case Collective(axis, time):
                clock = np.array([time])
                self._axes[axis].all_reduce(clock, "max")
                return float(clock[0])
            case Post(request, axis, time):
                clock = np.array([time])
                self._under_way[request] = clock, self._axes[axis].start_all_reduce(clock, "max")
            case Send(axis, partner, time):
                clock = np.array([time])
                self._sent.append((clock, self._axes[axis].start_send(clock, partner, Tag.WAITS)))
            case Receive(request, axis, partner):
                clock = np.empty(1)
                self._under_way[request] = clock, self._axes[axis].start_receive(clock, partner, Tag.WAITS)
            case Wait(request):
                clock, pending = self._under_way.pop(request)
                pending.wait()
                return float(clock[0])
        return 0.0

    def finish(self) -> None:
        """Wait for all that is under way; what no rank relied on was only tested."""
        for _, pending in (*self._under_way.values(), *self._sent):
            pending.wait()
