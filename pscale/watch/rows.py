"""The notes of all ranks as columns on one clock: whole, or in windows of time for a record of any length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.watch.notes import (
    CANCELLED,
    FRUITLESS,
    LARGE,
    PART,
    THREAD_SHIFT,
    Facts,
    Group,
    Notes,
    Recorded,
    calls,
)

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

NOTHING = -1
NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """The calls of all ranks, rank by rank in their order. Times are ns of rank 0's clock.

    `call`, `peer`, `tag`, `group` and `bytes` of a started persistent request are those of its template. The
    last five columns are what is known already of the calls that are left from earlier windows.
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
    cancelled: Mask  # no message came of it: also of what failed
    large: Mask  # the function with large counts, MPI_X_c
    open: Mask  # the call had not returned when the record ends
    starts: Mask  # by MPI_Start
    arrival: Numbers  # when the last rank came that it depends on
    cause: Numbers  # which rank that was; -1: none
    matched: Mask  # those it depends on are known
    paired: Mask  # its collective, or the other end of its message, needs it no more
    counted: Mask
    places: Numbers  # the first row of every rank, and the end

    def is_kind(self, *kinds: str) -> Mask:
        """Tell which rows are of calls of these kinds."""
        return np.asarray(of_kinds(kinds)[self.call])

    def is_mode(self, mode: str) -> Mask:
        """Tell which rows are of calls of this mode; persistent requests that are started are nonblocking."""
        chosen = _of_mode(mode)[self.call]
        return chosen | self.starts if mode == "STARTS" else chosen & ~self.starts

    def is_own(self) -> Mask:
        """Tell which rows are calls, not parts of one."""
        return np.asarray(self.main == np.arange(len(self.main)))

    def outside(self) -> Numbers:
        """Return the time of every row that is not in MPI: between tests that are one row."""
        return np.where(self.fruitless, self.leave - self.enter - self.bytes, 0)

    def inside(self) -> Numbers:
        """Return the time of every row that is in MPI."""
        return np.where(self.is_own(), self.leave - self.enter - self.outside(), 0)

    def only(self, chosen: Mask) -> Rows:
        """Return some of the rows, to which the calls of all chosen parts belong."""
        number = np.cumsum(chosen) - 1
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS}
        columns["main"] = number[columns["main"]]
        return Rows(**columns, places=np.append(0, number + 1)[self.places])


_COLUMNS = tuple(column.name for column in fields(Rows) if column.name != "places")


@cache
def of_kinds(kinds: tuple[str, ...]) -> Mask:
    """Tell by number which calls are of these kinds."""
    return np.array([call.kind in kinds for call in calls()])


@cache
def _of_mode(mode: str) -> Mask:
    return np.array([call.mode == mode for call in calls()])


def join_rows(left: Rows, more: Rows) -> Rows:
    """Return for each rank the rows that are left from earlier, and then those that follow."""
    counts = np.diff(left.places), np.diff(more.places)
    starts = np.append(0, np.cumsum(counts[0] + counts[1]))
    place = [
        np.arange(len(rows.rank)) + np.repeat(first - rows.places[:-1], count)
        for rows, first, count in zip(
            (left, more), (starts[:-1], starts[:-1] + counts[0]), counts, strict=True
        )
    ]
    columns: dict[str, NDArray[Any]] = {}
    for name in _COLUMNS:
        both = [getattr(rows, name) for rows in (left, more)]
        if name == "main":
            both = [at[main] for at, main in zip(place, both, strict=True)]
        columns[name] = np.empty(starts[-1], both[1].dtype)
        for at, values in zip(place, both, strict=True):
            columns[name][at] = values
    return Rows(**columns, places=starts)


def all_rows(recorded: Recorded, last: int | None = None) -> tuple[Rows, list[Group]]:
    """Put the notes of all ranks below each other, on one clock; or the `last` of each rank alone."""
    groups, group_of_number = recorded.groups
    firsts = [max(0, len(of_rank) - (last or len(of_rank))) for of_rank in recorded.notes]
    notes = [of_rank[first:] for first, of_rank in zip(firsts, recorded.notes, strict=True)]
    return _started(_put(recorded.facts, notes, group_of_number, groups, firsts)), groups


