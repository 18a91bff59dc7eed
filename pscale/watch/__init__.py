"""Name the steps and phases of an mpi4py program that `pscale watch` records; without it nothing happens.

Recording any program, in any language: docs/any-program.md.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_STEP, _PAUSE, _NO_PHASE, _FIRST_PHASE = 1, 0, -1, 1000  # levels, as of MPI_Pcontrol

_levels: dict[str, int] = {}
_open: list[int] = []


def step() -> None:
    """Begin a step of the program, and end the one before."""
    _mark(_STEP)


def pause() -> None:
    """End the steps: what follows belongs to none until the next one begins."""
    _mark(_PAUSE)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Give the time in this block to the phase `name`; of nested blocks, to the inner one."""
    _open.append(_level(name))
    _mark(_open[-1])
    try:
        yield
    finally:
        _open.pop()
        _mark(_open[-1] if _open else _NO_PHASE)


def _level(name: str) -> int:
    """Return the number of a phase, which the record learns with its first use."""
    recorder = _recorder()
    if name not in _levels and recorder is not None:
        _levels[name] = _FIRST_PHASE + len(_levels)
        recorder.pscale_watch_name(_levels[name], " ".join(name.split()).encode())
    return _levels.get(name, _NO_PHASE)


def _mark(level: int) -> None:
    if (recorder := _recorder()) is not None:
        recorder.pscale_watch_mark(level)


@cache
def _recorder() -> ctypes.CDLL | None:
    """Return the recorder, if it was loaded before this program."""
    process = ctypes.CDLL(None)
    return process if hasattr(process, "pscale_watch_mark") else None
