"""Calls that were started: asked for progress between layers, waited for where results are needed, or asleep.

MPI waits in a loop, and ranks that share cores then take them from those that arrive late. Asleep, a blocking
call becomes a started one that is asked for now and then; what moves, and where, is the same.
"""

# ruff: noqa: ARG002 - told like any recorder
from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns, thread_time_ns
from typing import Any, Protocol

# A question that takes so many times the CPU time of the cheapest has moved data, perhaps a part of what is
# there: over TCP, a segment. One that found nothing to do takes a microsecond or two, however long it lets
# others run.
_BUSY = 2
_LEAST_NS = 1_000  # where a clock is too coarse to tell
_MOST_QUESTIONS = 100
# Times that a look asks until nothing moves: an answer takes microseconds, to sleep a thousand.
_ASKED_AWAKE = 4


class Recorder:
    """Told of every communication call by the axes, in times of its clock; this one keeps nothing."""

    __slots__ = ()
    now: Callable[[], int] = staticmethod(perf_counter_ns)  # the clock of this rank, in ns

    def call(
        self, axis: str, verb: str, sent_bytes: int, enter: int, leave: int, *, root: bool = False
    ) -> None:
        """Note a blocking call; `root` marks the rank that the others depend on."""

    def copied(self, axis: str, enter: int, leave: int) -> None:
        """Note that data were arranged for an exchange."""

    def posted(
        self, axis: str, verb: str, sent_bytes: int, enter: int, leave: int, *, partner: int = -1
    ) -> int:
        """Note that a call was started, to or from `partner` if with one rank; returns its number."""
        return 0

    def polled(self, request: int, enter: int, leave: int) -> None:
        """Note time spent asking whether a started call is complete."""

    def polled_complete(self, request: int, enter: int, leave: int) -> None:
        """Note the question whose answer was that a started call is complete."""

    def completed(self, request: int, enter: int, leave: int) -> None:
        """Note the call from which on the rank relies on a started one."""


class Request(Protocol):
    """A started call as the MPI library knows it."""

    def Test(self) -> bool:  # noqa: N802 - as mpi4py calls it
        """Move what can be moved; true once the result is there."""
        ...

    def Wait(self) -> object:  # noqa: N802
        """Return when the result is there."""
        ...


def mover_of(request: Request) -> object:
    """Return what moves a call: the sums that it is one of, or None, the library."""
    return getattr(request, "sums", None)


Calls = dict["NonblockingCall", None]  # a set that keeps its order


class RequestQueue:
    """What was started and is not known to be complete, oldest first, in `queues` by what moves it.

    Asking for one call moves all of its queue: the library moves its own, None, and sums of 16 bits, of which
    it knows only messages, move by axis (`mesh.sums`). A rank that waits asleep looks every `poll_s` seconds.
    """

    busy_ns = 10_000  # CPU time above which a question has moved data, until one has been cheaper

    def __init__(self, poll_s: float = 0.0) -> None:
        self.poll_s = poll_s
        self.queues: defaultdict[object, Calls] = defaultdict(dict)

    def wait(self, request: Request) -> None:
        """Return when the result is there; sums of other queues go on meanwhile."""
        others = [
            calls for mover, calls in self.queues.items() if calls and mover not in (None, mover_of(request))
        ]
        if not others:
            request.Wait()
            return
        while not self.ask(request):
            for calls in others:
                next(iter(calls)).request.Test()
            if self.poll_s:
                time.sleep(self.poll_s)
            else:
                os.sched_yield()

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
    """A started call, `outstanding` until it is complete; the library may move nothing until it is asked.

    `then` arranges what has arrived when it is waited for.
    """

    __slots__ = ("_outstanding", "_queue", "_recorder", "_then", "complete", "number", "request")

    def __init__(
        self,
        request: Request,
        number: int,
        recorder: Recorder,
        outstanding: RequestQueue,
        then: Callable[[], None] | None = None,
    ):
        self.request, self.number, self._recorder = request, number, recorder
        self._outstanding, self._then, self.complete = outstanding, then, False
        self._queue = outstanding.queues[mover_of(request)]
        self._queue[self] = None

    def poll(self) -> bool:
        """Let the call make progress; true once the result is there."""
        if not self.complete:
            enter = self._recorder.now()
            self.complete = self._outstanding.ask(self.request)
            note = self._recorder.polled_complete if self.complete else self._recorder.polled
            note(self.number, enter, self._recorder.now())
            if self.complete:
                del self._queue[self]
        return self.complete

    def wait(self) -> None:
        """Return when the result is there."""
        recorder = self._recorder
        enter = leave = recorder.now()
        if not self.complete:
            self._outstanding.wait(self.request)
            self.complete, leave = True, recorder.now()
            del self._queue[self]
        recorder.completed(self.number, enter, leave)
        if self._then is not None:
            self._then()


def progress(outstanding: RequestQueue) -> None:
    """Ask for the oldest of each queue, and while that is complete, for the next.

    Asking for one moves all of its queue, so the oldest is asked for until it is complete: one question a
    queue between two layers, however many calls are under way.
    """
    for queue in outstanding.queues.values():
        while queue and next(iter(queue)).poll():
            pass


_BLOCKING = (
    *("Allreduce", "Allgather", "Reduce_scatter_block", "Alltoall", "Bcast", "Reduce", "Gather", "Scatter"),
    "Barrier",
)
_STARTING = ("Iallreduce", "Iallgather", "Ireduce_scatter_block", "Isend", "Irecv")


class AsleepRequest:
    """A started call whose wait is asleep, but for a look every `poll_s` seconds of `outstanding`.

    A look takes all that has come: a library may move one message each time it is asked, and a call of many
    messages would last as many looks.
    """

    def __init__(self, request: Request, outstanding: RequestQueue):
        self.Test, self._outstanding = request.Test, outstanding

    def Wait(self) -> None:  # noqa: N802 - as mpi4py calls it
        """Return when the result is there."""
        while not any(self._outstanding.ask(self) for _ in range(_ASKED_AWAKE)):
            time.sleep(self._outstanding.poll_s)


class AsleepComm:
    """A communicator of mpi4py whose calls of whole arrays wait asleep."""

    def __init__(self, comm: Any, outstanding: RequestQueue):
        self._comm, self._outstanding = comm, outstanding
        for name in _BLOCKING:
            setattr(self, name, partial(self._wait, getattr(comm, f"I{name.lower()}")))
        for name in _STARTING:
            setattr(self, name, partial(self._start, getattr(comm, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def _start(self, start: Callable[..., Request], *given: Any) -> AsleepRequest:
        return AsleepRequest(start(*given), self._outstanding)

    def _wait(self, start: Callable[..., Request], *given: Any) -> None:
        self._start(start, *given).Wait()
