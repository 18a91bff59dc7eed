"""Ghost computing: a step whose exchanges are real and whose computing is slept.

What a rank would do in a step is known from the dry run. Its calls are made on buffers of their sizes, and
between them the rank sleeps for as long as it would compute. So more ranks than cores wait and communicate
as if each had a core of its own. What is measured so are waits, transfers and the order of things; nothing
is computed.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from pscale.config import Case
from pscale.mesh import grid
from pscale.mesh.axis import Array, Axis, Mesh, Pending, Tag
from pscale.mesh.dry import AxisCall
from pscale.nn.dtypes import dtype_of
from pscale.parallel.ranks import GROUPS
from pscale.training.dry_run import Operation, rank_program
from pscale.training.meta_arrays import Compute
from pscale.worker.delay_injection import DelayRecorder
from pscale.worker.environment import affinity
from pscale.worker.job import JobResult, JobSpec, StartupTimes
from pscale.worker.measure import measure, recording_call_s, recording_ratio, warm_up
from pscale.worker.recorder import Recorder
from pscale.worker.tables import Table
from pscale.worker.usage import resident_bytes, used

_PR_SET_TIMERSLACK = 29  # man 2 prctl
_POLL_S = 25e-6  # for each rank of a core: all of them looking at once take a part of it
# Verbs whose arrays, what is given and what is got, have a row for every rank.
_ROWS = {"all_to_all": (True, True), "gather": (False, True), "scatter": (True, False)}
Action = Callable[[], object]


def poll_s(case: Case) -> float:
    """Return how long a rank that waits sleeps between two looks."""
    return case.ghost.poll_s or _POLL_S * max(2.0, case.ranks / len(affinity()))


class Pacer:
    """Sleeps until deadlines, each counted from the last: an awakening that is late shortens the next sleep.

    How late a call began because of that is taken off its end too, so delays do not add up.
    """

    def __init__(
        self, now: Callable[[], int] = time.perf_counter_ns, sleep: Callable[[float], None] = time.sleep
    ):
        self._now, self._sleep = now, sleep
        self._at = self._late = 0  # what time it would be were no awakening late, and by how much one was

    def resume(self) -> None:
        """Go on from now: a call has ended."""
        self._at = self._now() - self._late

    def sleep(self, duration_ns: int) -> None:
        """Sleep for a duration, less the delay of before."""
        self._at += duration_ns
        if (left_ns := self._at - self._now()) > 0:
            self._sleep(left_ns * 1e-9)
        self._late = max(0, self._now() - self._at)

    def sleep_until(self, at_ns: int) -> int:
        """Sleep until a time, less the delay of before; return the time then."""
        self.sleep(at_ns - self._now())
        return self._now()


class Memory:
    """Buffers by their size in bytes, taken again when they were given back."""

    def __init__(self, dtype: np.dtype[Any]):
        self._dtype, self._free = dtype, dict[int, list[Array]]()

    def take(self, size_bytes: int) -> Array:
        """Return a buffer, of the numbers of the model where so many bytes are some of them."""
        if free := self._free.get(size_bytes):
            return free.pop()
        dtype = self._dtype if size_bytes % self._dtype.itemsize == 0 else np.dtype(np.uint8)
        return np.zeros(size_bytes // dtype.itemsize, dtype)

    def give(self, *buffers: Array) -> None:
        """Take buffers back."""
        for buffer in buffers:
            self._free.setdefault(buffer.nbytes, []).append(buffer)


class Exchanges:
    """Turns the calls of a program into calls on the axes of a mesh."""

    def __init__(self, mesh: Mesh, dtype: np.dtype[Any]):
        self._mesh, self._memory = mesh, Memory(dtype)
        self._axes = {grid.axis_name(span): mesh.axis(*span) for span in grid.groups(mesh.sizes, GROUPS)}
        self._taken: dict[int, tuple[Array, ...]] = {}  # by request
        self._pending: dict[int, Pending] = {}

    def action(self, call: AxisCall) -> Action | None:
        """Return what makes a call; None of what is none, as a copy."""
        match call.event:
            case "poll":
                return self._mesh.progress
            case "call":
                buffers, made = self._made(call, self._axes[call.axis])
                self._memory.give(*buffers)
                return made
            case "start":
                return self._start(call)
            case "wait":
                return self._wait(call)
        return None

    def _start(self, call: AxisCall) -> Action:
        assert call.request is not None
        request, pending = call.request, self._pending
        self._taken[request], start = self._made(call, self._axes[call.axis])

        def started() -> None:
            pending[request] = start()

        return started

    def _wait(self, call: AxisCall) -> Action:
        assert call.request is not None
        request, pending = call.request, self._pending
        self._memory.give(*self._taken.pop(request))
        return lambda: pending.pop(request).wait()

    def all_are_waited_for(self) -> bool:
        """Tell whether each call that was started had its wait."""
        return not self._taken

    def _made(self, call: AxisCall, axis: Axis) -> tuple[tuple[Array, ...], Callable[[], Any]]:
        """Return the buffers of a call, and what makes it."""
        verb, take = call.verb, self._memory.take
        started = "start_" if call.event == "start" else ""
        function = getattr(axis, f"{started}{verb}")
        if call.partner is not None:
            message = take(call.arriving or call.bytes)
            partner = (axis.rank + call.partner) % axis.size
            return (message,), partial(function, message, partner, Tag.MESSAGE)
        if verb == "barrier":
            return (), function
        if verb in ("all_reduce", "reduce", "broadcast"):
            x = take(call.arriving or call.bytes)
            return (x,), partial(function, x)
        both = [take(size) if size else None for size in _sizes(call, axis.size)]
        shaped = both
        if rows := _ROWS.get(verb):  # bytes: the part of a rank may be no whole number of the model's numbers
            shaped = [
                x.view(np.uint8).reshape((axis.size, -1) if many else -1) if x is not None else None
                for x, many in zip(both, rows, strict=True)
            ]
        return tuple(x for x in both if x is not None), partial(function, *shaped)


def _sizes(call: AxisCall, ranks: int) -> tuple[int, int]:
    """Return the bytes of what a rank hands to a call and of what it gets; 0: none, as it is not the root."""
    match call.verb:
        case "all_gather":
            return call.bytes, call.bytes * ranks
        case "reduce_scatter":
            return call.bytes, call.bytes // ranks
        case "gather":
            return call.bytes, call.bytes * ranks * call.root
        case "scatter":
            return call.bytes, call.arriving
    return call.bytes, call.bytes


class GhostTrainer:
    """A rank that does in a step what the trainer would, asleep where that computes."""

    def __init__(self, case: Case, mesh: Mesh, recorder: Recorder, pacer: Pacer):
        self.recorder, self._pacer = recorder, pacer
        exchanges = Exchanges(mesh, dtype_of(case.model.dtype))
        self._phases = [
            (work.phase, work.action, list(self._actions(work.operations, exchanges, case.ghost.gflops)))
            for work in rank_program(case, mesh.world.rank, polls=True)
        ]
        assert exchanges.all_are_waited_for(), "a step ends when all that it started is over"

    def step(self, index: int, meet: Callable[[], None] | None = None) -> None:
        """Do what a step does but for computing."""
        record = self.recorder
        with record.step(index):
            self._pacer.resume()
            for name, action, todo in self._phases:
                with record.phase(name, action):
                    for act in todo:
                        act()
            if meet is not None:
                with record.phase("update"):
                    meet()

    def _actions(
        self, operations: Iterable[Operation], exchanges: Exchanges, gflops: float
    ) -> Iterable[Action]:
        """Yield calls and, between them, one sleep for what is computed; FLOPs over GFLOP/s are ns."""
        for computes, run in groupby(operations, lambda each: isinstance(each, Compute)):
            if computes:
                flops = sum(each.flops for each in run if isinstance(each, Compute))
                yield partial(self._pacer.sleep, round(flops / gflops))
                continue
            for call in run:
                assert isinstance(call, AxisCall), "what is offloaded is not slept"
                if action := exchanges.action(call):
                    yield action
                    yield self._pacer.resume


def run(spec: JobSpec, mesh: Mesh, recorder: Recorder, timeline: StartupTimes) -> JobResult:
    """Run the case on this rank, its computing slept."""
    case = spec.case
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # else Linux wakes a sleeper up to 50 us late
    baseline_bytes, pacer = resident_bytes(), Pacer(recorder.now)
    if isinstance(recorder, DelayRecorder):
        recorder.spend = pacer.sleep_until
    trainer = GhostTrainer(case, mesh, recorder, pacer)
    timeline.mark("build_s")
    startup_s = time.time() - spec.launched_unix_s
    warm_up(trainer, case.train.warmup)
    timeline.mark("warmup_s")
    measured = measure(trainer, mesh, case.train.warmup, case.train.steps)
    stop = case.train.warmup + case.train.steps
    columns = {
        "recording_ratio": recording_ratio(trainer, stop, case.timing.overhead_steps),
        "recording_call_s": recording_call_s(),
        "startup_s": startup_s,
        **timeline.parts,
    }
    rank = {
        "baseline_rss_bytes": baseline_bytes,
        "peak_rss_bytes": measured.peak_rss_bytes,
        "peak_rss_of_steps": measured.peak_rss_of_steps,
        **used(measured.before, measured.after),
    }
    return JobResult(measured=measured, losses=[], columns=columns, rank=rank, kernels=_no_kernels())


def _no_kernels() -> Table:
    """Return a table `kernels` without rows."""
    types: Mapping[str, type] = {"phase": str, "kernel": str, "calls": int, "flops": int, "bytes": int}
    return {name: np.zeros(0, kind) for name, kind in {**types, "time_s": float}.items()}
