"""Waiting asleep: MPI waits in a loop, and ranks that share cores then take them from those that arrive late.

A blocking call becomes a started one that is asked for now and then; what moves, and where, is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pscale.mesh.nonblocking import Request

_BLOCKING = (
    *("Allreduce", "Allgather", "Reduce_scatter_block", "Alltoall", "Bcast", "Reduce", "Gather", "Scatter"),
    "Barrier",
)
_STARTING = ("Iallreduce", "Iallgather", "Ireduce_scatter_block", "Isend", "Irecv")


class AsleepRequest:
    """A started call whose wait is asleep, but for a look every `poll_s` seconds."""

    def __init__(self, request: Request, poll_s: float):
        self.Test, self._poll_s = request.Test, poll_s

    def Wait(self) -> None:  # noqa: N802 - as mpi4py calls it
        """Return when the result is there."""
        while not self.Test():
            time.sleep(self._poll_s)


class AsleepComm:
    """A communicator of mpi4py whose calls of whole arrays wait asleep."""

    def __init__(self, comm: Any, poll_s: float):
        self._comm, self._poll_s = comm, poll_s
        for name in _BLOCKING:
            setattr(self, name, partial(self._wait, getattr(comm, f"I{name.lower()}")))
        for name in _STARTING:
            setattr(self, name, partial(self._start, getattr(comm, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def _start(self, start: Callable[..., Request], *given: Any) -> AsleepRequest:
        return AsleepRequest(start(*given), self._poll_s)

    def _wait(self, start: Callable[..., Request], *given: Any) -> None:
        self._start(start, *given).Wait()
