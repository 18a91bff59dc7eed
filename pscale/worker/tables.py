"""One rank's notes added up: the rows of the tables `steps` and `calls`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.replay.script import COMMUNICATION
from pscale.results.events import OFFLOADING, PHASES, VERBS, Kind

Column = NDArray[np.int64]
Times = NDArray[np.float64]
Mask = NDArray[np.bool_]
Table = dict[str, NDArray[Any]]
Rows = Mapping[str, Column]

_STARTED = (Kind.POSTED, Kind.POLLED, Kind.FOUND, Kind.COMPLETED)


def hidden(rows: Rows) -> Column:
    """Return, on the row that started a call, how long it was under way outside any call on it, in ns.

    It is over when it was found complete, or at the end of the call that made it so.
    """
    spans = np.zeros_like(rows["enter"])
    request, kind = rows["request"], rows["kind"]
    posted, over = np.flatnonzero(kind == Kind.POSTED), _first(rows, (Kind.FOUND, Kind.COMPLETED))
    if not posted.size:
        return spans
    started = np.zeros(request.max() + 1, np.int64)
    started[request[posted]] = posted
    spans[started[request[over]]] = rows["leave"][over] - rows["enter"][started[request[over]]]
    inside = np.isin(kind, _STARTED)
    np.subtract.at(spans, started[request[inside]], (rows["leave"] - rows["enter"])[inside])
    return spans


def _first(rows: Rows, kinds: Sequence[Kind]) -> NDArray[np.intp]:
    """Return the first row of any of `kinds` for each started call."""
    places = np.flatnonzero(np.isin(rows["kind"], kinds))
    _, first = np.unique(rows["request"][places], return_index=True)
    return places[first]


def phase_table(rows: Rows, wait: Column, ideal_wait: Times, start_ns: int) -> Table:
    """Sum this rank's time per step and phase: columns step, phase and the kinds of time in seconds.

    A step lasts from the end of the one before, the first from `start_ns`: what its phases leave of that is
    unaccounted.
    """
    time = rows["leave"] - rows["enter"]
    communicates = np.isin(rows["kind"], COMMUNICATION)
    steps = int(rows["step"].max()) + 1
    cell = rows["step"] * len(PHASES) + rows["phase"]

    def total(chosen: Mask, values: NDArray[Any]) -> NDArray[Any]:
        inside = chosen & (rows["phase"] >= 0)
        return np.bincount(cell[inside], values[inside], steps * len(PHASES))

    wall, copied = total(rows["kind"] == Kind.PHASE, time), total(rows["kind"] == Kind.COPIED, time)
    stalled, moved = (total(rows["kind"] == kind, time) for kind in (Kind.STALLED, Kind.MOVED))
    communication, waited = total(communicates, time), total(communicates, wait)
    ends = rows["leave"][rows["kind"] == Kind.STEP] - start_ns
    unaccounted = np.diff(ends, prepend=0) - wall.reshape(steps, -1).sum(axis=1)
    times = {
        "wall_s": wall,
        "compute_s": wall - communication - copied - stalled,
        "transfer_s": communication - waited,
        "wait_s": waited,
        "copy_s": copied,
        "offload_s": stalled,
        "offload_io_s": moved,
        "hidden_s": total(communicates, hidden(rows)),
        "ideal_wait_s": total(communicates, ideal_wait),
        "injected_s": total(rows["kind"] == Kind.INJECTED, time),
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
    """Return the bytes that were handed to the thread that reads and writes."""
    handed = rows["kind"] == Kind.HANDED
    return {
        f"offload_{verb}_bytes": total(handed & (rows["verb"] == VERBS.index(verb)), rows["bytes"]).astype(
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
