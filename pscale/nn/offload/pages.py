"""Pages of a mapped file: to have them before they are used, and to give them up after.

A page that is not there when it is used would come all the same, but as a page fault of the step, which no
clock shows; and one that cannot come would end the process (SIGBUS). Asked for beforehand it is an error.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_POPULATE_READ, _POPULATE_WRITE = 22, 23  # since Linux 5.14; `mmap` of Python does not name them
_NO_PAGE = "no page can be had: the disk is full, or fails"

_libc = ctypes.CDLL(None, use_errno=True)  # lets other threads go on meanwhile, as `mmap.madvise` does not
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def populate(memory: Bytes, *, writable: bool) -> None:
    """Have all pages come; `writable` ones count as changed. Raise OSError where one cannot be had."""
    _advise(memory, mmap.MADV_WILLNEED)  # a disk reads all at once, not page by page
    try:
        _advise(memory, _POPULATE_WRITE if writable else _POPULATE_READ)
    except OSError as error:
        if error.errno == errno.EFAULT:
            raise OSError(errno.EFAULT, _NO_PAGE) from error
        if error.errno != errno.EINVAL:
            raise
        _touch(memory, writable=writable)


def give_up(memory: Bytes) -> None:
    """Let go of all pages; what was changed is the file's."""
    _advise(memory, mmap.MADV_DONTNEED)


def _touch(memory: Bytes, *, writable: bool) -> None:
    """Use a byte of each page, as older systems need it; nobody else uses them meanwhile."""
    pages = memory[:: mmap.PAGESIZE]
    if writable:
        np.bitwise_or(pages, 0, out=pages)
    else:
        pages.max()


def _advise(memory: Bytes, advice: int) -> None:
    if _libc.madvise(memory.ctypes.data, memory.nbytes, advice):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