def windows(recorded: Recorded, most: int) -> Iterator[tuple[Rows, bool]]:
    """Yield the calls of all ranks that fall into a time, and whether a piece of the record ends with them.

    They are some `most` rows. Only for programs in which one thread calls MPI: the parts of a call then
    follow it at once.
    """
    groups, group_of_number = recorded.groups
    for piece in recorded.pieces:
        begins, left = piece.begins, None
        if piece.templates:
            left = _once_more(_put(recorded.facts, piece.templates, group_of_number, groups))
        while live := [rank for rank, end in enumerate(piece.ends) if begins[rank] < end]:
            ends = _ends(recorded, begins, piece.ends, live, max(2, most // len(live)))
            notes = [
                of_rank[begin:end] for of_rank, begin, end in zip(recorded.notes, begins, ends, strict=True)
            ]
            rows = _put(recorded.facts, notes, group_of_number, groups, begins)
            whole = _started(rows if left is None else join_rows(left, rows))
            new = whole.only(~whole.counted)
            left = _once_more(whole.only(_needed(whole)))
            yield new, ends == [*piece.ends]
            begins = ends


def _once_more(rows: Rows) -> Rows:
    """Return rows that have been counted already."""
    return replace(rows, counted=np.ones(len(rows.rank), np.bool_))


def _ends(
    recorded: Recorded, begins: Sequence[int], lasts: Sequence[int], live: Sequence[int], most: int
) -> list[int]:
    """Return up to which note each rank goes in the window that the busiest rank fills."""
    ends, times = list(begins), {}
    for rank in live:
        begin, notes = begins[rank], recorded.notes[rank]
        times[rank] = recorded.facts[rank].clock()(notes[begin : min(begin + most, lasts[rank])]["enter"])
        if begin + most >= lasts[rank]:
            times[rank] = np.append(times[rank], np.iinfo(np.int64).max)
    until = min(int(times_of_rank.max()) for times_of_rank in times.values())
    for rank in live:
        past = np.maximum.accumulate(times[rank]) >= until
        end = begins[rank] + max(1, int(past.argmax()) if past.any() else len(past))
        notes = recorded.notes[rank]
        while end < lasts[rank] and (parts := (notes[end : end + most]["flags"] & PART) > 0)[0]:
            end += len(parts) if parts.all() else int(parts.argmin())
        ends[rank] = min(end, lasts[rank])
    return ends


def _put(
    every: Sequence[Facts],
    recorded: Sequence[Notes],
    group_of_number: Sequence[Numbers],
    groups: Sequence[Group],
    firsts: Sequence[int] | None = None,
) -> Rows:
    """Return rows of notes; `firsts` are the numbers of the first."""
    parts: list[dict[str, NDArray[Any]]] = []
    offset, places = 0, [0]
    for facts, notes, table in zip(every, recorded, group_of_number, strict=True):
        kept = np.flatnonzero(notes["enter"] > 0)
        place = np.full(len(notes), NOTHING)
        place[kept] = offset + np.arange(len(kept))
        written = notes if len(kept) == len(notes) else notes[kept]
        still = written["leave"] == 0
        last = int(max(written["enter"].max(initial=0), written["leave"].max(initial=0), facts.end_ns or 0))
        clock, flags = facts.clock(), written["flags"]
        part, main = np.flatnonzero(flags & PART), place[kept]
        main[part] = place[written["bytes"][part] - (firsts[facts.rank] if firsts else 0)]
        parts.append(
            {
                "rank": np.full(len(kept), facts.rank),
                "enter": clock(written["enter"]),
                "leave": clock(np.where(still, last, written["leave"])),
                **{
                    name: written[name].astype(np.int64)
                    for name in ("bytes", "request", "peer", "tag", "call")
                },
                "group": table[np.clip(written["comm"], 0, len(table) - 1)],
                "main": main,
                "thread": np.maximum((flags >> THREAD_SHIFT).astype(np.int64) - 1, 0),
                "fruitless": (flags & FRUITLESS) > 0,
                "cancelled": (flags & CANCELLED) > 0,
                "large": (flags & LARGE) > 0,
                "open": still,
            }
        )
        offset += len(kept)
        places.append(offset)
    columns: dict[str, NDArray[Any]] = {
        name: np.concatenate([part[name] for part in parts]) for name in parts[0]
    }
    sizes = np.array([*(len(group.remote or group.members) for group in groups), 0])
    columns["group"][columns["peer"] >= sizes[columns["group"]]] = NOTHING  # nobody is at the other end
    columns |= {name: np.zeros(offset, np.bool_) for name in ("starts", "matched", "paired", "counted")}
    columns |= {"arrival": np.full(offset, NEVER), "cause": np.full(offset, NOTHING)}
    return Rows(**columns, places=np.array(places))


def _started(rows: Rows) -> Rows:
    """Give what MPI_Start started the words of the call that made the request."""
    starts, matched = rows.is_kind("START"), rows.is_kind("MATCHED")
    changed: dict[str, NDArray[Any]] = {}
    if starts.any():
        made = latest(rows, starts, rows.is_mode("PERSISTENT"))
        named = starts & (made >= 0)
        names = ("group", "peer", "tag", "call", "bytes")
        changed = {name: np.where(named, getattr(rows, name)[made], getattr(rows, name)) for name in names}
        changed["bytes"] = np.where(starts & ~named, 0, changed["bytes"])
        changed["starts"] = rows.starts | named
    if matched.any():
        probes = rows.is_kind("RECEIVE") & ~rows.fruitless
        probe = np.maximum.accumulate(np.where(probes, np.arange(len(probes)), 0))
        changed["group"] = np.where(matched, rows.group[probe], changed.get("group", rows.group))
    return replace(rows, **changed) if changed else rows


def _needed(rows: Rows) -> Mask:
    """Tell which rows `_started` may ask for again: templates of requests, and the last probe of a rank."""
    chosen = np.zeros(len(rows.rank), np.bool_)
    order = by_request(rows, rows.is_mode("PERSISTENT"))
    first = first_of_run(rows.request[order], rows.rank[order])
    chosen[order[np.diff(first, append=NOTHING) != 0]] = True
    probes = np.flatnonzero(rows.is_kind("RECEIVE") & ~rows.fruitless)
    chosen[probes[np.append(np.diff(rows.rank[probes]) != 0, True)[: len(probes)]]] = True
    chosen[rows.main[chosen]] = True
    return chosen


def latest(rows: Rows, asking: Mask, sources: Mask) -> Numbers:
    """Return, for rows that name a request, the last of the `sources` before them with the same; -1: none."""
    order = by_request(rows, asking | sources)
    first = first_of_run(rows.request[order], rows.rank[order])
    last = last_where(sources[order])
    source = np.full(len(rows.rank), NOTHING)
    source[order] = np.where(last >= first, order[np.maximum(last, 0)], NOTHING)
    return np.where(asking, source, NOTHING)


def first_of_run(*columns: Numbers) -> Numbers:
    """Return by row where the run of rows with the same values in all columns begins."""
    numbers = np.arange(len(columns[0]))
    new = np.zeros(len(numbers), np.bool_)
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return np.asarray(np.maximum.accumulate(np.where(new, numbers, 0)))


def last_where(chosen: Mask) -> Numbers:
    """Return by row the last row up to it that is chosen; -1: none."""
    return np.asarray(np.maximum.accumulate(np.where(chosen, np.arange(len(chosen)), NOTHING)))


def by_request(rows: Rows, chosen: Mask) -> Numbers:
    """Return the chosen rows that name a request, those with the same one below each other in their order."""
    named = np.flatnonzero(chosen & (rows.request != 0))
    return named[np.lexsort((rows.request[named], rows.rank[named]))]
