"""How the windows of a step reach a rank: from memory, through MPI-IO, from the root, from a file of its own.

Readers do in every step what their name says; what they need before is made when they are opened.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Protocol

import numpy as np

from pscale.config.choices import Loading
from pscale.data.corpus import Corpus
from pscale.data.placement import Placement
from pscale.errors import PscaleError
from pscale.mesh.axis import Array, Axis, ParallelFile


class Reader(Protocol):
    """Delivers the windows of this rank."""

    def read(self, step: int, micro: int, windows: Array) -> None:
        """Fill `windows`, uint8 of shape (slots of the micro-batch, sequence + 1)."""
        ...

    def close(self) -> None:
        """Release files; every rank calls it, after the last step."""
        ...


class _FromMemory:
    """A reader without files."""

    def close(self) -> None:
        """Leave all to the garbage collector."""


class MemoryReader(_FromMemory):
    """Keeps the rank's part of the corpus and copies windows out of it."""

    def __init__(self, corpus: Corpus, placement: Placement, rank: int):
        self._placement, self._rank = placement, rank
        self._first, stop = placement.span(rank)
        self._held = _part(corpus, self._first, stop)

    def read(self, step: int, micro: int, windows: Array) -> None:
        """Copy the windows."""
        _copy(self._held, self._placement.offsets(step, micro, self._rank) - self._first, windows)


class ScatterReader(_FromMemory):
    """The root copies the windows of all ranks from memory and scatters them, in every call."""

    def __init__(self, corpus: Corpus, placement: Placement, axis: Axis, shape: tuple[int, int]):
        self._placement, self._axis = placement, axis
        self._held = self._parts = None
        if axis.rank == 0:
            self._held = _part(corpus, 0, corpus.size)
            self._parts = np.empty((axis.size, *shape), np.uint8)

    def read(self, step: int, micro: int, windows: Array) -> None:
        """Receive the windows; on the root, copy and send those of every rank first."""
        if self._held is not None and self._parts is not None:
            for rank, part in enumerate(self._parts):
                _copy(self._held, self._placement.offsets(step, micro, rank), part)
        self._axis.scatter(self._parts, windows)


class FileReader:
    """Reads every window by its offset from a file that holds the corpus from byte `first` on."""

    def __init__(self, file: ParallelFile, path: Path, first: int, placement: Placement, axis: Axis):
        self._file, self._path, self._first = file, path, first
        self._placement, self._axis = placement, axis

    def read(self, step: int, micro: int, windows: Array) -> None:
        """Read the windows; raises PscaleError where the file has become unreadable or shorter."""
        offsets = self._placement.offsets(step, micro, self._axis.rank) - self._first
        for window, offset in zip(windows, offsets.tolist(), strict=True):
            try:
                self._file.read_at(offset, window)
            except (OSError, EOFError, RuntimeError) as error:  # MPI's own are RuntimeErrors
                place = f"{window.nbytes} bytes at {offset} of {str(self._path)!r}"
                raise PscaleError(f"step {step}: cannot read {place}: {error}") from error

    def close(self) -> None:
        """Close the file and, when every rank has, remove it: it is a copy made for this job."""
        self._file.close()
        self._axis.barrier()
        self._path.unlink(missing_ok=True)


class PartFile:
    """A file of this rank alone, read without a buffer."""

    def __init__(self, path: Path):
        self._file = path.open("rb", buffering=0)

    def read_at(self, offset: int, out: Array) -> None:
        """Fill `out` with the bytes from `offset` on."""
        self._file.seek(offset)
        count = self._file.readinto(out.data)
        if count != out.nbytes:
            raise EOFError(f"the file ends after {count} of them")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_reader(
    loading: Loading,
    corpus: Corpus,
    placement: Placement,
    axis: Axis,
    *,
    shape: tuple[int, int],
    folder: Path,
) -> Reader:
    """Return the reader of this rank, with the files it needs written to `folder`; all ranks call it.

    `shape` is that of the windows of a micro-batch. Raises PscaleError where `folder` cannot be written.
    """
    if loading == "memory":
        return MemoryReader(corpus, placement, axis.rank)
    if loading == "scatter":
        return ScatterReader(corpus, placement, axis, shape)
    if loading == "mpi-io":
        path = folder / "corpus.bin"
        if axis.rank == 0:
            _write(path, corpus, 0, corpus.size)
        axis.barrier()
        return FileReader(axis.open(path), path, 0, placement, axis)
    path = folder / f"corpus-{axis.rank}.bin"
    first, last = placement.span(axis.rank)
    _write(path, corpus, first, last)
    axis.barrier()
    return FileReader(PartFile(path), path, first, placement, axis)


def _part(corpus: Corpus, start: int, stop: int) -> Array:
    part = np.empty(stop - start, np.uint8)
    corpus.read_into(start, part)
    return part


def _copy(held: Array, offsets: Array, windows: Array) -> None:
    length = windows.shape[1]
    for window, offset in zip(windows, offsets.tolist(), strict=True):
        window[:] = held[offset : offset + length]


def _write(path: Path, corpus: Corpus, start: int, stop: int) -> None:
    """Write a part of the corpus under a temporary name, then rename it."""
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            for block in corpus.blocks(start, stop):
                file.write(block.data)
        os.replace(temporary, path)  # noqa: PTH105 - atomic, also over an older file
    except OSError as error:
        raise PscaleError(f"cannot write the data to {str(path)!r}: {error.strerror}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)  # still there only where writing failed
