"""The folder of a launch, held open: whatever a program puts in its place, nothing elsewhere is touched."""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
import weakref
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from pscale.runs import atomic_files

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LaunchFolder:
    """An open folder: its files are read, made and deleted by its descriptor, and through no link.

    A file counts as its own only under one name: a second one, a hard link, may be anybody's. What is mounted
    in it is somebody else's too.
    """

    def __init__(self, path: Path):
        """Open `path`; raises OSError where it is no folder, or a link to one."""
        self.path, self._real = path, os.path.realpath(path)
        self._descriptor = os.open(path, _FOLDER)
        self._mount = _mount(self._descriptor)
        self._made: dict[str, int] = {}  # descriptors of files by the names that they were made with
        weakref.finalize(self, _close, self._descriptor, self._made)

    def is_in_place(self) -> bool:
        """Tell whether its path still leads to it, and through no other links."""
        with suppress(OSError):
            return os.path.realpath(self.path) == self._real and os.path.samestat(
                os.lstat(self.path), os.fstat(self._descriptor)
            )
        return False

    def names(self, pattern: str) -> list[str]:
        """Return what is in it under a name like `pattern`, sorted; nothing where it cannot be read."""
        with suppress(OSError):
            return sorted(fnmatch.filter(os.listdir(self._descriptor), pattern))  # noqa: PTH208 - it is open
        return []

    def is_file(self, name: str) -> bool:
        """Tell whether there is a file of its own under this name."""
        with suppress(OSError), self.open(name):
            return True
        return False

    def make(self, name: str) -> BinaryIO:
        """Make a file to append to, in place of any other; `open` finds it also under another name."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)
        flags = os.O_NOFOLLOW | os.O_CLOEXEC
        new = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | flags
        file = os.fdopen(os.open(name, new, 0o666, dir_fd=self._descriptor), "ab")
        self._made[name] = os.open(name, os.O_RDWR | flags, dir_fd=self._descriptor)
        return file

    def descriptor(self, name: str) -> int:
        """Return the descriptor, for reading and writing, of a file that was made here."""
        return self._made[name]

    def has(self, name: str) -> bool:
        """Tell whether a file that was made here has its name still, and no other."""
        with suppress(OSError):
            made, here = os.fstat(self._made[name]), os.lstat(name, dir_fd=self._descriptor)
            return os.path.samestat(made, here) and made.st_nlink == 1
        return False

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading; raises OSError for whatever lies elsewhere, never ends or is no file."""
        if name in self._made:
            made = os.fdopen(os.dup(self._made[name]), "rb")
            made.seek(0)
            return made
        inside = os.path.relpath(os.path.realpath(self.path / name), self._real)
        *folders, last = Path(inside).parts
        with ExitStack() as stack:
            folder = self._descriptor
            for part in folders:
                if part == os.pardir:
                    raise OSError(errno.EXDEV, "lies elsewhere", name)
                folder = os.open(part, _FOLDER, dir_fd=folder)
                stack.callback(os.close, folder)
            file = atomic_files.open_file(last, folder)
        facts = os.fstat(file.fileno())
        if facts.st_nlink > 1 or _mount(file.fileno()) != self._mount:
            file.close()
            raise OSError(errno.EXDEV, "has a name elsewhere", name)
        return file

    def clear(self, kept: Collection[str] = ()) -> None:
        """Delete what is in it, as far as that can be, but for `kept` and what is mounted in or over it."""
        with suppress(OSError, RecursionError), ExitStack() as stack:
            above = os.open(os.pardir, _FOLDER, dir_fd=self._descriptor)
            stack.callback(os.close, above)
            mount = _mount(above)
            for top, folders, files, descriptor in os.fwalk(
                ".", topdown=False, follow_symlinks=False, dir_fd=self._descriptor
            ):
                if _mount(descriptor) != mount:
                    continue
                for name in (*files, *folders):
                    if os.path.normpath(os.path.join(top, name)) not in kept:  # noqa: PTH118 - of a walk
                        with suppress(OSError):
                            _delete(name, descriptor)


def _mount(descriptor: int) -> str:
    """Return what tells mounts apart, also two of one file system; the device where no kernel says."""
    with suppress(OSError, StopIteration), Path(f"/proc/self/fdinfo/{descriptor}").open() as facts:
        return next(line for line in facts if line.startswith("mnt_id:"))
    return str(os.fstat(descriptor).st_dev)


def _delete(name: str, folder: int) -> None:
    is_folder = stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode)
    (os.rmdir if is_folder else os.unlink)(name, dir_fd=folder)


def _close(descriptor: int, made: dict[str, int]) -> None:
    for each in (descriptor, *made.values()):
        os.close(each)
