"""Whom every call waited for, and how long, from the notes of all ranks.

A rank waits while it is inside a call that depends on a rank that has not come yet. Which ranks those are
follows from the order of calls (`matching`). All of it is done on arrays, a row for each call. A record of
any length is settled in windows: what a window leaves open goes on to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pscale.watch.matching import (
    COLLECTIVE,
    Matched,
    has_wildcard,
    is_message,
    is_settled_collective,
    match_collectives,
    match_messages,
    match_requests,
)
from pscale.watch.notes import Group, Recorded
from pscale.watch.rows import NEVER, NOTHING, Mask, Numbers, Rows, join_rows, windows

MOST_AT_ONCE = 2_000_000  # rows: beyond them there is no ideal network and no timeline, but a bound on memory
WINDOW = 500_000  # rows
MOST_SETTLED = 16_000_000  # notes: of a longer record pieces, so that it takes at most 60 s and 2 GiB
MOST_OF_THREADS = 3_000_000  # notes: those of several threads are settled at once


@dataclass(frozen=True, kw_only=True, eq=False)
class SettledCalls:
    """What the calls of a window waited for; everything but `rows` and `groups` is by row.

    `wait` is on the row of the call that takes the time; of several requests the last one counts.
    """

    rows: Rows
    groups: Sequence[Group]
    wait: Numbers
    cause: Numbers  # the rank that was waited for last; -1: none
    cause_at: Numbers  # when it came
    post: Numbers  # of what completes a request: the row that started it; -1: none or not known
    start: Numbers  # the same, and of what tested one and found it incomplete
    about: Numbers  # of a call with parts: the part that it waited for; else the row itself
    ordinary: Mask  # was settled, or can wait for nobody
    final: Mask  # is known now, and was not before
    ideal_wait: Numbers | None = None  # on an ideal network; None: there are too many calls to replay
    ideal_leave: Numbers | None = None


def is_short(recorded: Recorded, at_once: int) -> bool:
    """Tell whether a record is settled at once: it has few notes, or several threads call MPI."""
    if recorded.drawn:
        return False
    return sum(map(len, recorded.notes)) <= at_once or recorded.is_threaded()


def settle_windows(recorded: Recorded, window: int) -> Iterator[SettledCalls]:
    """Settle a record in windows of so many rows."""
    groups, _ = recorded.groups
    cancels = np.array([facts.cancels for facts in recorded.facts])
    left: Rows | None = None
    for following, last in windows(recorded, window):
        rows = following if left is None else join_rows(left, following)
        now, left = _settle(rows, groups, cancels, last=last)
        yield now


def settle(rows: Rows, groups: Sequence[Group]) -> SettledCalls:
    """Find out what every call of a whole program waited for."""
    return _settle(rows, groups, np.zeros(len(rows.places) - 1, np.bool_), last=True, whole=True)[0]


def _settle(
    rows: Rows, groups: Sequence[Group], cancels: Mask, *, last: bool, whole: bool = False
) -> tuple[SettledCalls, Rows | None]:
    """Settle what can be of a window; return also what is left to do, nothing of the `last`.

    `cancels` tells which ranks cancel requests: what of theirs is not over may still come to nothing.
    """
    start, open_starts = match_requests(rows)
    post = np.where(rows.fruitless, NOTHING, start)
    rows = replace(rows, cancelled=_mark_cancelled(rows, post))
    resolved = _resolve_wildcards(rows, post)
    over = np.zeros(len(post), np.bool_)
    over[post[post >= 0]] = True
    match = Matched.of(rows)
    meetings = match_collectives(rows, groups, match, last=last)
    may_change = has_wildcard(resolved) | (rows.is_kind("RECEIVE") & cancels[rows.rank])
    undecided = may_change & resolved.is_mode("STARTS") & ~over & ~rows.fruitless & (not last)
    match_messages(resolved, groups, match, undecided)
    pending = np.zeros(len(post), np.bool_) if last else _pending(resolved, groups, match, start, undecided)
    now, dependencies = _waits(resolved, groups, match, start, post, ~pending & ~rows.counted)
    if last and whole:
        wait, leave = replay_ideal(rows, dependencies, match.cause, meetings)
        return replace(now, ideal_wait=wait, ideal_leave=leave), None
    return now, None if last else _rows_left(resolved, match, post, pending, open_starts)


def _waits(  # noqa: PLR0917
    rows: Rows, groups: Sequence[Group], match: Matched, start: Numbers, post: Numbers, final: Mask
) -> tuple[SettledCalls, Numbers]:
    """Return what each call waited for, and by row on which row it depends."""
    numbers, own = np.arange(len(post)), rows.is_own()
    relies = np.where(post >= 0, post, numbers)  # the row whose needs a row waits for
    needs = (rows.is_mode("BLOCKS") & ~rows.is_kind("COMPLETE")) | (post >= 0)
    until = np.where(needs, match.arrival[relies], NEVER)
    sends = rows.is_kind("SEND") | (rows.is_kind("BOTH") & own)
    until[sends[relies] & (until > rows.leave)] = NEVER  # buffered: over before its receiver came
    about = _last_parts(rows, until)
    waited = np.clip(until[about], rows.enter, rows.leave) - rows.enter
    wait = np.where(own, waited, 0)
    by = np.where(match.cause >= 0, rows.rank[match.cause], rows.cause)[relies[about]]
    settled = SettledCalls(
        rows=rows,
        groups=groups,
        wait=wait,
        cause=np.where(wait > 0, by, NOTHING),
        cause_at=match.arrival[relies[about]],
        post=post,
        start=start,
        about=about,
        ordinary=~_unsettled(rows, post, match.matched),
        final=final,
    )
    return settled, np.where(needs & (until > NEVER), relies, NOTHING)


def _last_parts(rows: Rows, until: Numbers) -> Numbers:
    """Return for each call which of its parts it waited for longest; its own row otherwise."""
    about = np.arange(len(until))
    parts = np.flatnonzero(~rows.is_own())
    if len(parts):
        several = np.zeros(len(until), np.bool_)
        several[parts] = several[rows.main[parts]] = True
        among = np.flatnonzero(several)
        order = among[np.lexsort((until[among], rows.main[among]))]
        last = order[np.append(np.diff(rows.main[order]) != 0, True)]
        about[rows.main[last]] = last
    return about


def _mark_cancelled(rows: Rows, post: Numbers) -> Mask:
    """Tell which calls exchanged nothing: what completed them knows it."""
    cancelled = rows.cancelled.copy()
    cancelled[post[(post >= 0) & rows.cancelled]] = True
    return cancelled


def _resolve_wildcards(rows: Rows, post: Numbers) -> Rows:
    """Say of receives from anybody from whom they got a message: what completed them knows."""
    over = np.flatnonzero(post >= 0)
    over = over[has_wildcard(rows)[post[over]] & (rows.peer[over] >= 0)]
    if not len(over):
        return rows
    peer, tag = rows.peer.copy(), rows.tag.copy()
    peer[post[over]], tag[post[over]] = rows.peer[over], rows.tag[over]
    return replace(rows, peer=peer, tag=tag)


def _unsettled(rows: Rows, post: Numbers, matched: Mask) -> Mask:
    """Tell which calls may have waited for somebody of whom nothing is known."""
    ends = rows.is_kind("SEND", "RECEIVE", "BOTH", "PROBE")
    ours = (rows.is_kind(*COLLECTIVE) | ends) & ~rows.is_mode("PERSISTENT")
    alone = ends & ((rows.peer == NOTHING) | rows.cancelled)  # MPI_PROC_NULL
    lost = (ours & ~matched & ~alone & ~rows.fruitless) | rows.is_kind("OTHER")
    return np.asarray(lost | ((post >= 0) & lost[post]))


def _pending(rows: Rows, groups: Sequence[Group], match: Matched, start: Numbers, undecided: Mask) -> Mask:
    """Tell which calls, with all their parts, a later window may say more of."""
    probes = rows.is_kind("PROBE")
    waits = is_message(rows) & (rows.peer >= 0) & ~(match.matched & probes)
    open_ = ((is_settled_collective(rows, groups) | waits) & ~match.paired) | undecided | rows.open
    open_ |= (start >= 0) & open_[start]
    of_main = np.zeros(len(start), np.bool_)
    of_main[rows.main[open_]] = True
    return np.asarray(of_main[rows.main])


def _rows_left(rows: Rows, match: Matched, post: Numbers, pending: Mask, open_starts: Mask) -> Rows:
    """Return what a later window needs: what is pending, and requests that may still be completed."""
    over = post >= 0
    done, used = np.zeros((2, len(post)), np.bool_)
    done[post[over & ~pending]] = used[post[over & pending]] = True
    requests = (open_starts & ~done) | used
    chosen = requests | pending
    chosen[rows.main[chosen]] = True
    by = np.where(match.cause >= 0, rows.rank[match.cause], rows.cause)
    return replace(
        rows,
        request=np.where(requests | pending, rows.request, 0),
        arrival=match.arrival,
        cause=by,
        matched=match.matched,
        paired=match.paired,
        counted=rows.counted | ~pending,
    ).only(chosen)


def replay_ideal(rows: Rows, relies: Numbers, cause: Numbers, meeting: Numbers) -> tuple[Numbers, Numbers]:
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
    return _replay(rows, points, relies, cause, meeting)


def _replay(
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
