"""The program of a job once more on an ideal network: every rank walks through its notes and sends clocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.axis import Axis, Pending
from pscale.replay.network import IDEAL
from pscale.replay.script import Rows, script
from pscale.replay.walk import Ask, Meet, Post, Receive, Send, Take, Walk, walk
from pscale.results.events import Kind

Clock = NDArray[np.float64]


def ideal(rows: Rows, wait: NDArray[np.int64], axes: Sequence[Axis], start_ns: int) -> tuple[Clock, Clock]:
    """Return the wait of every row in ns, and when each step ended in s, on a network that costs nothing.

    Collective: one message of 8 bytes for every recorded call. `wait` is that of every row as measured.
    """
    own = script(rows, wait, [axis.size for axis in axes], [IDEAL] * len(axes), start_ns)
    waited = own.waits(_exchange(walk(own), axes))
    return waited, own.ends(waited)[rows["kind"] == Kind.STEP] * 1e-9


def _exchange(walk: Walk, axes: Sequence[Axis]) -> list[float]:
    """Lead one rank's walk: answer what it asks by exchanging clocks with the other ranks."""
    others = _Others(axes)
    try:
        ask = next(walk)
        while True:
            ask = walk.send(others.answer(ask))
    except StopIteration as over:
        waited: list[float] = over.value
    others.finish()
    return waited


class _Others:
    """The other ranks of every axis, each on a walk of its own."""

    def __init__(self, axes: Sequence[Axis]):
        self._axes = axes
        self._under_way: dict[int, tuple[Clock, Pending]] = {}
        self._sent: list[tuple[Clock, Pending]] = []

    def answer(self, ask: Ask) -> float:
        """Return the time that is asked for, if one is."""
        match ask:
            case Meet(axis, time):
                clock = np.array([time])
                self._axes[axis].all_reduce(clock, "max")
                return float(clock[0])
            case Post(request, axis, time):
                clock = np.array([time])
                self._under_way[request] = clock, self._axes[axis].start_all_reduce(clock, "max")
            case Send(axis, partner, time):
                clock = np.array([time])
                self._sent.append((clock, self._axes[axis].start_send(clock, partner)))
            case Receive(request, axis, partner):
                clock = np.empty(1)
                self._under_way[request] = clock, self._axes[axis].start_receive(clock, partner)
            case Take(request):
                clock, pending = self._under_way.pop(request)
                pending.wait()
                return float(clock[0])
        return 0.0

    def finish(self) -> None:
        """Return when nothing is under way; what nobody relied on was only asked about."""
        for _, pending in (*self._under_way.values(), *self._sent):
            pending.wait()
