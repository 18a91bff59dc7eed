"""Whom every call waited for, and how long, from the notes of all ranks.

A rank waits while it is inside a call that depends on a rank that has not come yet. Which ranks those are
follows from the order of calls: the k-th collective of a communicator is everybody's k-th, the k-th message
sent between two ranks with one tag is the k-th received. All of it is done on arrays, a row for
each call; the last pass alone, on an ideal network, goes from call to call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.watch.notes import ANYBODY, FRUITLESS, PART, THREAD_SHIFT, Group, Recorded, calls, groups

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_NOTHING = -1
_NEVER = np.iinfo(np.int64).min
_MOST_REPLAYED = 3_000_000  # rows: beyond them the ideal network takes longer than people wait
_WIDEST = 64  # places of a table of meetings, for each call in it
_COLLECTIVE = ("ALL", "FROM_ROOT", "TO_ROOT", "PREFIX", "NEAR")


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """The calls of all ranks, rank by rank in their order. Times are ns of rank 0's clock.

    `call`, `peer`, `tag`, `group` and `bytes` of a started persistent request are those of its template.
    """

    rank: Numbers
    enter: Numbers
    leave: Numbers
    bytes: Numbers
    request: Numbers
    group: Numbers  # which of the communicators; -1: none
    peer: Numbers
    tag: Numbers
    call: Numbers
    main: Numbers  # the row of the call that a part belongs to; its own otherwise
    thread: Numbers  # 0: the one that called MPI_Init
    fruitless: Mask
    open: Mask  # the call had not returned when the record ends
    starts: Mask  # by MPI_Start
    places: Numbers  # the first row of every rank, and the end

    def is_kind(self, *kinds: str) -> Mask:
        """Tell which rows are of calls of these kinds."""
        chosen = np.array([call.kind in kinds for call in calls()])
        return np.asarray(chosen[self.call])

    def is_mode(self, mode: str) -> Mask:
        """Tell which rows are of calls of this mode; persistent requests that are started are nonblocking."""
        chosen = np.array([call.mode == mode for call in calls()])
        return np.asarray(np.where(self.starts, mode == "STARTS", chosen[self.call]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Settled:
    """What the calls of a job waited for; everything but `rows` and `groups` is by row.

    `wait` is on the row of the call that takes the time; of several requests the last one counts.
    """

    rows: Rows
    groups: Sequence[Group]
    wait: Numbers
    cause: Numbers  # the row that was waited for last; -1: none
    ideal_wait: Numbers | None  # on an ideal network; None: there are too many calls to replay
    ideal_leave: Numbers | None
    post: Numbers  # of what completes a request: the row that started it; -1: none or not known
    started: Numbers  # the same, and of what tested one and found it incomplete
    about: Numbers  # of a call with parts: the part that it waited for; else the row itself
    ordinary: Mask  # was settled, or can wait for nobody


def rows_of(recorded: Recorded) -> tuple[Rows, list[Group]]:
    """Put the notes of all ranks below each other, on one clock."""
    found, means = groups(recorded.facts)
    parts: list[dict[str, NDArray[Any]]] = []
    offset, places = 0, [0]
    for facts, notes, table in zip(recorded.facts, recorded.notes, means, strict=True):
        kept = np.flatnonzero(notes["enter"] > 0)
        place = np.full(len(notes) + 1, _NOTHING)
        place[kept] = offset + np.arange(len(kept))
        own = notes[kept]
        still = own["leave"] == 0
        last = int(max(own["enter"].max(initial=0), own["leave"].max(initial=0), facts.end_ns or 0))
        clock, part = facts.clock(), (own["flags"] & PART) > 0
        parts.append(
            {
                "rank": np.full(len(kept), facts.rank),
                "enter": clock(own["enter"]),
                "leave": clock(np.where(still, last, own["leave"])),
                **{name: own[name].astype(np.int64) for name in ("bytes", "request", "peer", "tag", "call")},
                "group": table[np.clip(own["comm"], 0, len(table) - 1)],
                "main": np.where(part, place[np.where(part, own["bytes"], len(notes))], place[kept]),
                "thread": np.maximum((own["flags"] >> THREAD_SHIFT).astype(np.int64) - 1, 0),
                "fruitless": (own["flags"] & FRUITLESS) > 0,
                "open": still,
            }
        )
        offset += len(kept)
        places.append(offset)
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    sizes = np.array([*(len(group.remote or group.members) for group in found), 0])
    columns["group"][columns["peer"] >= sizes[columns["group"]]] = _NOTHING  # nobody is at the other end
    rows = Rows(**columns, starts=np.zeros(offset, np.bool_), places=np.array(places))
    return _started(rows), found


def _started(rows: Rows) -> Rows:
    """Give what MPI_Start started the words of the call that made the request."""
    starts = rows.is_kind("START")
    made = _latest(rows, starts, rows.is_mode("PERSISTENT"))
    known = starts & (made >= 0)
    names = ("group", "peer", "tag", "call", "bytes")
    changed = {name: np.where(known, getattr(rows, name)[made], getattr(rows, name)) for name in names}
    payload = np.where(starts & ~known, 0, changed.pop("bytes"))
    probes = rows.is_kind("RECEIVE") & ~rows.fruitless
    probe = np.maximum.accumulate(np.where(probes, np.arange(len(probes)), 0)) if len(probes) else rows.rank
    changed["group"] = np.where(rows.is_kind("MATCHED"), rows.group[probe], changed["group"])
    return replace(rows, **changed, bytes=payload, starts=known)


def _latest(rows: Rows, asking: Mask, sources: Mask) -> Numbers:
    """Return, for rows that name a request, the last of the `sources` before them with the same; -1: none."""
    chosen = np.flatnonzero((asking | sources) & (rows.request != 0))
    order = chosen[np.lexsort((chosen, rows.request[chosen], rows.rank[chosen]))]
    same = np.ones(len(order), np.bool_)
    same[1:] = (np.diff(rows.request[order]) == 0) & (np.diff(rows.rank[order]) == 0)
    first = np.maximum.accumulate(np.where(same, 0, np.arange(len(order)))) if len(order) else order
    last = np.maximum.accumulate(np.where(sources[order], np.arange(len(order)), _NOTHING))
    found = np.full(len(rows.rank), _NOTHING)
    found[order] = np.where(last >= first, order[np.maximum(last, 0)], _NOTHING)
    return np.where(asking, found, _NOTHING)


def _in_turn(rows: Rows, asking: Mask, latest: Numbers) -> Numbers:
    """Return `latest`, but one by one for sends that share a request: MPICH gives one to all done ones."""
    sends = rows.is_kind("SEND") & rows.is_mode("STARTS")
    over = asking & ~rows.fruitless & (latest >= 0) & sends[latest]
    chosen = np.flatnonzero((over | sends) & (rows.request != 0))
    order = chosen[np.lexsort((chosen, rows.request[chosen], rows.rank[chosen]))]
    first = np.arange(len(order)) - _cumulative([rows.request, rows.rank], order)
    is_send = sends[order]
    before: Numbers = np.cumsum(is_send) - is_send
    done: Numbers = np.arange(len(order)) - before
    turn, room = done - done[first], before - before[first]
    known = ~is_send & (turn < room)
    found = latest.copy()
    found[order[known]] = order[is_send][(before[first] + turn)[known]]
    return found


def settle(rows: Rows, found: Sequence[Group]) -> Settled:
    """Find out what every call waited for."""
    size = len(rows.rank)
    tests = rows.is_kind("COMPLETE")
    started = _in_turn(rows, tests, _latest(rows, tests, rows.is_mode("STARTS")))
    post = np.where(rows.fruitless, _NOTHING, started)
    resolved = _resolved(rows, post)
    arrival, cause = np.full(size, _NEVER), np.full(size, _NOTHING)
    matched = np.zeros(size, np.bool_)
    columns = _collectives(rows, found, arrival, cause, matched)
    _messages(resolved, found, arrival, cause, matched)
    relies = np.where(post >= 0, post, np.arange(size))  # the row whose needs a row waits for
    needs = (rows.is_mode("BLOCKS") & ~rows.is_kind("COMPLETE")) | (post >= 0)
    until = np.where(needs, arrival[relies], _NEVER)
    until = np.where(_is_buffered(rows, relies, until), _NEVER, until)
    order = np.lexsort((until, rows.main))
    last = order[np.append(np.diff(rows.main[order]) != 0, True)] if size else order
    about = np.arange(size)
    about[rows.main[last]] = last
    own = rows.main == np.arange(size)
    waited = np.clip(until[about], rows.enter, rows.leave) - rows.enter
    wait = np.where(own, waited, 0)
    why = np.where(wait > 0, cause[relies[about]], _NOTHING)
    dependencies = np.where(needs & (until > _NEVER), relies, _NOTHING)
    ideal_wait, ideal_leave = _on_ideal_network(rows, dependencies, cause, columns)
    return Settled(
        rows=resolved,
        groups=found,
        wait=wait,
        cause=why,
        ideal_wait=ideal_wait,
        ideal_leave=ideal_leave,
        post=post,
        started=started,
        about=about,
        ordinary=~_unsettled(rows, post, matched, resolved),
    )


def _resolved(rows: Rows, post: Numbers) -> Rows:
    """Say of receives from anybody from whom they got a message: what completed them knows."""
    peer, tag = rows.peer.copy(), rows.tag.copy()
    over = np.flatnonzero(post >= 0)
    over = over[(rows.peer[post[over]] == ANYBODY) | (rows.tag[post[over]] < 0)]
    over = over[rows.is_kind("RECEIVE", "BOTH")[post[over]] & (rows.peer[over] >= 0)]
    peer[post[over]], tag[post[over]] = rows.peer[over], rows.tag[over]
    return replace(rows, peer=peer, tag=tag)


def _is_buffered(rows: Rows, relies: Numbers, until: Numbers) -> Mask:
    """Tell which sends were over before their receiver came: they waited for nobody."""
    sends = rows.is_kind("SEND") | (rows.is_kind("BOTH") & (rows.main == np.arange(len(rows.rank))))
    return np.asarray(sends[relies] & (until > rows.leave))


def _unsettled(rows: Rows, post: Numbers, matched: Mask, resolved: Rows) -> Mask:
    """Tell which calls may have waited for somebody of whom nothing is known."""
    ours = rows.is_kind(*_COLLECTIVE, "SEND", "RECEIVE", "BOTH", "PROBE") & ~rows.is_mode("PERSISTENT")
    alone = rows.is_kind("SEND", "RECEIVE", "BOTH", "PROBE") & (resolved.peer == _NOTHING)  # MPI_PROC_NULL
    lost = ours & ~matched & ~alone & ~rows.fruitless
    lost |= rows.is_kind("OTHER")
    return np.asarray(lost | ((post >= 0) & lost[post]))


def _cumulative(keys: Sequence[Numbers], order: Numbers) -> Numbers:
    """Return of rows in `order`, sorted by the keys, how many before it have the same keys."""
    new = np.zeros(len(order), np.bool_)
    new[:1] = True
    for key in keys:
        new[1:] |= np.diff(key[order]) != 0
    return np.arange(len(order)) - np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))


def _collectives(
    rows: Rows, found: Sequence[Group], arrival: Numbers, cause: Numbers, matched: Mask
) -> Numbers:
    """Fill in when the last rank came that a collective depends on; return the number of its meeting."""
    chosen = rows.is_kind(*_COLLECTIVE) & ~rows.is_mode("PERSISTENT") & (rows.group >= 0)
    meeting, so_far = np.full(len(rows.rank), _NOTHING), 0
    for number in np.unique(rows.group[chosen]).tolist():
        group = found[number]
        if group.remote:
            continue
        mine = np.flatnonzero(chosen & (rows.group == number))
        order = mine[np.argsort(rows.rank[mine], kind="stable")]
        turn = _cumulative([rows.rank], order)
        if int(turn.max()) * len(group.members) > _WIDEST * len(order) + _MOST_REPLAYED:
            continue  # some ranks are so far ahead that next to nothing is known of the others
        member = _places(group.members, rows.rank[order])
        table = np.full((int(turn.max()) + 1, len(group.members)), _NOTHING)
        table[turn, member] = order
        meeting[order] = so_far + turn
        so_far += len(table)
        _meet(rows, group, table, arrival, cause)
        matched[order] = (table.min(axis=1) >= 0)[turn]
    return np.where(rows.is_kind("ALL", "TO_ROOT"), meeting, _NOTHING)


def _places(members: Sequence[int], ranks: Numbers) -> Numbers:
    """Return where in a group each rank is."""
    order = np.argsort(np.array(members))
    return np.asarray(order[np.searchsorted(np.array(members), ranks, sorter=order)])


def _meet(rows: Rows, group: Group, table: Numbers, arrival: Numbers, cause: Numbers) -> None:
    """Fill in whom each collective waited for: `table` has a line for each, a column for each member."""
    enter = np.where(table >= 0, rows.enter[table], _NEVER)
    first = table.max(axis=1)
    for kind in _COLLECTIVE:
        lines = np.flatnonzero(rows.is_kind(kind)[first])
        if not len(lines):
            continue
        last = _last(kind, enter[lines], rows.peer[first[lines]], group)
        here = table[lines]
        depends = (last >= 0) & (here >= 0)
        causes = np.take_along_axis(here, np.maximum(last, 0), axis=1)
        arrival[here[depends]] = rows.enter[causes[depends]]
        cause[here[depends]] = causes[depends]


def _last(kind: str, enter: Numbers, roots: Numbers, group: Group) -> Numbers:
    """Return, for each member of each collective, which member that it depends on came last; -1: on none."""
    lines, size = enter.shape
    latest, members = enter.argmax(axis=1)[:, None], np.arange(size)[None]
    match kind:
        case "FROM_ROOT":
            return np.where(members == roots[:, None], _NOTHING, roots[:, None])
        case "TO_ROOT":
            return np.where(members == roots[:, None], latest, _NOTHING)
        case "PREFIX":
            highest = np.maximum.accumulate(enter, axis=1)
            return np.maximum.accumulate(np.where(enter == highest, members, 0), axis=1)
        case "NEAR":
            last = np.full((lines, size), _NOTHING)
            for member, near in group.near.items():
                last[:, member] = np.array(near)[enter[:, list(near)].argmax(axis=1)]
            return last
    return np.broadcast_to(latest, enter.shape)


def _messages(rows: Rows, found: Sequence[Group], arrival: Numbers, cause: Numbers, matched: Mask) -> None:
    """Fill in when the other end of every message came."""
    own = rows.main == np.arange(len(rows.rank))
    live = ~rows.is_mode("PERSISTENT") & (rows.peer >= 0) & (rows.group >= 0) & ~rows.fruitless
    both, probes = rows.is_kind("BOTH"), rows.is_kind("PROBE")
    sends = live & (rows.is_kind("SEND") | (both & own))
    takes = live & (rows.is_kind("RECEIVE") | (both & ~own))
    ends = np.flatnonzero(sends | takes | (live & probes))
    other = np.full(len(rows.rank), _NOTHING)
    other[ends] = partners(rows, found, ends)
    source, to = np.where(sends, rows.rank, other), np.where(sends, other, rows.rank)
    keys = [rows.group, source, to, rows.tag]
    arriving = ends[~sends[ends]]
    order = arriving[np.lexsort((arriving, *reversed([key[arriving] for key in keys])))]
    new = _cumulative(keys, order) == 0
    before = np.cumsum(takes[order]) - takes[order]  # receives so far: a probe finds what the next one gets
    turn_to = before - np.maximum.accumulate(np.where(new, before, 0)) if len(order) else before
    going = ends[sends[ends]]
    order_of = going[np.lexsort((going, *reversed([key[going] for key in keys])))]
    turn_of = _cumulative(keys, order_of)
    one, two = _paired(keys, order_of, turn_of, order, turn_to)
    arrival[two], cause[two] = rows.enter[one], one
    real = takes[two]
    arrival[one[real]], cause[one[real]] = rows.enter[two[real]], two[real]
    matched[one], matched[two] = True, True


def partners(rows: Rows, found: Sequence[Group], ends: Numbers) -> Numbers:
    """Return the rank in the world at the other end of each message."""
    partner = np.full(len(ends), _NOTHING)
    for number in np.unique(rows.group[ends]).tolist():
        here = rows.group[ends] == number
        members = np.array(found[number].remote or found[number].members)
        peers = rows.peer[ends[here]]
        partner[here] = members[np.minimum(peers, len(members) - 1)]
    return partner


def _paired(
    keys: Sequence[Numbers], sends: Numbers, turn_of: Numbers, takes: Numbers, turn_to: Numbers
) -> tuple[Numbers, Numbers]:
    """Return the rows of both ends of all messages that have two."""
    rows, turns = np.concatenate([sends, takes]), np.concatenate([turn_of, turn_to])
    is_take = np.arange(len(rows)) >= len(sends)
    order = np.lexsort((is_take, turns, *reversed([key[rows] for key in keys])))
    new = np.ones(len(order), np.bool_)
    new[1:] = np.diff(turns[order]) != 0
    for key in keys:
        new[1:] |= np.diff(key[rows[order]]) != 0
    leader = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0)) if len(order) else order
    pair = is_take[order] & ~is_take[order[leader]]
    return rows[order[leader[pair]]], rows[order[pair]]


def _on_ideal_network(
    rows: Rows, relies: Numbers, cause: Numbers, meeting: Numbers
) -> tuple[Numbers | None, Numbers | None]:
    """Return the wait that is left of every call, and when it returns, where messages take no time.

    Calls are taken up in the order in which they began and ended: what one depends on came before its end.
    """
    size = len(rows.rank)
    if size > _MOST_REPLAYED:
        return None, None
    own = rows.main == np.arange(size)
    chosen = np.flatnonzero(rows.thread == 0)
    mains = chosen[own[chosen]]
    times = np.concatenate([rows.enter[chosen], rows.leave[mains]])
    is_end = np.arange(len(times)) >= len(chosen)
    which = np.concatenate([chosen, mains])
    order = np.lexsort((is_end, times))
    points = zip(which[order].tolist(), is_end[order].tolist(), strict=True)
    sends = rows.is_kind("SEND") | (rows.is_kind("BOTH") & own)
    relies = np.where((relies >= 0) & sends[relies], _NOTHING, relies)  # what is sent is buffered
    return _replayed(rows, points, relies, cause, meeting)


def _replayed(
    rows: Rows, points: Iterable[tuple[int, bool]], relies: Numbers, cause: Numbers, meeting: Numbers
) -> tuple[Numbers, Numbers]:
    """Go through the beginnings and ends of all calls; `saved` is by how much each rank is ahead."""
    parts: dict[int, list[int]] = {}
    for row in np.flatnonzero(rows.main != np.arange(len(rows.main))).tolist():
        parts.setdefault(int(rows.main[row]), []).append(row)
    rank, enter, leave, outside = (
        each.tolist() for each in (rows.rank, rows.enter, rows.leave, _outside(rows))
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


def _outside(rows: Rows) -> Numbers:
    """Return the time of every row that is not in MPI: between tests that are one row."""
    return np.where(rows.fruitless, rows.leave - rows.enter - rows.bytes, 0)


def inside(rows: Rows) -> Numbers:
    """Return the time of every row that is in MPI."""
    own = rows.main == np.arange(len(rows.rank))
    return np.where(own, rows.leave - rows.enter - _outside(rows), 0)
