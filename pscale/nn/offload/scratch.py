"""A file without a name: what lies in it never outlives the process, however that ends."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pscale.errors import PscaleError

Bytes = NDArray[np.uint8]

_PIECES = 1024  # of one read or write: IOV_MAX of Linux
_NOT_HERE = {
    errno.EOPNOTSUPP,
    errno.EISDIR,
    errno.ENOENT,
    errno.EINVAL,
}  # a file without a name from the start
_NOT_AHEAD = {errno.EOPNOTSUPP, errno.ENOSYS}  # room set aside before it is written to

_POPULATE_READ, _POPULATE_WRITE = 22, 23  # since Linux 5.14; `mmap` of Python does not name them
_NO_PAGE = "no page can be had: the disk is full, or fails"

_libc = ctypes.CDLL(None, use_errno=True)  # lets other threads go on meanwhile, as `mmap.madvise` does not
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class OffloadError(PscaleError):
    """A folder that cannot take what is to leave memory."""


def folder_of(named: str) -> Path:
    """Return the folder that is meant: the one that is named, else the system's for temporary files."""
    return Path(named or tempfile.gettempdir())


def whole_pages(size_bytes: int) -> int:
    """Return the bytes that `size_bytes` take in the file."""
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


@dataclass(frozen=True)
class Window:
    """A part of the file, from byte `at` on, that is used where it lies."""

    memory: Bytes
    at: int

    def part(self, start: int, size_bytes: int) -> Window:
        """Return a part of it."""
        return Window(self.memory[start : start + size_bytes], self.at + start)


class Scratch:
    """Room in a folder: windows of it are memory, and arrays of bytes are read and written at a place.

    Room is set aside before it is used, so that a full disk shows at once. Pages that the system keeps of
    what was used, read or written are given up, changed ones once they are on the disk: what lies here is not
    to come back into memory by that door.
    """

    def __init__(self, folder: Path):
        self.folder, self.size_bytes = folder, 0
        try:
            self._descriptor = _unnamed(folder)
        except OSError as error:
            raise OffloadError(f"offload_folder {folder} takes no files: {error.strerror}") from error

    def reserve(self, size_bytes: int) -> int:
        """Set aside room that reads as zeros; return where it begins."""
        start = self.size_bytes
        if size_bytes:
            try:
                _allocate(self._descriptor, start, size_bytes)
            except OSError as error:
                raise self._full(start + size_bytes, error) from error
        self.size_bytes += size_bytes
        return start

    def mapped(self, size_bytes: int) -> Window:
        """Set aside whole pages that read as zeros; return them as memory, none of it here yet."""
        start = self.reserve(size_bytes)
        try:
            whole = mmap.mmap(self._descriptor, size_bytes, offset=start)
        except OSError as error:
            raise OffloadError(f"offload_folder {self.folder} maps no files: {error.strerror}") from error
        return Window(np.frombuffer(whole, np.uint8), start)

    def fetch(self, window: Window, *, writable: bool) -> None:
        """Have the pages of a window come; it may be used where they are not there, which takes longer."""
        _populate(window.memory, writable=writable)

    def release(self, window: Window) -> None:
        """Take the pages of a window from this process, and let what changed go to the disk."""
        _advise(window.memory, mmap.MADV_DONTNEED)  # what was changed is the file's
        self._let_go(window.at, window.memory.nbytes)

    def read(self, pieces: Sequence[Bytes], at: int) -> None:
        """Fill all pieces, one after another."""
        self._move(os.preadv, pieces, at)

    def write(self, pieces: Sequence[Bytes], at: int) -> None:
        """Put all pieces there, one after another."""
        self._move(os.pwritev, pieces, at)

    def explained(self, error: OSError) -> OffloadError:
        """Return what a failed read or write means to a person."""
        return self._full(self.size_bytes, error)

    def close(self) -> None:
        """Let the system take the room back."""
        os.close(self._descriptor)

    def _full(self, needed_bytes: int, error: OSError) -> OffloadError:
        with contextlib.suppress(OSError):
            free = f"; {shutil.disk_usage(self.folder).free:,} bytes are free there"
            return OffloadError(
                f"offload_folder {self.folder} cannot take the {needed_bytes:,} bytes of this rank: "
                f"{error.strerror}{free}"
            )
        return OffloadError(f"offload_folder {self.folder}: {error.strerror}")

    def _move(
        self, act: Callable[[int, list[memoryview], int], int], pieces: Sequence[Bytes], at: int
    ) -> None:
        left, done = [piece.data for piece in pieces if piece.nbytes], 0
        while left:
            count = act(self._descriptor, left[:_PIECES], at + done)
            if not count:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            done += count
            while left and count >= left[0].nbytes:
                count -= left.pop(0).nbytes
            if count:
                left[0] = left[0][count:]
        self._let_go(at, done)

    def _let_go(self, at: int, size_bytes: int) -> None:
        """Let what changed go to the disk, and give up what already exists."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, at, size_bytes, os.POSIX_FADV_DONTNEED)


def _unnamed(folder: Path) -> int:
    """Open a file that no folder lists: some file systems have them, others forget a name at once."""
    try:
        return os.open(folder, getattr(os, "O_TMPFILE", 0) | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    descriptor, name = tempfile.mkstemp(prefix="pscale-", dir=folder)
    Path(name).unlink()
    return descriptor


def _allocate(descriptor: int, start: int, size_bytes: int) -> None:
    if not hasattr(os, "posix_fallocate"):
        os.ftruncate(descriptor, start + size_bytes)
        return
    try:
        os.posix_fallocate(descriptor, start, size_bytes)
    except OSError as error:
        if error.errno not in _NOT_AHEAD:
            raise
        os.ftruncate(descriptor, start + size_bytes)


def _populate(memory: Bytes, *, writable: bool) -> None:
    """Have all pages come; `writable` ones count as changed. Raise OSError where one cannot be had.

    A page that is not there when it is used would come all the same, but as a page fault of the step, which
    no clock shows; and one that cannot come would end the process (SIGBUS). Asked for here it is an error.
    """
    _advise(memory, mmap.MADV_WILLNEED)  # a disk reads all at once, not page by page
    try:
        _advise(memory, _POPULATE_WRITE if writable else _POPULATE_READ)
    except OSError as error:
        if error.errno == errno.EFAULT:
            raise OSError(errno.EFAULT, _NO_PAGE) from error
        if error.errno != errno.EINVAL:
            raise
        _touch(memory, writable=writable)


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
