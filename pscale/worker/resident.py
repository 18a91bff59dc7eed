"""How much memory this process occupies, and at most has: Linux keeps a mark that can be put back."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from pscale.mesh.axis import Axis

_TRIED = 512  # rows and columns of a product, for which BLAS sets up its buffers: 0.02 s on a slow core
_PAGE = os.sysconf("SC_PAGE_SIZE")
_RESET_PEAK = "5"  # of /proc/self/clear_refs: man 5 proc


def set_up(axes: Iterable[Axis]) -> None:
    """Use BLAS and every axis once: what they set up at the first use stays, and is not the model's."""
    square = np.ones((_TRIED, _TRIED), np.float32)
    square = square @ square
    for axis in axes:
        axis.all_reduce(square)


def resident_bytes() -> int:
    """Return the memory that this process occupies now, without what is free in it."""
    with contextlib.suppress(OSError, AttributeError):  # glibc: it keeps freed memory for later
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def reset_peak() -> bool:
    """Let the peak begin anew; false where the system refuses: it stays that of the process's whole life."""
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def peak_resident_bytes() -> int:
    """Return the most memory that this process has occupied since the peak was reset, if it was."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
