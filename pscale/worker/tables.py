"""The rows of the tables `steps`, `calls` and `events` of one rank, from its recorded events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Axis
from pscale.runs.schema import ACTIONS, OFFLOADING, PHASES, VERBS, Kind
from pscale.simulator.program import COMMUNICATION, Rows

Column = NDArray[np.int64]
Times = NDArray[np.float64]
Mask = NDArray[np.bool_]
T = TypeVar("T", bound=np.generic)
Table = dict[str, NDArray[Any]]

_NOTHING = -1
_STARTED = (Kind.POSTED, Kind.POLLED, Kind.POLLED_COMPLETE, Kind.COMPLETED)


def by_request(rows: Rows, chosen: Mask, values: NDArray[T]) -> NDArray[T]:
    """Return by number of a started call the value on its chosen row; 0 where none is."""
    found = np.zeros(rows["request"].max(initial=_NOTHING) + 1, values.dtype)
    found[rows["request"][chosen]] = values[chosen]
    return found


def hidden(rows: Rows) -> Column:
    """Return, on the row that started a call, how long it was under way outside any call on it, in ns.

    It is over when a test found it complete, or at the end of the call that completed it.
    """
    spans = np.zeros_like(rows["enter"])
    request, kind = rows["request"], rows["kind"]
    started = by_request(rows, kind == Kind.POSTED, np.arange(len(kind)))
    complete = np.flatnonzero(np.isin(kind, (Kind.POLLED_COMPLETE, Kind.COMPLETED)))
    over = complete[np.unique(request[complete], return_index=True)[1]]  # the first of each call
    spans[started[request[over]]] = rows["leave"][over] - rows["enter"][started[request[over]]]
    inside = np.isin(kind, _STARTED)
    np.subtract.at(spans, started[request[inside]], (rows["leave"] - rows["enter"])[inside])
    return spans


def communicating(rows: Rows) -> Mask:
    """Return which rows are time in which a rank does not compute: calls, copies, waits for files."""
    return np.isin(rows["kind"], (*COMMUNICATION, Kind.COPIED, Kind.IO_WAITED))


def phase_table(rows: Rows, wait: Column, caused: Column, ideal_wait: Times, start_ns: int) -> Table:
    """Sum this rank's time per step and phase: columns step, phase and the kinds of time in seconds.

    A step lasts from the end of the one before, the first from `start_ns`: what its phases leave of that is
    unaccounted.
    """
    time = rows["leave"] - rows["enter"]
    communicates = np.isin(rows["kind"], COMMUNICATION)
    steps = int(rows["step"].max()) + 1
    cell = rows["step"] * len(PHASES) + rows["phase"]

    def total(chosen: Mask | np.bool_, values: NDArray[Any]) -> NDArray[Any]:
        inside = chosen & (rows["phase"] >= 0)
        return np.bincount(cell[inside], values[inside], steps * len(PHASES))

    wall, copied = total(rows["kind"] == Kind.PHASE, time), total(rows["kind"] == Kind.COPIED, time)
    io_waited, io_done = (total(rows["kind"] == kind, time) for kind in (Kind.IO_WAITED, Kind.IO_DONE))
    communication, waited = total(communicates, time), total(communicates, wait)
    ends = rows["leave"][rows["kind"] == Kind.STEP] - start_ns
    unaccounted = np.diff(ends, prepend=0) - wall.reshape(steps, -1).sum(axis=1)
    times = {
        "wall_s": wall,
        "compute_s": wall - communication - copied - io_waited,
        "transfer_s": communication - waited,
        "wait_s": waited,
        "copy_s": copied,
        "offload_s": io_waited,
        "offload_io_s": io_done,
        "hidden_s": total(communicates, hidden(rows)),
        "ideal_wait_s": total(communicates, ideal_wait),
        "caused_wait_s": total(np.True_, caused),
        "injected_delay_s": total(rows["kind"] == Kind.INJECTED, time),
        "unaccounted_s": np.repeat(unaccounted, len(PHASES)),
        "end_s": np.repeat(ends, len(PHASES)),
    }
    return {
        "step": np.repeat(np.arange(steps), len(PHASES)),
        "phase": np.tile(np.array(PHASES), steps),
        **_offloaded_bytes(rows, total),
        **{name: values * 1e-9 for name, values in times.items()},
    }


def _offloaded_bytes(rows: Rows, total: Callable[[Mask, NDArray[Any]], NDArray[Any]]) -> Table:
    """Return the bytes that were submitted to the thread that reads and writes."""
    submitted = rows["kind"] == Kind.IO_SUBMITTED
    return {
        f"offload_{verb}_bytes": total(submitted & (rows["verb"] == VERBS.index(verb)), rows["bytes"]).astype(
            np.int64
        )
        for verb in OFFLOADING
    }


def call_table(rows: Rows, wait: Column, ideal_wait: Times, axes: Sequence[str]) -> Table:
    """Sum this rank's calls per step, phase, axis and verb; a started call counts where it was started."""
    chosen = np.flatnonzero(np.isin(rows["kind"], COMMUNICATION) & (rows["phase"] >= 0))
    kind, time = rows["kind"][chosen], (rows["leave"] - rows["enter"])[chosen]
    keys = np.stack([rows[name][chosen] for name in ("step", "phase", "axis", "verb")])
    groups, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)

    def total(values: NDArray[Any]) -> NDArray[Any]:
        return np.bincount(group, values, groups.shape[1])

    times = {
        "transfer_s": total(time - wait[chosen]),
        "wait_s": total(wait[chosen]),
        "hidden_s": total(hidden(rows)[chosen]),
        "exposed_s": total(np.where(np.isin(kind, _STARTED), time, 0)),
        "ideal_wait_s": total(ideal_wait[chosen]),
    }
    return {
        "step": groups[0],
        "phase": np.array(PHASES)[groups[1]],
        "axis": np.array([*axes, ""])[groups[2]],
        "verb": np.array(VERBS)[groups[3]],
        "count": total(np.isin(kind, (Kind.CALL, Kind.ROOT, Kind.POSTED))).astype(np.int64),
        "bytes": total(rows["bytes"][chosen]).astype(np.int64),
        **{name: values * 1e-9 for name, values in times.items()},
    }


