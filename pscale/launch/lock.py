"""One pscale at a time on a run: a lock that ends with its process, and a file that names its owner."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pscale.runs import atomic_files

FILE = "lock"
_PATIENCE_S, _PAUSE_S = 10.0, 0.05
UNLOCKED = (
    "this file system has no locks, so nothing prevents a second pscale from using this run: start none"
)


class TakenError(Exception):
    """Another process has the lock; names it, if known."""


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Hold the lock of `folder`; yields false where its file system has no locks.

    It ends with its process, however that ends. Raises TakenError, and OSError where it cannot be written.
    """
    descriptor = atomic_files.open_to_append(folder / FILE, os.O_RDWR)
    with os.fdopen(descriptor, "a+", encoding="utf-8") as lock:
        works = _locked(lock.fileno(), folder)
        if works is None:
            lock.seek(0)
            raise TakenError(lock.read().strip() or "unknown")
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        yield works


def _locked(descriptor: int, folder: Path) -> bool | None:
    """Lock as `try_lock` does, waiting for what one that is gone has left behind.

    Killed while it starts a program, a process leaves a copy of itself that has the lock until it becomes
    that program.
    """
    patience = time.monotonic() + _PATIENCE_S
    while (works := try_lock(descriptor)) is None and is_left(folder) and time.monotonic() < patience:
        time.sleep(_PAUSE_S)
    return works


def is_left(folder: Path) -> bool:
    """Tell whether the last owner of the lock is known to have ended: a zombie has."""
    try:
        _, word, _, host = atomic_files.read(folder / FILE).decode().split()
        process = int(word)
    except (OSError, ValueError):
        return False
    import psutil  # noqa: PLC0415 - takes its time, and who only reads a journal asks for no lock

    if host != socket.gethostname():
        return False
    with suppress(psutil.Error):
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    return not psutil.pid_exists(process)  # of another user's it may be all that can be known


def try_lock(descriptor: int) -> bool | None:
    """Lock a file: true if it is ours now, None if it is another's, false where that cannot be known."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:  # a file system without locks
        return False
    return True
