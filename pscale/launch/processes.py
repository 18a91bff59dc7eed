"""Every process of a job, wherever it has got to, and its end.

Launchers put ranks into sessions of their own and, when they are killed, leave them behind with no parent, so
neither the process group nor the tree finds them all. A variable in their environment does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil

TAG = "PSCALE_JOB"

_GRACE_S = 3.0  # for MPI to clean up after itself before it is killed
_KILLS = 5  # more than one: a process may be born while the others are killed
_PAUSE_S = 0.01


def end(tag: str) -> None:
    """End all processes whose environment says `TAG`=`tag`: terminate, then kill, and wait for the end."""
    are_left = True
    try:
        are_left = _signal(tag, signal.SIGTERM)
    finally:  # also when the user is too impatient for the grace
        for _ in range(_KILLS):
            if not are_left:
                break
            are_left = _signal(tag, signal.SIGKILL)


def tagged(tag: str) -> list[psutil.Process]:
    """Return the living processes of a job."""
    found = []
    for process in psutil.process_iter():
        # those of other users cannot be read, zombies have no environment left
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(TAG) == tag:
                found.append(process)
    return found


def _signal(tag: str, number: signal.Signals) -> bool:
    """Send a signal to the processes of a job and wait for their end; false if there were none."""
    found = tagged(tag)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
    patience = time.monotonic() + _GRACE_S
    while any(_lives(process) for process in found) and time.monotonic() < patience:
        time.sleep(_PAUSE_S)
    return bool(found)


def _lives(process: psutil.Process) -> bool:
    """Tell whether a process still runs, without reaping it: that is for whoever started it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
