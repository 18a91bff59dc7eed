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
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis.text import clean
from pscale.analysis.timeline import Event, action, messages, rows_of_events, under_way, waits

_STEPS, _UNDER_WAY, _FILES = "steps", "under way", "reads and writes"
_THREADS = (
    1000  # numbers for a rank and its threads, none of which two ranks may share; the first is the main one
)
_OF_STARTED = {"posted": "start", "polled": "test", "polled_complete": "test", "completed": "complete"}
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_OF_A_THREAD = ("io_submitted", "io_done")  # of the thread that reads and writes files
_IN_CALLS = ("call", "root", "completed")


Json = dict[str, Any]  # an event, or what is in one


def trace_lines(
    table: pd.DataFrame, places: Mapping[int, str], about: Mapping[str, str | int]
) -> Iterator[str]:
    """Yield the lines of a trace of `analysis.timeline.launch_events`.

    `places` says where each rank runs, `about` what the trace is of.
    """
    origin = min(0, int(table["enter"].min()))  # clocks of nodes may be off by more than a step is old
    table = table.assign(enter=table["enter"] - origin, leave=table["leave"] - origin)
    texts = {name: clean(value) if isinstance(value, str) else value for name, value in about.items()}
    yield f'{{"displayTimeUnit":"ms","otherData":{_ENCODER.encode(texts)},"traceEvents":['
    before = ""
    for event in _events(table, places):
        yield f"{before}{_ENCODER.encode(event)}"
        before = ","
    yield "]}"


def _events(table: pd.DataFrame, places: Mapping[int, str]) -> Iterator[Json]:
    flights = dict(_by_rank(under_way(table)))
    last = _causes(table)
    for rank, rows in _by_rank(table):
        lanes = _lanes(flights[rank]) if rank in flights else []
        yield from _names(rank, places.get(rank, ""), len(lanes))
        for each in _nested(rows, last):
            yield _where(rank, 0) | each
        for lane, slices in enumerate(lanes, start=1):
            for each in slices:
                yield _where(rank, lane) | each
        yield from _moved(rank, len(lanes) + 1, rows[rows["kind"] == "io_done"])
    yield from _flows(table)


def _by_rank(table: pd.DataFrame) -> Iterator[tuple[int, pd.DataFrame]]:
    return ((int(rows["rank"].iloc[0]), rows) for _, rows in table.groupby("rank"))


def _names(rank: int, place: str, lanes: int) -> Iterator[Json]:
    yield _metadata(rank, 0, "process_name", "name", f"rank {rank}")
    yield _metadata(rank, 0, "process_sort_index", "sort_index", rank)
    if place:
        yield _metadata(rank, 0, "process_labels", "labels", clean(place))
    for lane in range(lanes + 1):
        name = _STEPS if lane == 0 else f"{_UNDER_WAY} {lane}" if lanes > 1 else _UNDER_WAY
        yield _metadata(rank, lane, "thread_name", "name", name)
        yield _metadata(rank, lane, "thread_sort_index", "sort_index", lane)


def _metadata(rank: int, lane: int, name: str, key: str, value: str | int) -> Json:
    return {"ph": "M", **_where(rank, lane), "name": name, "args": {key: value}}


def _moved(rank: int, lane: int, rows: pd.DataFrame) -> Iterator[Json]:
    """Yield what the thread that reads and writes files did, on a lane of its own."""
    if not rows.empty:
        yield _metadata(rank, lane, "thread_name", "name", _FILES)
        yield _metadata(rank, lane, "thread_sort_index", "sort_index", lane)
    for event in rows_of_events(rows):
        moved = _slice(event.enter, event.leave, event.verb, "offload", bytes=event.bytes)
        yield _where(rank, lane) | moved


def _nested(rows: pd.DataFrame, last: Mapping[int, int]) -> Iterator[Json]:
    """Yield what a rank does, in order of beginning; of what begins together, what ends last comes first."""
    outer_first = rows.iloc[::-1].sort_values(["enter", "leave"], ascending=[True, False], kind="stable")
    for event in rows_of_events(outer_first[~outer_first["kind"].isin(_OF_A_THREAD)]):
        if event.kind == "step":
            yield _slice(event.enter, event.leave, f"step {event.step}", "step", step=event.step)
        elif event.kind == "phase":
            yield _slice(event.enter, event.leave, event.label, "phase", **_action(event))
        elif event.kind in ("copied", "injected"):
            yield _slice(event.enter, event.leave, event.kind, event.kind)
        elif event.kind == "io_waited":
            yield _slice(event.enter, event.leave, f"stall: {event.verb}", "offload")
        else:
            yield from _call(event, last.get(event.row))


