"""The hang watch of one rank: a thread that notices when the main one gets nowhere, and leaves evidence.

It sleeps nearly all the time and reads what the main thread notes anyway, so measuring is not disturbed.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pscale.mesh import grid
from pscale.mesh.axis import Mesh
from pscale.mesh.under_way import call_under_way
from pscale.worker.recorder import Recorder

_STEPS = 20  # a rank may stand still for so many of its median steps
_UNKNOWN = 10  # how many times longer, as long as no step has shown how long one takes, and outside of steps
_LOOKS = 8  # per allowed time
_DEAF = 1.5  # after so many allowed times without a look even of this thread, C code holds the interpreter
_INNERMOST = 12  # frames of a stack that are kept


class Watch:
    """Watches the thread that makes it, from `start` to `stop`."""

    def __init__(self, recorder: Recorder, mesh: Mesh, folder: Path, patience_s: float):
        self._recorder, self._mesh, self._folder = recorder, mesh, folder
        self._patience_s = patience_s
        self._watched = threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="hang watch", daemon=True)

    def start(self) -> None:
        """Begin to look on."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def allowed_s(self) -> float:
        """Return for how long this rank may stand still where it is now."""
        step_s = self._recorder.median_step_s()
        if step_s is None or self._recorder.place()[0] is None:
            return _UNKNOWN * self._patience_s
        return max(self._patience_s, _STEPS * step_s)

    def _look_on(self) -> None:
        seen, since = self._recorder.progress(), time.monotonic()
        while not self._over.wait(self._patience_s / _LOOKS):
            now, allowed_s = self._recorder.progress(), self.allowed_s()
            with contextlib.suppress(RuntimeError, ValueError, OSError):  # no standard error: then without
                faulthandler.dump_traceback_later(_DEAF * allowed_s)
            if now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > allowed_s:
                self._report(time.monotonic() - since)
                return

    def _report(self, still_s: float) -> None:
        """Append this rank's evidence to the file of its host, as one line in one write."""
        line = json.dumps({**self.evidence(), "still_s": round(still_s, 1), "unix_s": time.time()}) + "\n"
        path = self._folder / f"hang-{os.uname().nodename}.jsonl"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def evidence(self) -> dict[str, Any]:
        """Return where this rank is: step, phase, the call that it is in with whom, and its stack."""
        frame = sys._current_frames().get(self._watched)
        world = self._mesh.world
        step, phase = self._recorder.place()
        found: dict[str, Any] = {"axis": None, "verb": None, "group": []}
        if call := call_under_way(frame):
            axis, verb = (call.axis, call.verb) if call.request < 0 else self._recorder.started(call.request)
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

    def _group(self, axis: str) -> list[int]:
        sizes, span = self._mesh.sizes, axis.split("+")
        if axis == self._mesh.world.name:
            return list(range(self._mesh.world.size))
        return grid.members(sizes, span, self._mesh.world.rank)


@contextmanager
def watching(recorder: Recorder, mesh: Mesh, folder: Path, patience_s: float | None) -> Iterator[None]:
    """Watch this thread during the block; without a patience, don't."""
    if patience_s is None:
        yield
        return
    watch = Watch(recorder, mesh, folder, patience_s)
    watch.start()
    try:
        yield
    finally:
        watch.stop()
