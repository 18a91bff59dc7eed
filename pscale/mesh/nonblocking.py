"""Calls that were started: asked for progress between layers, waited for where results are needed, or asleep.

MPI waits in a loop, and ranks that share cores then take them from those that arrive late. Asleep, a blocking
call becomes a started one that is asked for now and then; what moves, and where, is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from time import thread_time_ns
from typing import Any, Protocol

from pscale.mesh.axis import Recorder

# A question that takes so many times the CPU time of the cheapest has moved data, perhaps a part of what is
# there: over TCP, a segment. One that found nothing to do takes a microsecond or two, however long it lets
# others run.
_BUSY = 2
_LEAST_NS = 1_000  # where a clock is too coarse to tell
_MOST_QUESTIONS = 100
_ASKED_AWAKE = (
    4  # times that a look asks until nothing moves: an answer takes microseconds, to sleep a thousand
)


class Request(Protocol):
    """A started call as the MPI library knows it."""

    def Test(self) -> bool:  # noqa: N802 - as mpi4py calls it
        """Move what can be moved; true once the result is there."""
        ...

    def Wait(self) -> object:  # noqa: N802
        """Return when the result is there."""
        ...


class Outstanding(dict["NonblockingCall", None]):
    """What was started and is not known to be complete, oldest first: a set that keeps its order."""

    busy_ns = 10_000  # CPU time above which a question has moved data, until one has been cheaper

    def ask(self, request: Request) -> bool:
        """Give the library chances to make progress while it makes some; true once the result is there."""
        asked = thread_time_ns()
        for _ in range(_MOST_QUESTIONS):
            complete = request.Test()
            answered = thread_time_ns()
            if complete or not self.has_moved(answered - asked):
                return complete
            asked = answered
        return False

    def has_moved(self, took_ns: int) -> bool:
        """Tell whether a question that took `took_ns` of CPU time has moved data."""
        self.busy_ns = min(self.busy_ns, _BUSY * max(took_ns, _LEAST_NS))
        return took_ns > self.busy_ns


class NonblockingCall:
    """A started call, `outstanding` until it is complete; the library may move nothing until it is asked."""

    __slots__ = ("_outstanding", "_recorder", "_request", "complete", "number")

    def __init__(self, request: Request, number: int, recorder: Recorder, outstanding: Outstanding):
        self._request, self.number, self._recorder = request, number, recorder
        self._outstanding, self.complete = outstanding, False
        outstanding[self] = None

    def poll(self) -> bool:
        """Let the call make progress; true once the result is there."""
        if not self.complete:
            enter = self._recorder.now()
            self.complete = self._outstanding.ask(self._request)
            note = self._recorder.polled_complete if self.complete else self._recorder.polled
            note(self.number, enter, self._recorder.now())
            if self.complete:
                del self._outstanding[self]
        return self.complete

    def wait(self) -> None:
        """Return when the result is there."""
        recorder = self._recorder
        enter = leave = recorder.now()
        if not self.complete:
            self._request.Wait()
            self.complete, leave = True, recorder.now()
            del self._outstanding[self]
        recorder.completed(self.number, enter, leave)


def progress(calls: Outstanding) -> None:
    """Ask for the oldest, and while that is complete, for the next.

    Asking for one lets the library move all of them, so the oldest is asked for until it is complete: one
    call between two layers, however many are under way.
    """
    while calls and next(iter(calls)).poll():
        pass


_BLOCKING = (
    *("Allreduce", "Allgather", "Reduce_scatter_block", "Alltoall", "Bcast", "Reduce", "Gather", "Scatter"),
    "Barrier",
)
_STARTING = ("Iallreduce", "Iallgather", "Ireduce_scatter_block", "Isend", "Irecv")


class AsleepRequest:
    """A started call whose wait is asleep, but for a look every `poll_s` seconds.

    A look takes all that has come: a library may move one message each time it is asked, and a call of many
    messages would last as many looks.
    """

    def __init__(self, request: Request, poll_s: float, outstanding: Outstanding):
        self.Test, self._poll_s, self._outstanding = request.Test, poll_s, outstanding

    def Wait(self) -> None:  # noqa: N802 - as mpi4py calls it
        """Return when the result is there."""
        while not any(self._outstanding.ask(self) for _ in range(_ASKED_AWAKE)):
            time.sleep(self._poll_s)


class AsleepComm:
    """A communicator of mpi4py whose calls of whole arrays wait asleep."""

    def __init__(self, comm: Any, poll_s: float, outstanding: Outstanding):
        self._comm, self._poll_s, self._outstanding = comm, poll_s, outstanding
        for name in _BLOCKING:
            setattr(self, name, partial(self._wait, getattr(comm, f"I{name.lower()}")))
        for name in _STARTING:
            setattr(self, name, partial(self._start, getattr(comm, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def _start(self, start: Callable[..., Request], *given: Any) -> AsleepRequest:
        return AsleepRequest(start(*given), self._poll_s, self._outstanding)

    def _wait(self, start: Callable[..., Request], *given: Any) -> None:
        self._start(start, *given).Wait()
