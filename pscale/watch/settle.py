"""Whom every call waited for, and how long, from the notes of all ranks.

A rank waits while it is inside a call that depends on a rank that has not come yet. Which ranks those are
follows from the order of calls. All of it is done on arrays, a row for each call. A record of
any length is settled in windows: what a window leaves open goes on to the next.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pscale.watch.notes import ANYBODY, Group, Recorded
from pscale.watch.rows import (
    NEVER,
    NOTHING,
    Mask,
    Numbers,
    Rows,
    by_request,
    first_of_run,
    join_rows,
    last_where,
    of_kinds,
    windows,
)

_WIDEST, _LEAST = 64, 3_000_000  # places of a table of meetings, for each call in it, and in any case
COLLECTIVE = ("ALL", "FROM_ROOT", "TO_ROOT", "PREFIX", "NEAR")


@dataclass(kw_only=True, eq=False)
class _Matched:
    """What is known of each row: when the last rank came that it depends on, and in which row."""

    arrival: Numbers
    cause: Numbers
    matched: Mask
    paired: Mask  # neither its collective nor the other end of its message needs it any more

    @classmethod
    def of(cls, rows: Rows) -> _Matched:
        """Begin with what is known from earlier windows."""
        nobody = np.full(len(rows.rank), NOTHING)
        return cls(
            arrival=rows.arrival.copy(), cause=nobody, matched=rows.matched.copy(), paired=rows.paired.copy()
        )


def _match_requests(rows: Rows) -> tuple[Numbers, Mask]:
    """Return, for what completes or tests a request, the row that started it; -1: none. And what to keep.

    A request is completed once. MPICH gives one handle to all sends that are over: they are completed in
    turn. To keep are the starts which may still be completed: sends, and of others the last with its handle.
    """
    asks, starts = rows.is_kind("COMPLETE"), rows.is_mode("STARTS")
    order = by_request(rows, asks | starts)
    first = first_of_run(rows.request[order], rows.rank[order])
    is_start, is_over = starts[order], (asks & ~rows.fruitless)[order]
    is_send = is_start & rows.is_kind("SEND")[order]
    last, event = last_where(is_start), last_where(is_start | is_over)
    before = np.append(NOTHING, event[:-1])[: len(order)]
    of_send = (last >= first) & is_send[last]
    used = is_over & ~of_send & ((before < first) | ~is_start[before])
    start = np.full(len(rows.rank), NOTHING)
    certain = asks[order] & (last >= first) & ~used
    start[order[certain]] = order[last[certain]]
    turns = np.flatnonzero((is_over & of_send) | is_send)
    start[order[turns[~is_send[turns]]]] = _in_turn(order[turns], is_send[turns], first[turns])
    open_starts = np.zeros(len(rows.rank), np.bool_)
    next_start = np.full(len(order), NOTHING)
    at = np.flatnonzero(is_start)
    next_start[at[:-1]] = at[1:]
    replaced = is_start & ~is_send & (next_start >= 0) & (first[next_start] == first)
    open_starts[order[is_start & ~replaced]] = True
    return start, open_starts


def _in_turn(order: Numbers, is_send: Mask, segment: Numbers) -> Numbers:
    """Return the sends that the completions among these rows complete, first come first; -1: none is left."""
    if not len(order):
        return order
    numbers, first = np.arange(len(order)), first_of_run(segment)
    sends: Numbers = np.cumsum(is_send) - is_send
    sent: Numbers = sends - sends[first]
    done = numbers - first - sent
    beyond = np.where(is_send, 0, done + 1 - sent)
    apart = first * (len(order) + 1)  # a running maximum that begins anew with every segment
    most = np.maximum.accumulate(np.maximum(beyond, 0) + apart)
    lost = np.where(first == numbers, 0, np.append(0, most[:-1]) - apart).clip(0)  # completions of no send
    turn = sends[first] + done - lost
    certain = ~is_send & (beyond <= lost)
    start = np.full(len(order), NOTHING)
    start[certain] = order[is_send][turn[certain]]
    return start[~is_send]


def _match_collectives(rows: Rows, groups: Sequence[Group], to: _Matched, *, last: bool) -> Numbers:
    """Fill in when the last rank came that a collective depends on; return the number of its meeting.

    Unless it is the `last` window, a rank that has not come yet may come later.
    """
    meeting, so_far = np.full(len(rows.rank), NOTHING), 0
    which = np.flatnonzero(_is_settled_collective(rows, groups) & ~rows.paired)
    which = which[np.argsort(rows.group[which], kind="stable")]  # the calls of each are rank by rank
    turn = np.arange(len(which)) - first_of_run(rows.group[which], rows.rank[which])
    for chosen, lines in _alike(rows.group[which], turn, groups):
        order, group = which[chosen], groups[rows.group[which[chosen[0]]]]
        table = np.full((int(lines.max()) + 1, len(group.members)), NOTHING)
        table[lines, _places(group.members, rows.rank[order])] = order
        meeting[order] = so_far + lines
        so_far += len(table)
        whole = table.min(axis=1) >= 0
        _meet(rows, group, table if last else table[whole], to)
        to.matched[order] = to.paired[order] = whole[lines]
    return np.where(rows.is_kind("ALL", "TO_ROOT"), meeting, NOTHING)


def _alike(group_of: Numbers, turn: Numbers, groups: Sequence[Group]) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the calls of communicators with the same members, and in which line of one table each belongs.

    There may be very many communicators. Where some ranks are so far ahead that next to nothing is known of
    the others, the calls of a communicator are left out.
    """
    numbers, which, counts = np.unique(group_of, return_inverse=True, return_counts=True)
    lines = np.zeros(len(numbers), np.int64)
    np.maximum.at(lines, which, turn + 1)
    sizes = lines * np.array([len(groups[number].members) for number in numbers.tolist()], np.int64)
    tables: defaultdict[object, list[int]] = defaultdict(list)
    for place, (number, is_wide) in enumerate(zip(numbers.tolist(), sizes > _WIDEST * counts, strict=True)):
        group = groups[number]
        alone = group.near or is_wide
        if sizes[place] <= _WIDEST * counts[place] + _LEAST:
            tables[number if alone else group.members].append(place)
    table_of, first = np.full(len(numbers), NOTHING), np.zeros(len(numbers), np.int64)
    for table, places in enumerate(tables.values()):
        table_of[places] = table
        first[places] = np.cumsum(lines[places]) - lines[places]
    order = np.argsort(table_of[which], kind="stable")
    edges = np.searchsorted(table_of[which][order], np.arange(len(tables) + 1))
    for begin, end in itertools.pairwise(edges.tolist()):
        chosen = order[begin:end]
        yield chosen, first[which[chosen]] + turn[chosen]


