"""Calls that were started: asked for progress between layers, waited for where their results are needed."""

from __future__ import annotations

from collections import deque
from time import thread_time_ns
from typing import Protocol

from pscale.mesh.axis import Recorder

# A question that takes more CPU time has moved data, perhaps a part of what is there: over TCP, a segment.
# One that found nothing to do takes a microsecond or two, however long it lets other ranks run.
_BUSY_NS = 10_000
_MOST_QUESTIONS = 100


class Request(Protocol):
    """A started call as the MPI library knows it."""

    def Test(self) -> bool:  # noqa: N802 - as mpi4py calls it
        """Move what can be moved; true once the result is there."""
        ...

    def Wait(self) -> object:  # noqa: N802
        """Return when the result is there."""
        ...


class Started:
    """A started call; the library may move nothing until it is asked."""

    __slots__ = ("_now", "_recorder", "_request", "complete", "number")

    def __init__(self, request: Request, number: int, recorder: Recorder):
        self._request, self.number, self._recorder = request, number, recorder
        self._now, self.complete = recorder.now, False

    def poll(self) -> bool:
        """Give the library chances to make progress while it makes some; true once the result is there."""
        if not self.complete:
            enter, asked = self._now(), thread_time_ns()
            for _ in range(_MOST_QUESTIONS):
                self.complete = self._request.Test()
                answered = thread_time_ns()
                if self.complete or answered - asked < _BUSY_NS:
                    break
                asked = answered
            note = self._recorder.found if self.complete else self._recorder.polled
            note(self.number, enter, self._now())
        return self.complete

    def wait(self) -> None:
        """Return when the result is there."""
        enter = leave = self._now()
        if not self.complete:
            self._request.Wait()
            self.complete, leave = True, self._now()
        self._recorder.completed(self.number, enter, leave)


class UnderWay:
    """What was started and is not known to be complete, oldest first.

    Asking for one lets the library move all of them, so the oldest is asked for until it is complete: one
    call between two layers, however many are under way.
    """

    def __init__(self) -> None:
        self._calls: deque[Started] = deque()

    def add(self, call: Started) -> None:
        """Note a call that was just started, and forget those that were waited for."""
        while self._calls and self._calls[0].complete:
            self._calls.popleft()
        self._calls.append(call)

    def progress(self) -> None:
        """Ask for the oldest, and while that is complete, for the next."""
        while self._calls and self._calls[0].poll():
            self._calls.popleft()
