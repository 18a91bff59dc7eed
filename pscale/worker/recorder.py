"""Events of a step, phases and communication calls above all, as rows of integers.

Recording appends one tuple to a list: no I/O, no message. Between two steps the events are packed as rows
into memory that was reserved before. What the rows mean is worked out after the last step (`worker.waits`).
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.mesh import nonblocking
from pscale.parallel.schedule import Action
from pscale.runs.schema import ACTIONS, PHASES, VERBS, Kind

FIELDS = ("kind", "step", "phase", "axis", "verb", "bytes", "request", "partner", "enter", "leave")
_ROW = struct.Struct(f"{len(FIELDS)}q")
_pack_into, _ROW_BYTES = _ROW.pack_into, _ROW.size
_OUTSIDE = -1
_RECENT_STEPS = 32
_VERB = {name: number for number, name in enumerate(VERBS)}
_ACTION = {name: number for number, name in enumerate(ACTIONS)}
# Plain numbers are packed faster than members of an enumeration, and a timed call records its own event.
_STEP, _PHASE, _CALL, _ROOT, _POSTED, _POLLED, _POLLED_COMPLETE, _COMPLETED, *_others = map(int, Kind)
_COPIED, _INJECTED, _IO_SUBMITTED, _IO_WAITED, _IO_DONE = _others
_NO_ACTION = (_OUTSIDE, _OUTSIDE, _OUTSIDE)


class Recorder(nonblocking.Recorder):
    """The events of one rank, of calls over the named `axes`. Disabled, it records none.

    `now` is the clock of the rank in ns; every time in the rows is what it said.
    """

    # The data of a call have taken the caches, and what recording touches is far away: so an event is no
    # more than a tuple, and packed when memory is near again.
    __slots__ = (
        "_append",
        "_axis_numbers",
        "_durations_ns",
        "_end",
        "_ended",
        "_events",
        "_in_step",
        "_phase",
        "_requests",
        "_rows",
        "_step",
        "axes",
        "enabled",
        "now",
        "on_step",
    )

    def __init__(self, axes: Sequence[str], *, now: Callable[[], int] = perf_counter_ns) -> None:
        self.enabled = False
        self.axes, self.now = axes, now
        self.on_step: Callable[[], None] | None = None  # called behind every step, whose time is without it
        self._axis_numbers = {name: number for number, name in enumerate(axes)}
        self._rows = bytearray(_ROW.size * 1024)
        self._end = 0
        self._events: list[tuple[int, ...]] = []  # since the last step
        self._append = self._events.append
        self._step = self._phase = _OUTSIDE
        self._ended = 0  # when the last phase of the step did; before the first, when the step began
        self._requests: list[tuple[int, int]] = []  # axis and verb of every started call
        self._durations_ns: deque[int] = deque(maxlen=_RECENT_STEPS)
        self._in_step = False

    def reserve(self, rows: int) -> None:
        """Forget all rows and reserve memory for `rows` of them."""
        self._rows = bytearray(_ROW.size * rows)
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._end = 0
        self._events.clear()
        self._requests.clear()

    def __len__(self) -> int:
        return self._end // _ROW.size + len(self._events)

    def rows(self) -> dict[str, NDArray[np.int64]]:
        """Return the rows recorded so far, a column for each of FIELDS."""
        self.pack()
        table = np.frombuffer(self._rows[: self._end], np.int64).reshape(-1, len(FIELDS))
        return {name: table[:, i] for i, name in enumerate(FIELDS)}

    @contextmanager
    def step(self, index: int) -> Iterator[None]:
        """Record one step, from the first line of the block to its last."""
        self._step, self._in_step = index, True
        enter = self._ended = self.now()
        yield
        leave = self.now()
        if self.enabled:
            self._write(_STEP, _OUTSIDE, 0, enter, leave)
        self._durations_ns.append(leave - enter)
        self._in_step = False
        self.pack()
        if self.on_step:
            self.on_step()

    def progress(self) -> tuple[int, ...]:
        """Return numbers that stay the same only while this rank gets nowhere."""
        return self._step, self._phase, len(self), len(self._requests), self._in_step

    def place(self) -> tuple[int | None, str]:
        """Return the step and phase that are under way; None outside the steps."""
        phase = self._phase  # read once: another thread asks
        return (self._step if self._in_step else None), ("" if phase == _OUTSIDE else PHASES[phase])

    def median_step_s(self) -> float | None:
        """Return the median duration of the latest steps; None before the first has ended."""
        durations = list(self._durations_ns)
        return float(np.median(durations)) * 1e-9 if durations else None

    def started(self, request: int) -> tuple[str, str]:
        """Return axis and verb of a started call."""
        axis, verb = self._requests[request]
        return self.axes[axis], VERBS[verb]

    def last_call(self) -> dict[str, int | str] | None:
        """Return step, axis and verb of the last call that was recorded; None if there is none."""
        packed = (_ROW.unpack_from(self._rows, end - _ROW.size) for end in range(self._end, 0, -_ROW.size))
        for kind, step, _, axis, verb, *_ in chain(reversed(self._events), packed):
            if kind in {_CALL, _ROOT, _POSTED, _POLLED_COMPLETE, _COMPLETED}:
                return {"step": step, "axis": self.axes[axis], "verb": VERBS[verb]}
        return None

    def phase(self, name: str, action: Action | None = None) -> Phase:
        """Return the block of code that makes up a phase, or one action's part of it; phases do not nest."""
        return Phase(self, name, action)

    def call(
        self, axis: str, verb: str, sent_bytes: int, enter: int, leave: int, *, root: bool = False
    ) -> None:
        """Record a blocking call; `root` marks the rank that the others depend on."""
        if self.enabled:
            kind, of, which = _ROOT if root else _CALL, self._axis_numbers[axis], _VERB[verb]
            step, phase = self._step, self._phase
            self._append((kind, step, phase, of, which, sent_bytes, _OUTSIDE, _OUTSIDE, enter, leave))

    def copied(self, axis: str, enter: int, leave: int) -> None:
        """Record that data were packed or unpacked for an exchange."""
        if self.enabled:
            self._write(_COPIED, self._axis_numbers[axis], _VERB["copy"], enter, leave)

    def injected(self, enter: int, leave: int) -> None:
        """Record an injected delay."""
        if self.enabled:
            self._write(_INJECTED, _OUTSIDE, 0, enter, leave)

    def io_submitted(self, verb: str, size_bytes: int) -> None:
        """Record that a read or write of a file was submitted to the thread that does them."""
        if self.enabled:
            at = self.now()
            self._write(_IO_SUBMITTED, _OUTSIDE, _VERB[verb], at, at, size_bytes)

    def io_waited(self, verb: str, enter: int, leave: int) -> None:
        """Record that the step waited for one."""
        if self.enabled:
            self._write(_IO_WAITED, _OUTSIDE, _VERB[verb], enter, leave)

    def io_done(self, verb: str, size_bytes: int, enter: int, leave: int) -> None:
        """Record when the thread did one; that may be long ago."""
        if self.enabled:
            self._write(_IO_DONE, _OUTSIDE, _VERB[verb], enter, leave, size_bytes)

    def posted(
        self, axis: str, verb: str, sent_bytes: int, enter: int, leave: int, *, partner: int = _OUTSIDE
    ) -> int:
        """Record that a call was started, to or from `partner` if with one rank; returns its number."""
        requests, axis_number, verb_number = self._requests, self._axis_numbers[axis], _VERB[verb]
        number = len(requests)
        requests.append((axis_number, verb_number))
        if self.enabled:
            self._write(_POSTED, axis_number, verb_number, enter, leave, sent_bytes, number, partner)
        return number

    def polled(self, request: int, enter: int, leave: int) -> None:
        """Record a test that found a started call incomplete."""
        if self.enabled:
            self._write(_POLLED, *self._requests[request], enter, leave, 0, request)

    def polled_complete(self, request: int, enter: int, leave: int) -> None:
        """Record the test that found a started call complete."""
        if self.enabled:
            self._write(_POLLED_COMPLETE, *self._requests[request], enter, leave, 0, request)

    def completed(self, request: int, enter: int, leave: int) -> None:
        """Record the call from which on the rank relies on a started one."""
        if self.enabled:
            axis, verb = self._requests[request]
            self._write(_COMPLETED, axis, verb, enter, leave, 0, request)

    def _write(  # noqa: PLR0917 - positional is faster
        self,
        kind: int,
        axis: int,
        verb: int,
        enter: int,
        leave: int,
        sent_bytes: int = 0,
        request: int = _OUTSIDE,
        partner: int = _OUTSIDE,
    ) -> None:
        self._append((kind, self._step, self._phase, axis, verb, sent_bytes, request, partner, enter, leave))

    def pack(self) -> None:
        """Pack the events as rows."""
        end, needed = self._end, _ROW_BYTES * len(self)
        if needed > len(self._rows):  # more calls than the warm-up showed
            self._rows.extend(bytes(needed))
        for event in self._events:
            _pack_into(self._rows, end, *event)
            end += _ROW_BYTES
        self._end = end
        self._events.clear()


class Phase:
    """A block of code whose time belongs to one phase of the step.

    It begins where the phase before it has ended, the first where the step begins: what a rank does between
    two blocks, it does for the later one.
    """

    __slots__ = ("_action", "_enter", "_number", "_recorder")

    def __init__(self, recorder: Recorder, name: str, action: Action | None):
        self._recorder, self._number, self._enter = recorder, PHASES.index(name), 0
        self._action = action

    def __enter__(self) -> None:
        record = self._recorder
        record._phase = self._number
        self._enter = record._ended if record._in_step else record.now()

    def __exit__(self, *_: Any) -> None:
        record = self._recorder
        if record.enabled:
            leave = record._ended = record.now()
            action = self._action
            kind, micro, part = (_ACTION[action.kind], *action[1:]) if action else _NO_ACTION
            record._write(_PHASE, _OUTSIDE, kind, self._enter, leave, 0, micro, part)
        record._phase = _OUTSIDE