def _call(event: Event, last: int | None) -> Iterator[Json]:
    """Yield a call, and if `last` came after it, the wait for that rank and what it took from then on."""
    started = _OF_STARTED.get(event.kind)
    name = f"{started} {event.verb} {event.axis}" if started else f"{event.verb} {event.axis}"
    what: Json = {"axis": event.axis, "verb": event.verb}
    length, over = event.leave - event.enter, event.enter + event.wait
    args = what | _sizes(event)
    if event.kind in _IN_CALLS:
        args |= {"wait_us": event.wait / 1000, "transfer_us": (length - event.wait) / 1000}
    yield _slice(event.enter, event.leave, name, "call", **args)
    if event.wait:
        cause = {"for_rank": last} if last is not None else {}
        yield _slice(event.enter, over, "wait", "wait", **what, **cause)
        if over < event.leave:
            yield _slice(over, event.leave, "transfer", "transfer", **what)


def _sizes(event: Event) -> dict[str, Any]:
    sizes = {"bytes": event.bytes} if event.kind in ("call", "root", "posted") else {}
    return sizes | ({"partner": event.partner} if event.partner >= 0 else {})


def _action(event: Event) -> dict[str, Any]:
    """Return the arguments of a phase: micro-batch and part of the model, where it is about one."""
    _, micro, part = action(event.label)
    return {"phase": event.phase} | ({} if micro is None else {"micro_batch": micro, "part": part})


def _lanes(flights: pd.DataFrame) -> list[list[Json]]:
    """Return the started calls of a rank, those under way at the same time on different lanes."""
    lanes: list[list[Json]] = []
    free: list[tuple[int, int]] = []  # until when each lane is taken
    for event in rows_of_events(flights):
        if free and free[0][0] < event.enter:
            lane = heapq.heappop(free)[1]
        else:
            lane = len(lanes)
            lanes.append([])
        args = {"axis": event.axis, "verb": event.verb, "request": event.request} | _sizes(event)
        lanes[lane].append(_slice(event.enter, event.leave, f"{event.verb} {event.axis}", _UNDER_WAY, **args))
        heapq.heappush(free, (event.leave, lane))
    return lanes


def _causes(table: pd.DataFrame) -> dict[int, int]:
    """Return for whom a row waited: the rank at the other end, or the last that came."""
    found = pd.concat([messages(table), waits(table)])
    return dict(zip(found["end"].tolist(), table["rank"].reindex(found["start"]).tolist(), strict=True))


def _flows(table: pd.DataFrame) -> Iterator[Json]:
    """Yield an arrow for each message and each wait, from what was waited for to where the wait is over.

    An arrow that would lead back in time, which the clocks of two nodes can make of one, is left out.
    """
    numbers = count(1)
    for name, found in (("message", messages(table)), ("last to arrive", waits(table))):
        begins, ends = (table.loc[found[side]] for side in ("start", "end"))
        start, leave = begins["enter"].to_numpy(), ends["leave"].to_numpy()
        waited = (ends["enter"] + ends["wait"]).to_numpy()
        stop = (np.maximum(start, waited) + leave) // 2
        sides = (begins["rank"], start, ends["rank"], stop, leave >= start)
        for rank, at, to, until, forward in zip(*(side.tolist() for side in sides), strict=True):
            if forward:
                same = {"id": next(numbers), "name": name, "cat": "flow"}
                yield {"ph": "s", **_where(rank, 0), "ts": at / 1000, **same}
                yield {"ph": "f", "bp": "e", **_where(to, 0), "ts": until / 1000, **same}


def _slice(enter: int, leave: int, name: str, category: str, **args: Any) -> Json:
    """Return something that a thread does, from when to when in ns."""
    event = {"ph": "X", "ts": enter / 1000, "dur": (leave - enter) / 1000, "name": name, "cat": category}
    return event | ({"args": args} if args else {})


def _where(rank: int, lane: int) -> Json:
    process = _THREADS * (rank + 1)  # 0 is the system's own to some viewers
    return {"pid": process, "tid": process + lane}
