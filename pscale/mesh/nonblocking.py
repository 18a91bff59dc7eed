"""Calls that were started: asked for progress between layers, waited for where their results are needed."""

from __future__ import annotations

from time import thread_time_ns
from typing import Protocol

from pscale.mesh.axis import Recorder

# A question that takes so many times the CPU time of the cheapest has moved data, perhaps a part of what is
# there: over TCP, a segment. One that found nothing to do takes a microsecond or two, however long it lets
# others run.
_BUSY = 2
_LEAST_NS = 1_000  # where a clock is too coarse to tell
_MOST_QUESTIONS = 100


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
        """Give the library chances to make progress while it makes some; true once the result is there."""
        if not self.complete:
            enter, asked = self._recorder.now(), thread_time_ns()
            for _ in range(_MOST_QUESTIONS):
                self.complete = self._request.Test()
                answered = thread_time_ns()
                if self.complete or not self._outstanding.has_moved(answered - asked):
                    break
                asked = answered
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
