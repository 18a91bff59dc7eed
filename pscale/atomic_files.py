"""Files that are whole or not there at all, also after a crash of the machine; and those of others, read.

A file is on disk once it was synced, its name only once its folder was (fsync(2)).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 28  # of a file that is read whole
_HALF = re.compile(r"\\u[dD]")  # what may write half of a character


def write(path: Path, text: str) -> None:
    """Write a file or replace it; a reader sees the old content or all of the new."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    rename(temporary, path)


def rename(temporary: Path, path: Path) -> None:
    """Give a finished file of the same folder its name, also in place of an older one."""
    _sync(temporary)
    os.replace(temporary, path)  # noqa: PTH105 - says that it replaces
    _sync(path.parent)


def append(path: Path, line: bytes) -> None:
    """Add a line to a file, which is made if it is not there."""
    is_new = not path.exists()
    with path.open("ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        _sync(path.parent)


def read(path: Path) -> bytes:
    """Return what is in a file; raises OSError also for a pipe or a device, which may never end."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is no file", str(path))
        if found.st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"has more than {MOST_BYTES >> 20} MiB", str(path))
        return file.read()


def read_json(path: Path) -> Any:
    """Return what a JSON file says; raises OSError as `read` does, ValueError, or RecursionError."""
    return from_json(read(path).decode())


def from_json(text: str) -> Any:
    """Return what JSON says; halves of characters, which no file can hold, become question marks."""
    document = json.loads(text)
    if _HALF.search(text):
        return json.loads(json.dumps(document, ensure_ascii=False).encode(errors="replace"))
    return document


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
            os.fsync(descriptor)  # some network file systems refuse it for folders
    finally:
        os.close(descriptor)
