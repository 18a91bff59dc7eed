"""The text that is learned: files in a fixed order, seen as one sequence of bytes.

Finding a corpus looks at names and sizes only; bytes are read by range, so a rank reads what it needs.
"""

from __future__ import annotations

import difflib
import glob
import os
import sysconfig
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path

import numpy as np

from pscale.errors import UsageError
from pscale.mesh.axis import Array

PYTHON_STDLIB = "python-stdlib"
SEPARATOR = 0  # between two files; no text holds it
_BLOCK_BYTES = 1 << 18
_NOT_SOURCE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Files as one sequence of bytes, with one separator between two files."""

    files: tuple[Path, ...]
    sizes: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes in all, separators included."""
        return sum(self.sizes) + len(self.sizes) - 1

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((size + 1 for size in self.sizes[:-1]), initial=0))

    def read_into(self, start: int, out: Array) -> None:
        """Fill `out`, uint8 of shape (n,), with the bytes from `start` on.

        Raises UsageError where a file cannot be read or has become shorter.
        """
        stop = start + out.size
        assert start >= 0
        assert stop <= self.size
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
    root = Path(sysconfig.get_path("stdlib"))
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_SOURCE]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    # A distribution may link to configuration that is not installed.
    found = [path for path in files if path.is_file() and os.access(path, os.R_OK)]
    found.sort(key=lambda path: path.relative_to(root).parts)
    if not found:
        raise UsageError(f"data.source: no Python files under {str(root)!r}; name a file or a glob instead")
    return _measured(found, f"data.source: {str(root)!r}")


def _files(source: str) -> list[Path]:
    path = Path(source).expanduser()
    if path.is_dir():
        example = str(path / "**" / "*.txt")
        raise UsageError(f"data.source {source!r} is a folder; name files in it, for example {example!r}")
    if path.exists():
        return [path]
    if not glob.has_magic(source):
        raise UsageError(f"data.source: no file {source!r}{_suggestion(path)}")
    matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute patterns
    files = sorted(match for match in map(Path, matches) if not match.is_dir())
    if not files:
        raise UsageError(f"data.source: no file matches {source!r}")
    return files


def _suggestion(path: Path) -> str:
    names = {entry.name: str(entry) for entry in path.parent.iterdir()} if path.parent.is_dir() else {}
    names[PYTHON_STDLIB] = PYTHON_STDLIB
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {names[near[0]]!r}?" if near else ""


def _measured(files: Iterable[Path], what: str) -> Corpus:
    sizes = {}
    for path in files:
        if not path.is_file():
            raise UsageError(f"{what}: {str(path)!r} is not a regular file")
        if not os.access(path, os.R_OK):
            raise UsageError(f"{what}: no permission to read {str(path)!r}")
        if size := path.stat().st_size:
            sizes[path] = size
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
