"""When every call would return if messages took no time; from call to call, not on arrays."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pscale.watch.rows import NOTHING, Numbers, Rows


def on_ideal_network(
    rows: Rows, relies: Numbers, cause: Numbers, meeting: Numbers
) -> tuple[Numbers, Numbers]:
    """Return the wait that is left of every call, and when it returns, where messages take no time.

    Calls are taken up in the order in which they began and ended: what one depends on came before its end.
    """
    own = rows.is_own()
    chosen = np.flatnonzero(rows.thread == 0)
    mains = chosen[own[chosen]]
    times = np.concatenate([rows.enter[chosen], rows.leave[mains]])
    is_end = np.arange(len(times)) >= len(chosen)
    which = np.concatenate([chosen, mains])
    order = np.lexsort((is_end, times))
    points = zip(which[order].tolist(), is_end[order].tolist(), strict=True)
    sends = rows.is_kind("SEND") | (rows.is_kind("BOTH") & own)
    relies = np.where((relies >= 0) & sends[relies], NOTHING, relies)  # what is sent is buffered
    return _replayed(rows, points, relies, cause, meeting)


def _replayed(
    rows: Rows, points: Iterable[tuple[int, bool]], relies: Numbers, cause: Numbers, meeting: Numbers
) -> tuple[Numbers, Numbers]:
    """Go through the beginnings and ends of all calls; `saved` is by how much each rank is ahead."""
    parts: dict[int, list[int]] = {}
    for row in np.flatnonzero(~rows.is_own()).tolist():
        parts.setdefault(int(rows.main[row]), []).append(row)
    rank, enter, leave, outside = (
        each.tolist() for each in (rows.rank, rows.enter, rows.leave, rows.outside())
    )
    relied, causes, meetings = relies.tolist(), cause.tolist(), meeting.tolist()
    saved, came, met = [0] * (max(rank, default=0) + 1), [0] * len(rank), dict[int, int]()
    wait, left = [0] * len(rank), list(leave)
    for row, is_end in points:
        own = rank[row]
        if not is_end:
            at = came[row] = enter[row] - saved[own]
            if meetings[row] >= 0:
                met[meetings[row]] = max(at, met.get(meetings[row], at))
            continue
        until = came[row] + outside[row]
        for part in (row, *parts.get(row, ())):
            post = relied[part]
            if post >= 0 and meetings[post] >= 0:
                until = max(until, met[meetings[post]])
            elif post >= 0 and causes[post] >= 0:
                until = max(until, came[causes[post]])
        wait[row], left[row] = until - came[row] - outside[row], until
        saved[own] = leave[row] - until
    return np.array(wait, np.int64), np.array(left, np.int64)
