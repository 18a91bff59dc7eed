"""Files that are whole or not there at all, also after a crash of the machine.

A file is on disk once it was synced, its name only once its folder was (fsync(2)).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
            os.fsync(descriptor)  # some network file systems refuse it for folders
    finally:
        os.close(descriptor)
