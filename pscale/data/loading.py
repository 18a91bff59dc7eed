"""How the windows of a step reach a rank: from memory, through MPI-IO, from the root, from a file of its own.

Readers do in every step what their name says; what they need before is made when they are opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Protocol

import numpy as np

from pscale.config import Data
from pscale.config.axes import BATCH_AXES, HALVES
from pscale.data.corpus import Corpus
from pscale.data.placement import Placement
from pscale.errors import PscaleError
from pscale.mesh.axis import NO_HINTS, Array, Axis, Mesh, ParallelFile
from pscale.runs import atomic_files
from pscale.runs.schema import IoRecorder

FROM_FILES = ("mpi-io", "files")  # ways of loading that read in every step


class Reader(Protocol):
    """Delivers the windows of this rank; `hints` are those of MPI-IO that the library says it uses."""

    hints: Mapping[str, str]

    def read(self, step: int, micro: int, windows: Array) -> None:
        """Fill `windows`, uint8 of shape (slots of the micro-batch, sequence + 1)."""
        ...

    def close(self) -> None:
        """Release files; every rank calls it, after the last step."""
        ...


class _FromMemory:
    """A reader without files."""

    hints = NO_HINTS

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


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """A copy of a part of the corpus for this job, which one of the ranks that read it `writes`."""

    path: Path
    world: Axis
    writes: bool

    def write(self, corpus: Corpus, start: int, stop: int) -> None:
        """Return when the file of every rank is there; all ranks call it."""
        if self.writes:
            _write(self.path, corpus, start, stop)
        self.world.barrier()

    def remove(self) -> None:
        """Remove the file when every rank has come: all ranks call it."""
        self.world.barrier()
        if self.writes:
            self.path.unlink(missing_ok=True)


class FileReader:
    """Reads every window by its offset from a file that holds the corpus from byte `first` on."""

    def __init__(self, file: ParallelFile, job_file: JobFile, first: int, placement: Placement, rank: int):
        self._file, self._job_file, self._first = file, job_file, first
        self._placement, self._rank, self.hints = placement, rank, file.hints

    def read(self, step: int, micro: int, windows: Array) -> None:
        """Read the windows; raises PscaleError where the file has become unreadable or shorter."""
        offsets = self._placement.offsets(step, micro, self._rank) - self._first
        for window, offset in zip(windows, offsets.tolist(), strict=True):
            try:
                self._file.read_at(offset, window)
            except (OSError, EOFError, RuntimeError) as error:  # MPI's own are RuntimeErrors
                place = f"{window.nbytes} bytes at {offset} of {str(self._job_file.path)!r}"
                raise PscaleError(f"step {step}: cannot read {place}: {error}") from error

    def close(self) -> None:
        """Close the file and, when every rank has, remove it."""
        self._file.close()
        self._job_file.remove()


class PrefetchReader:
    """Reads the windows of the next micro-batch on a thread, while a rank computes with the last ones.

    `recorder` is told when the thread has read, and how long the step waited for it.
    """

    def __init__(self, reader: Reader, micro_batches: int, shape: tuple[int, int], recorder: IoRecorder):
        self._reader, self._micro_batches, self._recorder = reader, micro_batches, recorder
        self.hints, self._windows = reader.hints, np.empty(shape, np.uint8)
        self._thread = ThreadPoolExecutor(1, "prefetch")
        self._place = (0, 0)  # step and micro-batch of what is read
        self._begin()

    def read(self, step: int, micro: int, windows: Array) -> None:
        """Take the windows, and begin to read those that follow; what nobody expected is read at once."""
        enter, is_over = perf_counter_ns(), self._reading.done()
        span_ns = self._reading.result()
        if not is_over:
            self._recorder.io_waited("read", enter, perf_counter_ns())
        self._recorder.io_done("read", windows.nbytes, *span_ns)
        if (step, micro) == self._place:
            np.copyto(windows, self._windows)
        else:
            self._reader.read(step, micro, windows)
        last = micro == self._micro_batches - 1
        self._place = (step + 1, 0) if last else (step, micro + 1)
        self._begin()

    def close(self) -> None:
        """Wait for what is read in vain, and close; every rank calls it."""
        self._thread.shutdown()
        self._reader.close()

    def _begin(self) -> None:
        self._recorder.io_submitted("read", self._windows.nbytes)
        self._reading = self._thread.submit(self._read, *self._place)

    def _read(self, step: int, micro: int) -> tuple[int, int]:
        enter = perf_counter_ns()
        self._reader.read(step, micro, self._windows)
        return enter, perf_counter_ns()


def open_reader(
    data: Data,
    corpus: Corpus,
    placement: Placement,
    mesh: Mesh,
    *,
    shape: tuple[int, int],
    folder: Path,
) -> Reader:
    """Return the reader of this rank, with the files it needs written to `folder`; all ranks call it.

    `shape` is that of the windows of a micro-batch. Raises PscaleError where `folder` cannot be written.
    """
    loading, axis, batch = data.loading, mesh.axis(*BATCH_AXES), {*BATCH_AXES, *HALVES["dp"]}
    first_of_same = not any(place for name, place in mesh.coordinates.items() if name not in batch)
    if loading == "memory":
        return MemoryReader(corpus, placement, axis.rank)
    if loading == "scatter":
        return ScatterReader(corpus, placement, axis, shape)
    if loading == "mpi-io":
        whole = JobFile(path=folder / "corpus.bin", world=mesh.world, writes=mesh.world.rank == 0)
        whole.write(corpus, 0, corpus.size)
        try:
            file = mesh.world.open(whole.path, data.hints)
        except RuntimeError as error:  # MPI's own
            told = ", ".join(f"{name}: {value}" for name, value in data.hints.items()) or "none"
            message = f"MPI-IO cannot open {str(whole.path)!r} with data.hints {told}: {error}"
            raise PscaleError(message) from error
        return FileReader(file, whole, 0, placement, axis.rank)
    path = folder / f"corpus-{axis.rank}.bin"
    part = JobFile(path=path, world=mesh.world, writes=first_of_same)
    first, last = placement.span(axis.rank)
    part.write(corpus, first, last)
    return FileReader(ParallelFile(path), part, first, placement, axis.rank)


def _part(corpus: Corpus, start: int, stop: int) -> Array:
    part = np.empty(stop - start, np.uint8)
    corpus.read_into(start, part)
    return part


def _copy(held: Array, offsets: Array, windows: Array) -> None:
    length = windows.shape[1]
    for window, offset in zip(windows, offsets.tolist(), strict=True):
        window[:] = held[offset : offset + length]


def _write(path: Path, corpus: Corpus, start: int, stop: int) -> None:
    """Write a part of the corpus: all of it, or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_files.replacing(path, synced=False) as file:
            file.writelines(block.data for block in corpus.blocks(start, stop))
    except OSError as error:
        raise PscaleError(f"cannot write the data to {str(path)!r}: {error.strerror}") from error
