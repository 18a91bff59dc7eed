"""Whom every call waited for, and how long, from the notes of all ranks.

A rank waits while it is inside a call that depends on a rank that has not come yet. Which ranks those are
follows from the order of calls (`matching`). All of it is done on arrays, a row for each call. A record of
any length is settled in windows: what a window leaves open goes on to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pscale.watch.ideal import on_ideal_network
from pscale.watch.matching import (
    COLLECTIVE,
    Matched,
    collective,
    collectives,
    message,
    messages,
    started,
    takes_any,
)
from pscale.watch.notes import Group, Recorded
from pscale.watch.rows import NEVER, NOTHING, Mask, Numbers, Rows, joined, windows

MOST_AT_ONCE = 2_000_000  # rows: beyond them there is no ideal network and no timeline, but a bound on memory
WINDOW = 500_000  # rows
MOST_SETTLED = 16_000_000  # notes: of a longer record pieces, so that it takes at most 60 s and 2 GiB
MOST_OF_THREADS = 3_000_000  # notes: those of several threads are settled at once


@dataclass(frozen=True, kw_only=True, eq=False)
class Settled:
    """What the calls of a window waited for; everything but `rows` and `groups` is by row.

    `wait` is on the row of the call that takes the time; of several requests the last one counts.
    """

    rows: Rows
    groups: Sequence[Group]
    wait: Numbers
    cause: Numbers  # the rank that was waited for last; -1: none
    cause_at: Numbers  # when it came
    post: Numbers  # of what completes a request: the row that started it; -1: none or not known
    started: Numbers  # the same, and of what tested one and found it incomplete
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


def settled_in_windows(recorded: Recorded, window: int) -> Iterator[Settled]:
    """Settle a record in windows of so many rows."""
    found, _ = recorded.groups
    cancels = np.array([facts.cancels for facts in recorded.facts])
    left: Rows | None = None
    for following, last in windows(recorded, window):
        rows = following if left is None else joined(left, following)
        now, left = _settled(rows, found, cancels, last=last)
        yield now


def settle(rows: Rows, found: Sequence[Group]) -> Settled:
    """Find out what every call of a whole program waited for."""
    return _settled(rows, found, np.zeros(len(rows.places) - 1, np.bool_), last=True, whole=True)[0]


def _settled(
    rows: Rows, found: Sequence[Group], cancels: Mask, *, last: bool, whole: bool = False
) -> tuple[Settled, Rows | None]:
    """Settle what can be of a window; return also what is left to do, nothing of the `last`.

    `cancels` tells which ranks cancel requests: what of theirs is not over may still come to nothing.
    """
    asked, kept = started(rows)
    post = np.where(rows.fruitless, NOTHING, asked)
    rows = replace(rows, cancelled=_cancelled(rows, post))
    resolved = _resolved(rows, post)
    over = np.zeros(len(post), np.bool_)
    over[post[post >= 0]] = True
    known = Matched.of(rows)
    meetings = collectives(rows, found, known, last=last)
    may_change = takes_any(resolved) | (rows.is_kind("RECEIVE") & cancels[rows.rank])
    undecided = may_change & resolved.is_mode("STARTS") & ~over & ~rows.fruitless & (not last)
    messages(resolved, found, known, undecided)
    pending = np.zeros(len(post), np.bool_) if last else _pending(resolved, found, known, asked, undecided)
    now, dependencies = _waits(resolved, found, known, asked, post, ~pending & ~rows.counted)
    if last and whole:
        wait, leave = on_ideal_network(rows, dependencies, known.cause, meetings)
        return replace(now, ideal_wait=wait, ideal_leave=leave), None
    return now, None if last else _left(resolved, known, post, pending, kept)


def _waits(  # noqa: PLR0917
    rows: Rows, found: Sequence[Group], known: Matched, asked: Numbers, post: Numbers, final: Mask
) -> tuple[Settled, Numbers]:
    """Return what each call waited for, and by row on which row it depends."""
    numbers, own = np.arange(len(post)), rows.is_own()
    relies = np.where(post >= 0, post, numbers)  # the row whose needs a row waits for
    needs = (rows.is_mode("BLOCKS") & ~rows.is_kind("COMPLETE")) | (post >= 0)
    until = np.where(needs, known.arrival[relies], NEVER)
    sends = rows.is_kind("SEND") | (rows.is_kind("BOTH") & own)
    until[sends[relies] & (until > rows.leave)] = NEVER  # buffered: over before its receiver came
    about = _last_parts(rows, until)
    waited = np.clip(until[about], rows.enter, rows.leave) - rows.enter
    wait = np.where(own, waited, 0)
    by = np.where(known.cause >= 0, rows.rank[known.cause], rows.cause)[relies[about]]
    settled = Settled(
        rows=rows,
        groups=found,
        wait=wait,
        cause=np.where(wait > 0, by, NOTHING),
        cause_at=known.arrival[relies[about]],
        post=post,
        started=asked,
        about=about,
        ordinary=~_unsettled(rows, post, known.matched),
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


def _cancelled(rows: Rows, post: Numbers) -> Mask:
    """Tell which calls exchanged nothing: what completed them knows it."""
    cancelled = rows.cancelled.copy()
    cancelled[post[(post >= 0) & rows.cancelled]] = True
    return cancelled


def _resolved(rows: Rows, post: Numbers) -> Rows:
    """Say of receives from anybody from whom they got a message: what completed them knows."""
    over = np.flatnonzero(post >= 0)
    over = over[takes_any(rows)[post[over]] & (rows.peer[over] >= 0)]
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


def _pending(rows: Rows, found: Sequence[Group], known: Matched, asked: Numbers, undecided: Mask) -> Mask:
    """Tell which calls, with all their parts, a later window may say more of."""
    probes = rows.is_kind("PROBE")
    waits = message(rows) & (rows.peer >= 0) & ~(known.matched & probes)
    open_ = ((collective(rows, found) | waits) & ~known.paired) | undecided | rows.open
    open_ |= (asked >= 0) & open_[asked]
    of_main = np.zeros(len(asked), np.bool_)
    of_main[rows.main[open_]] = True
    return np.asarray(of_main[rows.main])


def _left(rows: Rows, known: Matched, post: Numbers, pending: Mask, kept: Mask) -> Rows:
    """Return what a later window needs: what is pending, and requests that may still be completed."""
    over = post >= 0
    done, used = np.zeros((2, len(post)), np.bool_)
    done[post[over & ~pending]] = used[post[over & pending]] = True
    requests = (kept & ~done) | used
    chosen = requests | pending
    chosen[rows.main[chosen]] = True
    by = np.where(known.cause >= 0, rows.rank[known.cause], rows.cause)
    return replace(
        rows,
        request=np.where(requests | pending, rows.request, 0),
        arrival=known.arrival,
        cause=by,
        matched=known.matched,
        paired=known.paired,
        counted=rows.counted | ~pending,
    ).only(chosen)
