"""Files that are whole or not there at all, also after a crash of the machine; and those of others, read.

A file is on disk once it was synced, its name only once its folder was (fsync(2)).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

MOST_BYTES = 1 << 28  # of a file that is read whole
_PART_BYTES = 1 << 20
_HASHED_BYTES = 1 << 28
_HALF = re.compile(r"\\u[dD]")  # what may write half of a character


def write(path: Path, content: str | bytes, *, synced: bool = True) -> None:
    """Write a file or replace it; a reader sees the old content or all of the new, however many write it.

    One that is not `synced` may be empty after a crash of the machine.
    """
    with replacing(path, synced=synced) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def replacing(path: Path, *, synced: bool = True) -> Iterator[BinaryIO]:
    """Open a file that gets its name, also in place of an older one, at the end of the block."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with create(temporary) as file:
            yield file
        if synced:
            _sync(temporary)
        os.replace(temporary, path)  # noqa: PTH105 - says that it replaces
        if synced:
            _sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def create(path: Path) -> BinaryIO:
    """Make a file in place of any other: never what a link leads to, or what has a second name."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def append(path: Path, line: bytes) -> None:
    """Add a line to a file, which is made if it is not there; raises OSError for a link of any kind."""
    is_new = not path.exists()
    with os.fdopen(open_to_append(path), "ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        _sync(path.parent)


def open_to_append(path: Path, access: int = os.O_WRONLY) -> int:
    """Return a descriptor of a file, made if it is not there; raises OSError for a link of any kind."""
    flags = access | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    try:
        facts = os.fstat(descriptor)
        _check_kind(facts, path)
        if facts.st_nlink > 1:
            raise OSError(errno.EMLINK, "has a second name", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read(path: Path) -> bytes:
    """Return what is in a file; raises OSError also for a pipe or a device, which may never end."""
    content = bytearray()
    for part in parts(path):
        content += part
        if len(content) > MOST_BYTES:
            raise OSError(errno.EFBIG, f"has more than {MOST_BYTES >> 20} MiB", str(path))
    return bytes(content)


def parts(path: Path) -> Iterator[bytes]:
    """Yield what is in a file, as far as its size says: some of the kernel's have none and never end."""
    with open_file(path) as file:
        left = os.fstat(file.fileno()).st_size
        while left > 0 and (part := file.read(min(left, _PART_BYTES))):
            left -= len(part)
            yield part


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, or a text that says why it has none: too large, or not readable."""
    try:
        facts = path.stat()
        if facts.st_size > _HASHED_BYTES:  # to be hashed would take minutes, or hours
            return f"not hashed: {facts.st_size} bytes, changed at {facts.st_mtime_ns} ns"
        return _sha256(path, facts.st_size, facts.st_mtime_ns)
    except OSError:
        return "cannot be read"


@functools.lru_cache(maxsize=1024)
def _sha256(path: Path, _size: int, _changed_ns: int) -> str:
    hashed = hashlib.sha256()
    for part in parts(path):
        hashed.update(part)
    return hashed.hexdigest()


def copy(path: Path, folder: Path) -> Path:
    """Copy a file with its permissions into a folder; return the copy. Raises OSError if it has no room."""
    size, disk = path.stat().st_size, os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if size > free:  # holes of the file would be filled
        raise OSError(errno.ENOSPC, f"{path} has {size:,} bytes, and {free:,} are free", str(folder))
    with (folder / path.name).open("wb") as file:
        file.writelines(parts(path))
        os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
    return folder / path.name


def open_file(path: Path | str, folder: int | None = None) -> BinaryIO:
    """Open a file for reading; raises OSError also for a pipe or a device, which may never end.

    Within an open `folder` a link is no file.
    """
    follow = folder is None
    facts = os.stat(path, dir_fd=folder, follow_symlinks=follow)
    _check_kind(facts, path)  # to open some devices is to use them
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    file = os.fdopen(os.open(path, flags, dir_fd=folder), "rb")
    try:
        _check_kind(os.fstat(file.fileno()), path)
    except OSError:
        file.close()
        raise
    return file


def _check_kind(facts: os.stat_result, path: Path | str) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "is no file", str(path))


def write_json(path: Path, document: Any) -> None:
    """Write a document for `read_json`, which knows numbers that JSON does not; a crash may lose it."""
    write(path, json.dumps(document, indent=1), synced=False)


def read_json(path: Path) -> Any:
    """Return what a JSON file says; raises OSError as `read` does, ValueError, or RecursionError."""
    return from_json(read(path).decode())


def from_json(text: str) -> Any:
    """Return what JSON says; halves of characters, which no file can hold, become question marks."""
    document = json.loads(text)
    if _HALF.search(text):
        return json.loads(json.dumps(document, ensure_ascii=False).encode(errors="replace"))
    return document


def to_json(document: Any, indent: int | None = 1) -> str:
    """Return a document as JSON for other programs, in ASCII: nothing in it is obeyed by a terminal."""
    return json.dumps(_finite(document), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    """Return nested data without numbers that JSON cannot hold: they become null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError) if path.is_dir() else contextlib.nullcontext():
            os.fsync(descriptor)  # some network file systems refuse it for folders
    finally:
        os.close(descriptor)


def user_folder(variable: str, name: str) -> Path:
    """Return the folder that a variable names, or `name` in the user's home; a user may have none."""
    try:
        return Path(os.environ.get(variable) or Path.home() / name)
    except RuntimeError:  # neither HOME nor an entry in passwd: containers run as any user
        return Path("/nonexistent", name)
