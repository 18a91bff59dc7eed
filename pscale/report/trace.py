"""A traced launch as Perfetto and chrome://tracing open it: the Trace Event Format, in JSON.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. A rank is a process; its
thread `steps` does one thing after another, each inside the one before: step, phase, call, wait or transfer.
Started calls are on their way meanwhile, on threads of their own. Perfetto lets an arrow lead from what began
first, so arrows end in the transfer that follows a wait. Not all of its versions read lists and escapes.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pscale.analysis.traced import Note, listed, messages, under_way, waits
from pscale.report.text import clean

_STEPS, _UNDER_WAY, _FILES = "steps", "under way", "reads and writes"
_THREADS = (
    1000  # numbers for a rank and its threads, none of which two ranks may share; the first is the main one
)
_OF_STARTED = {"posted": "start", "polled": "ask for", "found": "ask for", "completed": "complete"}
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_OF_A_THREAD = ("handed", "moved")  # of the thread that reads and writes files
_IN_CALLS = ("call", "root", "completed")


class _Slice(NamedTuple):
    """Something that a thread does, from when to when in ns."""

    enter: int
    leave: int
    name: str
    category: str
    args: Mapping[str, Any]


def trace_lines(
    table: pd.DataFrame, places: Mapping[int, str], about: Mapping[str, str | int]
) -> Iterator[str]:
    """Yield the lines of a trace of `analysis.traced.notes`.

    `places` says where each rank runs, `about` what the trace is of.
    """
    origin = min(0, int(table["enter"].min()))  # clocks of nodes may be off by more than a step is old
    table = table.assign(enter=table["enter"] - origin, leave=table["leave"] - origin)
    told = {name: clean(value) if isinstance(value, str) else value for name, value in about.items()}
    yield f'{{"displayTimeUnit":"ms","otherData":{_json(told)},"traceEvents":['
    before = ""
    for event in _events(table, places):
        yield f"{before}{event}"
        before = ","
    yield "]}"


def _events(table: pd.DataFrame, places: Mapping[int, str]) -> Iterator[str]:
    flights = dict(_by_rank(under_way(table)))
    last = _causes(table)
    for rank, rows in _by_rank(table):
        lanes = _lanes(flights[rank]) if rank in flights else []
        yield from _names(rank, places.get(rank, ""), len(lanes))
        for each in _nested(rows, last):
            yield _slice_event(rank, 0, each)
        for lane, slices in enumerate(lanes, start=1):
            for each in slices:
                yield _slice_event(rank, lane, each)
        yield from _moved(rank, len(lanes) + 1, rows[rows["kind"] == "moved"])
    yield from _flows(table)


def _by_rank(table: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
    return ((int(rows["rank"].iloc[0]), rows) for _, rows in table.groupby("rank"))


def _names(rank: int, place: str, lanes: int) -> Iterator[str]:
    yield _metadata(rank, 0, "process_name", "name", f"rank {rank}")
    yield _metadata(rank, 0, "process_sort_index", "sort_index", rank)
    if place:
        yield _metadata(rank, 0, "process_labels", "labels", clean(place))
    for lane in range(lanes + 1):
        name = _STEPS if lane == 0 else f"{_UNDER_WAY} {lane}" if lanes > 1 else _UNDER_WAY
        yield _metadata(rank, lane, "thread_name", "name", name)
        yield _metadata(rank, lane, "thread_sort_index", "sort_index", lane)


def _metadata(rank: int, lane: int, name: str, key: str, value: str | int) -> str:
    return f'{{"ph":"M",{_where(rank, lane)},"name":"{name}","args":{{"{key}":{_json(value)}}}}}'


def _moved(rank: int, lane: int, rows: pd.DataFrame) -> Iterator[str]:
    """Yield what the thread that reads and writes files did, on a lane of its own."""
    if not rows.empty:
        yield _metadata(rank, lane, "thread_name", "name", _FILES)
        yield _metadata(rank, lane, "thread_sort_index", "sort_index", lane)
    for note in listed(rows):
        yield _slice_event(
            rank, lane, _Slice(note.enter, note.leave, note.verb, "offload", {"bytes": note.bytes})
        )


def _nested(rows: pd.DataFrame, last: Mapping[int, int]) -> Iterator[_Slice]:
    """Yield what a rank does, in order of beginning; of what begins together, what ends last comes first."""
    outer_first = rows.iloc[::-1].sort_values(["enter", "leave"], ascending=[True, False], kind="stable")
    for note in listed(outer_first[~outer_first["kind"].isin(_OF_A_THREAD)]):
        if note.kind == "step":
            yield _Slice(note.enter, note.leave, f"step {note.step}", "step", {"step": note.step})
        elif note.kind == "phase":
            yield _Slice(note.enter, note.leave, note.label, "phase", _action(note))
        elif note.kind in ("copied", "injected"):
            yield _Slice(note.enter, note.leave, note.kind, note.kind, {})
        elif note.kind == "stalled":
            yield _Slice(note.enter, note.leave, f"stall: {note.verb}", "offload", {})
        else:
            yield from _call(note, last.get(note.row))


def _call(note: Note, last: int | None) -> Iterator[_Slice]:
    """Yield a call, and if `last` came after it, the wait for that rank and what it took from then on."""
    started = _OF_STARTED.get(note.kind)
    name = f"{started} {note.verb} {note.axis}" if started else f"{note.verb} {note.axis}"
    what = {"axis": note.axis, "verb": note.verb}
    length, over = note.leave - note.enter, note.enter + note.wait
    args = what | _sizes(note)
    if note.kind in _IN_CALLS:
        args |= {"wait_us": note.wait / 1000, "transfer_us": (length - note.wait) / 1000}
    yield _Slice(note.enter, note.leave, name, "call", args)
    if note.wait:
        cause = {"for_rank": last} if last is not None else {}
        yield _Slice(note.enter, over, "wait", "wait", what | cause)
        if over < note.leave:
            yield _Slice(over, note.leave, "transfer", "transfer", what)


def _sizes(note: Note) -> dict[str, Any]:
    sizes = {"bytes": note.bytes} if note.kind in ("call", "root", "posted") else {}
    return sizes | ({"partner": note.partner} if note.partner >= 0 else {})


def _action(note: Note) -> dict[str, Any]:
    """Return the arguments of a phase: micro-batch and part of the model, where it is about one."""
    _, _, numbers = note.label.partition(" ")
    micro, _, part = numbers.partition(".")
    return {"phase": note.phase} | ({"micro_batch": int(micro), "part": int(part or 0)} if micro else {})


def _lanes(flights: pd.DataFrame) -> list[list[_Slice]]:
    """Return the started calls of a rank, those under way at the same time on different lanes."""
    lanes: list[list[_Slice]] = []
    free: list[tuple[int, int]] = []  # until when each lane is taken
    for note in listed(flights):
        if free and free[0][0] < note.enter:
            lane = heapq.heappop(free)[1]
        else:
            lane = len(lanes)
            lanes.append([])
        args = {"axis": note.axis, "verb": note.verb, "request": note.request} | _sizes(note)
        lanes[lane].append(_Slice(note.enter, note.leave, f"{note.verb} {note.axis}", _UNDER_WAY, args))
        heapq.heappush(free, (note.leave, lane))
    return lanes


def _causes(table: pd.DataFrame) -> dict[int, int]:
    """Return for whom a row waited: the rank at the other end, or the last that came."""
    found = pd.concat([messages(table), waits(table)])
    return dict(zip(found["end"].tolist(), table["rank"].reindex(found["start"]).tolist(), strict=True))


def _flows(table: pd.DataFrame) -> Iterator[str]:
    """Yield an arrow for each message and each wait, from what was waited for to where the wait is over.

    An arrow that would lead back in time, which the clocks of two nodes can make of one, is left out.
    """
    numbers = count(1)
    for name, found in (("message", messages(table)), ("last to come", waits(table))):
        begins, ends = (table.loc[found[side]] for side in ("start", "end"))
        start, leave = begins["enter"].to_numpy(), ends["leave"].to_numpy()
        waited = (ends["enter"] + ends["wait"]).to_numpy()
        stop = (np.maximum(start, waited) + leave) // 2
        sides = (begins["rank"], start, ends["rank"], stop, leave >= start)
        for rank, at, to, until, forward in zip(*(side.tolist() for side in sides), strict=True):
            if forward:
                identity = f'"id":{next(numbers)},"name":"{name}","cat":"flow"'
                yield f'{{"ph":"s",{_where(rank, 0)},"ts":{_microseconds(at)},{identity}}}'
                yield f'{{"ph":"f","bp":"e",{_where(to, 0)},"ts":{_microseconds(until)},{identity}}}'


def _slice_event(rank: int, lane: int, each: _Slice) -> str:
    times = f'"ts":{_microseconds(each.enter)},"dur":{_microseconds(each.leave - each.enter)}'
    args = f',"args":{_json(each.args)}' if each.args else ""
    return (
        f'{{"ph":"X",{_where(rank, lane)},{times},"name":{_json(each.name)},"cat":"{each.category}"{args}}}'
    )


def _where(rank: int, lane: int) -> str:
    process = _THREADS * (rank + 1)  # 0 is the system's own to some viewers
    return f'"pid":{process},"tid":{process + lane}'


def _microseconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _json(value: Any) -> str:
    return _ENCODER.encode(value)