def event_table(rows: Rows, wait: Column, axes: Sequence[Axis], rank: int, start_ns: int) -> Table:
    """Return the rows as columns of `events`, with times since `start_ns`; collective."""
    members = [_members(axis, rank) for axis in axes]
    kind, number = rows["kind"], rows["axis"]
    of_file = np.isin(kind, (Kind.IO_SUBMITTED, Kind.IO_WAITED, Kind.IO_DONE))
    of_axis = (number >= 0) & (kind != Kind.INJECTED) | of_file
    verbs = np.array([*VERBS, ""])[np.where(of_axis, rows["verb"], len(VERBS))]
    groups = np.array([*(group[0] for group in members), _NOTHING])
    started = np.isin(kind, _STARTED)
    return {
        "step": rows["step"],
        "phase": np.array([*PHASES, ""])[rows["phase"]],
        "kind": np.array([each.name.lower() for each in Kind])[kind],
        "label": np.where(kind == Kind.PHASE, _actions(rows), verbs),
        "axis": np.array([*(axis.name for axis in axes), ""])[number],
        "group": groups[number],
        "verb": verbs,
        "bytes": np.where(of_axis, rows["bytes"], 0),
        "request": np.where(started, rows["request"], _NOTHING),
        "partner": _partners(rows, members),
        "enter_s": (rows["enter"] - start_ns) * 1e-9,
        "leave_s": (rows["leave"] - start_ns) * 1e-9,
        "post_s": _posts(rows, started, start_ns),
        "wait_s": wait * 1e-9,
    }


def _members(axis: Axis, rank: int) -> NDArray[np.int64]:
    """Return the ranks of the world that are on the axis, in its order."""
    members = np.empty(axis.size, np.int64)
    axis.all_gather(np.array([rank]), members)
    return members


def _partners(rows: Rows, members: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the rank of the world that each message goes to or comes from."""
    found = np.full_like(rows["partner"], _NOTHING)
    for number, group in enumerate(members):
        here = (rows["kind"] == Kind.POSTED) & (rows["axis"] == number) & (rows["partner"] >= 0)
        found[here] = group[rows["partner"][here]]
    return found


def _posts(rows: Rows, started: NDArray[np.bool_], start_ns: int) -> NDArray[np.float64]:
    """Return when the call that a row is about was started; not a number where none was."""
    times = by_request(rows, rows["kind"] == Kind.POSTED, rows["enter"])
    found = np.full(len(started), np.nan)
    found[started] = (times[rows["request"][started]] - start_ns) * 1e-9
    return found


def _actions(rows: Rows) -> NDArray[Any]:
    """Return what the phases did: action, micro-batch, and the part of the model unless it is the first."""
    codes = np.stack([rows[name] for name in ("phase", "verb", "request", "partner")], axis=1)
    codes = np.where((rows["kind"] == Kind.PHASE)[:, None], codes, _NOTHING)
    different, place = np.unique(codes, axis=0, return_inverse=True)
    return np.array([_action(*code) for code in different.tolist()])[place.reshape(-1)]


def _action(phase: int, action: int, micro: int, part: int) -> str:
    if action == _NOTHING:
        return PHASES[phase] if phase >= 0 else ""
    name = PHASES[phase] if PHASES[phase] == "data" else ACTIONS[action]
    return f"{name} {micro}" + (f".{part}" if part else "")
