"""How long a rank was kept by others, call by call, worked out after the steps.

A rank waits while it is inside a call that depends on ranks that have not come yet. All ranks of an axis make
the same calls in the same order, so one exchange of arrival times per axis settles every call at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Axis
from pscale.results.events import FROM_ROOT, TO_ROOT, VERBS, Kind

Column = NDArray[np.int64]
Mask = NDArray[np.bool_]
Rows = Mapping[str, Column]

_NEVER = np.iinfo(np.int64).min
_FROM_ROOT = [VERBS.index(verb) for verb in FROM_ROOT]
_TO_ROOT = [VERBS.index(verb) for verb in TO_ROOT]
_SEND, _RECEIVE = VERBS.index("send"), VERBS.index("receive")


def waits(rows: Rows, axes: Sequence[Axis]) -> Column:
    """Return the wait of every row in ns; collective. `axes` are in the order of the rows' axis numbers.

    all-to-all-type: until the last rank has entered. From a root: until the root has. To a root: the root
    alone waits, for the last. Started calls: the same, inside the completing call only.
    """
    wait = np.zeros_like(rows["enter"])
    latest = np.zeros(
        rows["request"].max(initial=-1) + 1, np.int64
    )  # last arrival, by number of the started call
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
        wait[completed] = latest[rows["request"][completed]] - rows["enter"][completed]
    return np.clip(wait, 0, rows["leave"] - rows["enter"])


def messages(rows: Rows, axis: int) -> Mask:
    """Return which rows started sending or receiving over an axis."""
    found: Mask = (rows["axis"] == axis) & (rows["kind"] == Kind.POSTED)
    return found & np.isin(rows["verb"], (_SEND, _RECEIVE))


def arrivals(rows: Rows, axis: int) -> Mask:
    """Return which rows came to a call of all ranks of an axis."""
    found: Mask = (rows["axis"] == axis) & np.isin(rows["kind"], (Kind.CALL, Kind.ROOT, Kind.POSTED))
    return found & ~np.isin(rows["verb"], (_SEND, _RECEIVE))


def from_partners(rows: Rows, posted: Mask, axis: Axis, values: Column) -> Column:
    """Return on rows that started messages the value on the partner's row; those of a pair keep order."""
    found, exchanged = np.zeros_like(values), []
    for partner in np.unique(rows["partner"][posted]).tolist():
        mine = posted & (rows["partner"] == partner)
        sends, receives = (np.flatnonzero(mine & (rows["verb"] == verb)) for verb in (_SEND, _RECEIVE))
        own, theirs = values[np.concatenate([sends, receives])], np.empty(mine.sum(), np.int64)
        pending = axis.start_send(own, partner), axis.start_receive(theirs, partner)
        # The partner's sends are my receives and the other way round.
        exchanged.append((pending, own, np.concatenate([receives, sends]), theirs))
    for pending, _, matching, theirs in exchanged:
        for call in pending:
            call.wait()
        found[matching] = theirs
    return found


def last_arrival(rows: Rows, arrives: Mask, axis: Axis) -> Column:
    """Return when the last rank that a call depends on came to it, for each arriving row."""
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
