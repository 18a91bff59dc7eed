"""Which calls belong to each other: those of one request, of one collective, of one message.

The k-th collective of a communicator is everybody's k-th, the k-th message sent between two ranks with one
tag is the k-th received.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pscale.watch.notes import ANYBODY, Group
from pscale.watch.rows import (
    NEVER,
    NOTHING,
    Mask,
    Numbers,
    Rows,
    by_request,
    first_of_run,
    last_where,
    of_kinds,
)

_WIDEST, _LEAST = 64, 3_000_000  # places of a table of meetings, for each call in it, and in any case
COLLECTIVE = ("ALL", "FROM_ROOT", "TO_ROOT", "PREFIX", "NEAR")


@dataclass(kw_only=True, eq=False)
class Matched:
    """What is known of each row: when the last rank came that it depends on, and in which row."""

    arrival: Numbers
    cause: Numbers
    matched: Mask
    paired: Mask  # neither its collective nor the other end of its message needs it any more

    @classmethod
    def of(cls, rows: Rows) -> Matched:
        """Begin with what is known from earlier windows."""
        nobody = np.full(len(rows.rank), NOTHING)
        return cls(
            arrival=rows.arrival.copy(), cause=nobody, matched=rows.matched.copy(), paired=rows.paired.copy()
        )


def match_requests(rows: Rows) -> tuple[Numbers, Mask]:
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


def match_collectives(rows: Rows, groups: Sequence[Group], to: Matched, *, last: bool) -> Numbers:
    """Fill in when the last rank came that a collective depends on; return the number of its meeting.

    Unless it is the `last` window, a rank that has not come yet may come later.
    """
    meeting, so_far = np.full(len(rows.rank), NOTHING), 0
    which = np.flatnonzero(is_settled_collective(rows, groups) & ~rows.paired)
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


def is_settled_collective(rows: Rows, groups: Sequence[Group]) -> Mask:
    """Tell which rows are settled by their turn in a communicator."""
    within = np.array([*(not group.remote for group in groups), False])
    return np.asarray(rows.is_kind(*COLLECTIVE) & ~rows.is_mode("PERSISTENT") & within[rows.group])


def _places(members: Sequence[int], ranks: Numbers) -> Numbers:
    """Return where in a group each rank is."""
    order = np.argsort(np.array(members))
    return np.asarray(order[np.searchsorted(np.array(members), ranks, sorter=order)])


def _meet(rows: Rows, group: Group, table: Numbers, to: Matched) -> None:
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


def match_messages(rows: Rows, groups: Sequence[Group], to: Matched, undecided: Mask) -> None:
    """Fill in when the other end of every message came.

    Receives after an undecided one, from anybody and not over, may get what that one does not: not yet known.
    """
    own, both = rows.is_own(), rows.is_kind("BOTH")
    live = is_message(rows) & (rows.peer >= 0) & ~rows.paired & ~undecided & ~_held(rows, undecided)
    sends = live & (rows.is_kind("SEND") | (both & own))
    takes = live & (rows.is_kind("RECEIVE") | (both & ~own))
    arriving = np.flatnonzero(takes | (live & rows.is_kind("PROBE") & ~to.matched))
    going = np.flatnonzero(sends)
    if not len(going) or not len(arriving):
        return
    key_of, key_to = _keys(rows, groups, going, arriving)
    order_of, order_to = _sorted(key_of), _sorted(key_to)
    going, key_of, arriving, key_to = going[order_of], key_of[order_of], arriving[order_to], key_to[order_to]
    before: Numbers = (
        np.cumsum(takes[arriving]) - takes[arriving]
    )  # receives: a probe finds what the next one gets
    turn = np.searchsorted(key_of, key_to) + before - before[first_of_run(key_to)]
    known = (turn < len(going)) & (key_of[np.minimum(turn, len(going) - 1)] == key_to)
    one, two = going[turn[known]], arriving[known]
    to.arrival[two], to.cause[two] = rows.enter[one], one
    to.matched[one] = to.matched[two] = True
    one, two = one[takes[two]], two[takes[two]]
    to.arrival[one], to.cause[one] = rows.enter[two], two
    to.paired[one] = to.paired[two] = True


def is_message(rows: Rows) -> Mask:
    """Tell which rows are an end of a message, or look for one."""
    kind = rows.is_kind("SEND", "RECEIVE", "BOTH", "PROBE")
    exchanges = ~rows.fruitless & ~rows.cancelled & (rows.group >= 0)
    return np.asarray(kind & ~rows.is_mode("PERSISTENT") & exchanges)


def has_wildcard(rows: Rows) -> Mask:
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
    span = int(max(own.max() for own in tags)) + 2
    if int(max(own.max() for own in pairs)) >= 2**62 // span:
        values = np.unique(np.concatenate(pairs))
        pairs = [np.searchsorted(values, own) for own in pairs]
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
