"""The text that is learned: files in a fixed order, seen as one sequence of bytes.

Finding a corpus looks at names and sizes only; bytes are read by range, so a rank reads what it needs.
"""

from __future__ import annotations

import difflib
import fnmatch
import glob
import itertools
import os
import stat
import sysconfig
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from pscale.errors import UsageError
from pscale.mesh.axis import Array

PYTHON_STDLIB = "python-stdlib"
SEPARATOR = 0  # between two files; no text holds it
MOST_ENTRIES = 50_000  # of folders that a glob looks into
_BLOCK_BYTES = 1 << 18
_NOT_SOURCE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Files as one sequence of bytes, with one separator between two files."""

    files: tuple[Path, ...]
    sizes: tuple[int, ...]
    first: int = 0  # of all bytes, that belongs to it
    after: int = 0  # how many bytes at the end do not

    @property
    def size(self) -> int:
        """Bytes in all, separators included."""
        return sum(self.sizes) + len(self.sizes) - 1 - self.first - self.after

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((size + 1 for size in self.sizes[:-1]), initial=0))

    def read_into(self, start: int, out: Array) -> None:
        """Fill `out`, uint8 of shape (n,), with the bytes from `start` on.

        Raises UsageError where a file cannot be read or has become shorter.
        """
        assert start >= 0
        assert start + out.size <= self.size
        start += self.first
        stop = start + out.size
        out[:] = SEPARATOR
        for index in range(bisect_right(self._starts, start) - 1, len(self.files)):
            first = self._starts[index]
            if first >= stop:
                break
            low, high = max(start, first), min(stop, first + self.sizes[index])
            if low < high:
                _read(self.files[index], low - first, out[low - start : high - start])

    def blocks(self, start: int, stop: int) -> Iterator[Array]:
        """Yield the bytes of [start, stop) in pieces; a piece is valid until the next."""
        buffer = np.empty(min(_BLOCK_BYTES, stop - start), np.uint8)
        for low in range(start, stop, _BLOCK_BYTES):
            block = buffer[: stop - low]
            self.read_into(low, block)
            yield block


def byte_counts(blocks: Iterable[Array]) -> Array:
    """Count how often each byte occurs; int64 of shape (256,)."""
    counts = np.zeros(256, np.int64)
    for block in blocks:
        counts += np.bincount(block, minlength=256)
    return counts


def unigram_nats(counts: Array) -> float:
    """Return the entropy of byte frequencies: the loss of guessing by frequency alone, in nats per byte."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


@lru_cache(maxsize=64)  # the cases of a suite share it
def find_corpus(source: str) -> Corpus:
    """Return the corpus that `source` names: `python-stdlib`, a file, or a glob of files.

    Reads nothing. Raises UsageError for what is missing, a folder, unreadable or empty.
    """
    if source == PYTHON_STDLIB:
        return _standard_library()
    try:
        return _measured(_files(source), f"data.source {source!r}")
    except OSError as error:
        raise UsageError(f"data.source {source!r}: {error.strerror}") from error


@cache
def _standard_library() -> Corpus:
    """Return the interpreter's own library: text that every machine has."""
    root = sysconfig.get_path("stdlib")
    files: list[str] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_SOURCE]
        files += [f"{folder}{os.sep}{name}" for name in names if name.endswith(".py")]
    sizes = {}
    for file in sorted(files, key=lambda file: file.split(os.sep)):  # noqa: PTH206 - faster
        with suppress(OSError):  # a distribution may link to configuration that is not installed
            found = os.stat(file)  # noqa: PTH116 - faster
            if found.st_size and stat.S_ISREG(found.st_mode) and os.access(file, os.R_OK):
                sizes[Path(file)] = found.st_size
    if not sizes:
        raise UsageError(f"data.source: no Python files under {root!r}; name a file or a glob instead")
    return Corpus(files=tuple(sizes), sizes=tuple(sizes.values()))


def _files(source: str) -> list[Path]:
    path = Path(os.path.expanduser(source))  # noqa: PTH111 - keeps ~nobody
    if path.is_dir():
        example = str(path / "**" / "*.txt")
        raise UsageError(f"data.source {source!r} is a folder; name files in it, for example {example!r}")
    if path.exists():
        return [path]
    if not glob.has_magic(source):
        raise UsageError(f"data.source: no file {source!r}{_suggestion(path)}")
    files = sorted(match for match in map(Path, _matches(path)) if not match.is_dir())
    if not files:
        raise UsageError(f"data.source: no file matches {source!r}")
    return files


def _matches(pattern: Path) -> set[str]:
    """Return what matches a glob; `**` is any folders in between, and hidden names have to be asked for.

    Raises UsageError where the folders on the way have too many entries.
    """
    found, seen = {pattern.anchor or os.curdir}, itertools.count()
    for part in pattern.relative_to(pattern.anchor).parts:
        if part == "**":
            found = set(_below(found, seen))
        elif glob.has_magic(part):
            listed = itertools.chain.from_iterable(_entries(folder, seen) for folder in found)
            named = (entry for entry in listed if part.startswith(".") or not entry.name.startswith("."))
            found = {entry.path for entry in named if fnmatch.fnmatchcase(entry.name, part)}
        else:
            paths = (os.path.join(folder, part) for folder in found)  # noqa: PTH118 - faster
            found = {path for path in paths if os.path.lexists(path)}
    return found


def _below(folders: Iterable[str], seen: Iterator[int]) -> Iterator[str]:
    """Yield folders and all that is in them, also through links, each folder once."""
    waiting, known = list(folders), set()
    while waiting:
        path = waiting.pop()
        yield path
        with suppress(OSError):
            place = os.stat(path)  # noqa: PTH116 - faster
            if stat.S_ISDIR(place.st_mode) and (key := (place.st_dev, place.st_ino)) not in known:
                known.add(key)
                waiting += [entry.path for entry in _entries(path, seen) if not entry.name.startswith(".")]


def _entries(folder: str, seen: Iterator[int]) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder, none of what cannot be listed; `seen` counts them."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if next(seen) >= MOST_ENTRIES:
                message = f"its folders have more than {MOST_ENTRIES:,} entries"
                raise UsageError(f"data.source: {message}; name one that is closer to the files")
            yield entry


def _suggestion(path: Path) -> str:
    names = {entry.name: str(entry) for entry in path.parent.iterdir()} if path.parent.is_dir() else {}
    names[PYTHON_STDLIB] = PYTHON_STDLIB
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def _measured(files: Iterable[Path], what: str) -> Corpus:
    sizes = {}
    for path in files:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{what}: {str(path)!r} is not a regular file")
        if not os.access(path, os.R_OK):
            raise UsageError(f"{what}: no permission to read {str(path)!r}")
        if found.st_size:
            sizes[path] = found.st_size
    if not sizes:
        raise UsageError(f"{what} is empty")
    return Corpus(files=tuple(sizes), sizes=tuple(sizes.values()))


def _read(path: Path, offset: int, out: Array) -> None:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            count = file.readinto(out.data)
    except OSError as error:
        raise UsageError(f"data.source: cannot read {str(path)!r}: {error.strerror}") from error
    if count != out.nbytes:
        raise UsageError(f"data.source: {str(path)!r} became shorter while it was read")
