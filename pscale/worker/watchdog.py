"""The hang watchdog of a rank: a thread that notices when the main one makes no progress, and reports where.

It sleeps nearly all the time and reads what the main thread records anyway, so measuring is not disturbed.
Every rank watches itself: no message, no signal and no common clock is needed when something is broken.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
import traceback
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

from pscale.mesh import axis as mesh_axis
from pscale.mesh import grid, nonblocking
from pscale.mesh.axis import Axis, Mesh
from pscale.runs import atomic_files
from pscale.worker.recorder import Recorder

_STEPS = 20  # of a rank's median steps, without progress, count as a hang
_UNKNOWN = 10  # how many times longer, as long as no step has shown how long one takes, and outside of steps
_CHECKS = 8  # per limit
_BLOCKED = 1.5  # limits without a check even by this thread: C code holds the interpreter
_INNERMOST = 12  # frames of a stack that are kept
_MESH_FILES = {mesh_axis.__file__, nonblocking.__file__}


class Watchdog:
    """Watches the thread that creates it, during a block of code."""

    def __init__(self, recorder: Recorder, mesh: Mesh, folder: Path, hang_after_s: float):
        self._recorder, self._mesh, self._folder = recorder, mesh, folder
        self._hang_after_s = hang_after_s
        self._watched = threading.get_ident()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hang watchdog", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def limit_s(self) -> float:
        """Return for how long this rank may make no progress where it is now."""
        step_s = self._recorder.median_step_s()
        if step_s is None or self._recorder.place()[0] is None:
            return _UNKNOWN * self._hang_after_s
        return max(self._hang_after_s, _STEPS * step_s)

    def _run(self) -> None:
        seen, since = self._recorder.progress(), time.monotonic()
        while not self._stopped.wait(self._hang_after_s / _CHECKS):
            now, limit_s = self._recorder.progress(), self.limit_s()
            with contextlib.suppress(RuntimeError, ValueError, OSError):  # no standard error: then without
                faulthandler.dump_traceback_later(_BLOCKED * limit_s)
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > limit_s:
                self._write_report(time.monotonic() - since)
                return

    def _write_report(self, still_s: float) -> None:
        """Append this rank's report to the file of its host, as one line in one write."""
        line = json.dumps({**self.report(), "still_s": round(still_s, 1), "unix_s": time.time()}) + "\n"
        path = self._folder / f"hang-{os.uname().nodename}.jsonl"
        descriptor = atomic_files.open_to_append(path)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def report(self) -> dict[str, Any]:
        """Return where this rank is: step, phase, the call that it is in with whom, and its stack."""
        frame = sys._current_frames().get(self._watched)
        world = self._mesh.world
        step, phase = self._recorder.place()
        found: dict[str, Any] = {"axis": None, "verb": None, "group": []}
        if call := self._call(frame):
            axis, verb = call
            found = {"axis": axis, "verb": verb, "group": self._group(axis)}
        stack = traceback.extract_stack(frame)[-_INNERMOST:] if frame else []
        return {
            "rank": world.rank,
            "ranks": world.size,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "step": step,
            "phase": phase,
            **found,
            "last_call": self._recorder.last_call(),
            "stack": [f"{at.filename}:{at.lineno} {at.name}: {at.line or ''}".rstrip() for at in stack],
        }

    def _call(self, frame: FrameType | None) -> tuple[str, str] | None:
        """Return axis and verb of the call of the mesh that `frame`, or one around it, is in.

        Read from the frames, so that a call costs no more for being watched.
        """
        while frame is not None:
            owner = frame.f_locals.get("self") if frame.f_code.co_filename in _MESH_FILES else None
            if isinstance(owner, Axis):
                return owner.name, frame.f_code.co_name
            if isinstance(owner, nonblocking.NonblockingCall):
                return self._recorder.started(owner.number)
            frame = frame.f_back
        return None

    def _group(self, axis: str) -> list[int]:
        sizes, span = self._mesh.sizes, axis.split("+")
        if axis == self._mesh.world.name:
            return list(range(self._mesh.world.size))
        return grid.members(sizes, span, self._mesh.world.rank)


def watchdog(
    recorder: Recorder, mesh: Mesh, folder: Path, hang_after_s: float | None
) -> AbstractContextManager[None]:
    """Return what watches this thread during a block of code: nothing without a limit."""
    return nullcontext() if hang_after_s is None else Watchdog(recorder, mesh, folder, hang_after_s)