def _is_settled_collective(rows: Rows, groups: Sequence[Group]) -> Mask:
    """Tell which rows are settled by their turn in a communicator."""
    within = np.array([*(not group.remote for group in groups), False])
    return np.asarray(rows.is_kind(*COLLECTIVE) & ~rows.is_mode("PERSISTENT") & within[rows.group])


def _places(members: Sequence[int], ranks: Numbers) -> Numbers:
    """Return where in a group each rank is."""
    order = np.argsort(np.array(members))
    return np.asarray(order[np.searchsorted(np.array(members), ranks, sorter=order)])


def _meet(rows: Rows, group: Group, table: Numbers, to: _Matched) -> None:
    """Fill in whom each collective waited for: `table` has a line for each, a column for each member."""
    enter = np.where(table >= 0, rows.enter[table], NEVER)
    first = table.max(axis=1)
    called = rows.call[first]  # of few rows, as there may be very many communicators
    for kind in COLLECTIVE:
        lines = np.flatnonzero(of_kinds((kind,))[called])
        if not len(lines):
            continue
        last = _last(kind, enter[lines], rows.peer[first[lines]], group)
        here = table[lines]
        depends = (last >= 0) & (here >= 0)
        causes = np.take_along_axis(here, np.maximum(last, 0), axis=1)
        to.arrival[here[depends]] = rows.enter[causes[depends]]
        to.cause[here[depends]] = causes[depends]


def _last(kind: str, enter: Numbers, roots: Numbers, group: Group) -> Numbers:
    """Return, for each member of each collective, which member that it depends on came last; -1: on none."""
    lines, size = enter.shape
    latest, members = enter.argmax(axis=1)[:, None], np.arange(size)[None]
    match kind:
        case "FROM_ROOT":
            return np.where(members == roots[:, None], NOTHING, roots[:, None])
        case "TO_ROOT":
            return np.where(members == roots[:, None], latest, NOTHING)
        case "PREFIX":
            highest = np.maximum.accumulate(enter, axis=1)
            return np.maximum.accumulate(np.where(enter == highest, members, 0), axis=1)
        case "NEAR":
            last = np.full((lines, size), NOTHING)
            for member, near in group.near.items():
                last[:, member] = np.array(near)[enter[:, list(near)].argmax(axis=1)]
            return last
    return np.broadcast_to(latest, enter.shape)


