"""What the recorder's rows mean: wait, transfer and hidden time of every call, worked out after the steps.

A rank waits while it is inside a call that depends on ranks that have not come yet. All ranks of an axis make
the same calls in the same order, so one exchange of arrival times per axis settles every call at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Axis
from pscale.worker.recorder import PHASES, VERBS, Kind

Column = NDArray[np.int64]
Mask = NDArray[np.bool_]
Table = dict[str, NDArray[Any]]
Rows = Mapping[str, Column]

_NEVER = np.iinfo(np.int64).min
_FROM_ROOT = [VERBS.index(verb) for verb in ("broadcast", "scatter")]
_TO_ROOT = [VERBS.index("gather")]
_SEND, _RECEIVE = VERBS.index("send"), VERBS.index("receive")
_COMMUNICATION = (Kind.CALL, Kind.ROOT, Kind.POSTED, Kind.POLLED, Kind.COMPLETED)


def waits(rows: Rows, axes: Sequence[Axis]) -> Column:
    """Return the wait of every row in ns; collective. `axes` are in the order of the rows' axis numbers.

    all-to-all-type: until the last rank has entered. From a root: until the root has. To a root: the root
    alone waits, for the last. Started calls: the same, inside the completing call only.
    """
    wait = np.zeros_like(rows["enter"])
    latest = np.zeros(
        rows["request"].max(initial=-1) + 1, np.int64
    )  # last arrival, by number of the started call
    for number, axis in enumerate(axes):
        mine = rows["axis"] == number
        pairwise = mine & np.isin(rows["verb"], (_SEND, _RECEIVE))
        arrives = mine & ~pairwise & np.isin(rows["kind"], (Kind.CALL, Kind.ROOT, Kind.POSTED))
        last = _last_arrival(rows, arrives, axis)
        posted = arrives & (rows["kind"] == Kind.POSTED)
        latest[rows["request"][posted]] = last[posted[arrives]]
        _meet_partners(rows, pairwise & (rows["kind"] == Kind.POSTED), axis, latest)
        dependent = arrives & ~posted & _depends(rows)
        completed = mine & (rows["kind"] == Kind.COMPLETED)
        wait[dependent] = last[dependent[arrives]] - rows["enter"][dependent]
        wait[completed] = latest[rows["request"][completed]] - rows["enter"][completed]
    return np.clip(wait, 0, rows["leave"] - rows["enter"])


def _meet_partners(rows: Rows, posted: Mask, axis: Axis, latest: Column) -> None:
    """Learn when the other side of every message was started; messages of a pair keep their order."""
    exchanged = []
    for partner in np.unique(rows["partner"][posted]).tolist():
        mine = posted & (rows["partner"] == partner)
        sends, receives = (np.flatnonzero(mine & (rows["verb"] == verb)) for verb in (_SEND, _RECEIVE))
        started, theirs = rows["enter"][np.concatenate([sends, receives])], np.empty(mine.sum(), np.int64)
        pending = axis.start_send(started, partner), axis.start_receive(theirs, partner)
        # The partner's sends are my receives and the other way round.
        exchanged.append((pending, started, np.concatenate([receives, sends]), theirs))
    for pending, _, matching, theirs in exchanged:
        for call in pending:
            call.wait()
        latest[rows["request"][matching]] = theirs


def _last_arrival(rows: Rows, arrives: Mask, axis: Axis) -> Column:
    """Return when the last rank that a call depends on came to it, for each arriving row."""
    arrival = rows["enter"][arrives].copy()
    from_root = np.isin(rows["verb"][arrives], _FROM_ROOT)
    arrival[from_root & (rows["kind"][arrives] != Kind.ROOT)] = _NEVER
    axis.all_reduce(arrival, "max")
    return arrival


def _depends(rows: Rows) -> Mask:
    """Return which blocking rows can wait at all: not a sender to the root, nor a root that sends."""
    is_root = rows["kind"] == Kind.ROOT
    sends = np.where(is_root, np.isin(rows["verb"], _FROM_ROOT), np.isin(rows["verb"], _TO_ROOT))
    return np.logical_not(sends)


def hidden(rows: Rows) -> Column:
    """Return, on the row that started a call, how long it was under way outside any call on it, in ns."""
    spans = np.zeros_like(rows["enter"])
    request, kind = rows["request"], rows["kind"]
    posted, completed = np.flatnonzero(kind == Kind.POSTED), np.flatnonzero(kind == Kind.COMPLETED)
    if not posted.size:
        return spans
    started = np.zeros(request.max() + 1, np.int64)
    started[request[posted]] = posted
    spans[started[request[completed]]] = rows["leave"][completed] - rows["enter"][started[request[completed]]]
    inside = np.isin(kind, (Kind.POSTED, Kind.POLLED, Kind.COMPLETED))
    np.subtract.at(spans, started[request[inside]], (rows["leave"] - rows["enter"])[inside])
    return spans


def phase_table(rows: Rows, wait: Column) -> Table:
    """Sum this rank's time per step and phase: columns step, phase and the kinds of time in seconds."""
    time = rows["leave"] - rows["enter"]
    communicates = np.isin(rows["kind"], _COMMUNICATION)
    inside = communicates & (rows["phase"] >= 0)
    steps = int(rows["step"].max()) + 1
    cell = rows["step"] * len(PHASES) + rows["phase"]

    def total(chosen: Mask, values: Column) -> NDArray[Any]:
        return np.bincount(cell[chosen], values[chosen], steps * len(PHASES)) * 1e-9

    wall, copied = total(rows["kind"] == Kind.PHASE, time), total(rows["kind"] == Kind.COPIED, time)
    communication, waited = total(inside, time), total(inside, wait)
    ends = np.full(steps, np.nan)
    is_step = rows["kind"] == Kind.STEP
    ends[rows["step"][is_step]] = rows["leave"][is_step] * 1e-9
    return {
        "step": np.repeat(np.arange(steps), len(PHASES)),
        "phase": np.tile(np.array(PHASES), steps),
        "wall_s": wall,
        "compute_s": wall - communication - copied,
        "transfer_s": communication - waited,
        "wait_s": waited,
        "copy_s": copied,
        "hidden_s": total(inside, hidden(rows)),
        "injected_s": total(rows["kind"] == Kind.INJECTED, time),
        "end_s": np.repeat(ends, len(PHASES)),
    }


def call_table(rows: Rows, wait: Column, axes: Sequence[str]) -> Table:
    """Sum this rank's calls per step, phase, axis and verb; a started call counts where it was started."""
    chosen = np.flatnonzero(np.isin(rows["kind"], _COMMUNICATION) & (rows["phase"] >= 0))
    time, under_way = (rows["leave"] - rows["enter"])[chosen], hidden(rows)[chosen]
    starts = np.isin(rows["kind"][chosen], (Kind.CALL, Kind.ROOT, Kind.POSTED))
    keys = np.stack([rows[name][chosen] for name in ("step", "phase", "axis", "verb")])
    groups, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)

    def total(values: NDArray[Any]) -> NDArray[Any]:
        return np.bincount(group, values, groups.shape[1])

    waited = total(wait[chosen]) * 1e-9
    return {
        "step": groups[0],
        "phase": np.array(PHASES)[groups[1]],
        "axis": np.array([*axes, ""])[groups[2]],
        "verb": np.array(VERBS)[groups[3]],
        "count": total(starts).astype(np.int64),
        "bytes": total(rows["bytes"][chosen]).astype(np.int64),
        "transfer_s": total(time) * 1e-9 - waited,
        "wait_s": waited,
        "hidden_s": total(under_way) * 1e-9,
    }
