"""Every note of a rank as a row of the table `events`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Axis
from pscale.replay.script import Rows
from pscale.results.events import ACTIONS, PHASES, VERBS, Kind

Column = NDArray[Any]

_NOTHING = -1


def event_table(
    rows: Rows, wait: NDArray[np.int64], axes: Sequence[Axis], rank: int, start_ns: int
) -> dict[str, Column]:
    """Return the rows as columns of `events`, with times since `start_ns`; collective."""
    members = [_members(axis, rank) for axis in axes]
    kind, number = rows["kind"], rows["axis"]
    of_file = np.isin(kind, (Kind.HANDED, Kind.STALLED, Kind.MOVED))
    of_axis = (number >= 0) & (kind != Kind.INJECTED) | of_file
    verbs = np.array([*VERBS, ""])[np.where(of_axis, rows["verb"], len(VERBS))]
    groups = np.array([*(group[0] for group in members), _NOTHING])
    started = np.isin(kind, (Kind.POSTED, Kind.POLLED, Kind.FOUND, Kind.COMPLETED))
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
    posted = rows["kind"] == Kind.POSTED
    times = np.zeros(rows["request"].max(initial=0) + 1, np.int64)
    times[rows["request"][posted]] = rows["enter"][posted]
    found = np.full(len(posted), np.nan)
    found[started] = (times[rows["request"][started]] - start_ns) * 1e-9
    return found


def _actions(rows: Rows) -> Column:
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