def _match_messages(rows: Rows, groups: Sequence[Group], to: _Matched, undecided: Mask) -> None:
    """Fill in when the other end of every message came.

    Receives after an undecided one, from anybody and not over, may get what that one does not: not yet known.
    """
    is_own, both = rows.is_own(), rows.is_kind("BOTH")
    live = _is_message(rows) & (rows.peer >= 0) & ~rows.paired & ~undecided & ~_held(rows, undecided)
    sends = live & (rows.is_kind("SEND") | (both & is_own))
    takes = live & (rows.is_kind("RECEIVE") | (both & ~is_own))
    arriving = np.flatnonzero(takes | (live & rows.is_kind("PROBE") & ~to.matched))
    going = np.flatnonzero(sends)
    if not len(going) or not len(arriving):
        return
    key_of, key_to = _keys(rows, groups, going, arriving)
    order_of, order_to = _sorted(key_of), _sorted(key_to)
    going, key_of, arriving, key_to = going[order_of], key_of[order_of], arriving[order_to], key_to[order_to]
    # Receives before each: a probe finds what the next one gets.
    before: Numbers = np.cumsum(takes[arriving]) - takes[arriving]
    turn = np.searchsorted(key_of, key_to) + before - before[first_of_run(key_to)]
    met = (turn < len(going)) & (key_of[np.minimum(turn, len(going) - 1)] == key_to)
    one, two = going[turn[met]], arriving[met]
    to.arrival[two], to.cause[two] = rows.enter[one], one
    to.matched[one] = to.matched[two] = True
    one, two = one[takes[two]], two[takes[two]]
    to.arrival[one], to.cause[one] = rows.enter[two], two
    to.paired[one] = to.paired[two] = True


def _is_message(rows: Rows) -> Mask:
    """Tell which rows are an end of a message, or look for one."""
    kind = rows.is_kind("SEND", "RECEIVE", "BOTH", "PROBE")
    exchanges = ~rows.fruitless & ~rows.cancelled & (rows.group >= 0)
    return np.asarray(kind & ~rows.is_mode("PERSISTENT") & exchanges)


def _has_wildcard(rows: Rows) -> Mask:
    """Tell which receives were posted with a wildcard."""
    return np.asarray(
        rows.is_kind("RECEIVE", "BOTH") & ((rows.peer == ANYBODY) | ((rows.tag < 0) & (rows.peer >= 0)))
    )


def _held(rows: Rows, undecided: Mask) -> Mask:
    """Tell which receives follow an undecided one that may take their message."""
    held = np.zeros(len(rows.rank), np.bool_)
    first: dict[tuple[int, int, int], int] = {}
    for row in np.flatnonzero(undecided).tolist():
        first.setdefault((int(rows.rank[row]), int(rows.group[row]), max(int(rows.tag[row]), NOTHING)), row)
    for (rank, group, tag), row in first.items():
        after = slice(row + 1, rows.places[rank + 1])
        may = (rows.group[after] == group) & ((rows.tag[after] == tag) | (rows.tag[after] < 0) | (tag < 0))
        held[after] |= may
    return held & ~(rows.is_kind("SEND") | (rows.is_kind("BOTH") & rows.is_own()))


def _keys(rows: Rows, groups: Sequence[Group], going: Numbers, arriving: Numbers) -> tuple[Numbers, Numbers]:
    """Return one number for communicator, sender, receiver and tag of each message."""
    size = len(rows.places) - 1
    pairs = []
    for ends, sends in ((going, True), (arriving, False)):
        source, to = rows.rank[ends], partners(rows, groups, ends)
        source, to = (source, to) if sends else (to, source)
        pairs.append((rows.group[ends] * size + source) * size + to)
    tags = [rows.tag[going], rows.tag[arriving]]
    span = int(max(each.max() for each in tags)) + 2
    if int(max(each.max() for each in pairs)) >= 2**62 // span:
        values = np.unique(np.concatenate(pairs))
        pairs = [np.searchsorted(values, each) for each in pairs]
    of, to = (pair * span + tag + 1 for pair, tag in zip(pairs, tags, strict=True))
    least = min(of.min(), to.min())
    return of - least, to - least


def _sorted(keys: Numbers) -> Numbers:
    """Return the order of the keys; small ones are sorted much faster."""
    return np.argsort(keys.astype(np.uint16) if keys.max() < 2**16 else keys, kind="stable")


def partners(rows: Rows, groups: Sequence[Group], ends: Numbers) -> Numbers:
    """Return the rank in the world at the other end of each message."""
    numbers, place = np.unique(rows.group[ends], return_inverse=True)
    members = [groups[number].remote or groups[number].members for number in numbers.tolist()]
    sizes = np.array([len(each) for each in members], np.int64)
    first = np.cumsum(sizes) - sizes
    every = np.array([rank for each in members for rank in each], np.int64)
    return np.asarray(every[first[place] + np.minimum(rows.peer[ends], sizes[place] - 1)])


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
    start, open_starts = _match_requests(rows)
    post = np.where(rows.fruitless, NOTHING, start)
    rows = replace(rows, cancelled=_mark_cancelled(rows, post))
    resolved = _resolve_wildcards(rows, post)
    over = np.zeros(len(post), np.bool_)
    over[post[post >= 0]] = True
    match = _Matched.of(rows)
    meetings = _match_collectives(rows, groups, match, last=last)
    may_change = _has_wildcard(resolved) | (rows.is_kind("RECEIVE") & cancels[rows.rank])
    undecided = may_change & resolved.is_mode("STARTS") & ~over & ~rows.fruitless & (not last)
    _match_messages(resolved, groups, match, undecided)
    pending = np.zeros(len(post), np.bool_) if last else _pending(resolved, groups, match, start, undecided)
    now, dependencies = _waits(resolved, groups, match, start, post, ~pending & ~rows.counted)
    if last and whole:
        wait, leave = _replay_ideal(rows, dependencies, match.cause, meetings)
        return replace(now, ideal_wait=wait, ideal_leave=leave), None
    return now, None if last else _rows_left(resolved, match, post, pending, open_starts)


def _waits(  # noqa: PLR0917
    rows: Rows, groups: Sequence[Group], match: _Matched, start: Numbers, post: Numbers, final: Mask
) -> tuple[SettledCalls, Numbers]:
    """Return what each call waited for, and by row on which row it depends."""
    numbers, is_own = np.arange(len(post)), rows.is_own()
    relies = np.where(post >= 0, post, numbers)  # the row whose needs a row waits for
    needs = (rows.is_mode("BLOCKS") & ~rows.is_kind("COMPLETE")) | (post >= 0)
    until = np.where(needs, match.arrival[relies], NEVER)
    sends = rows.is_kind("SEND") | (rows.is_kind("BOTH") & is_own)
    until[sends[relies] & (until > rows.leave)] = NEVER  # buffered: over before its receiver came
    about = _last_parts(rows, until)
    waited = np.clip(until[about], rows.enter, rows.leave) - rows.enter
    wait = np.where(is_own, waited, 0)
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
    over = over[_has_wildcard(rows)[post[over]] & (rows.peer[over] >= 0)]
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


def _pending(rows: Rows, groups: Sequence[Group], match: _Matched, start: Numbers, undecided: Mask) -> Mask:
    """Tell which calls, with all their parts, a later window may say more of."""
    probes = rows.is_kind("PROBE")
    waits = _is_message(rows) & (rows.peer >= 0) & ~(match.matched & probes)
    open_ = ((_is_settled_collective(rows, groups) | waits) & ~match.paired) | undecided | rows.open
    open_ |= (start >= 0) & open_[start]
    of_main = np.zeros(len(start), np.bool_)
    of_main[rows.main[open_]] = True
    return np.asarray(of_main[rows.main])


def _rows_left(rows: Rows, match: _Matched, post: Numbers, pending: Mask, open_starts: Mask) -> Rows:
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


def _replay_ideal(rows: Rows, relies: Numbers, cause: Numbers, meeting: Numbers) -> tuple[Numbers, Numbers]:
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
        of = rank[row]
        if not is_end:
            at = came[row] = enter[row] - saved[of]
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
        saved[of] = leave[row] - until
    return np.array(wait, np.int64), np.array(left, np.int64)
