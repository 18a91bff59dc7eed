"""How the windows of a step reach a rank: from memory, through MPI-IO, from the root, from a file of its own.

Readers do in every step what their name says; what they need before is made when they are opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter_ns

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


class Reader:
    """Delivers the windows of this rank; `hints` are those of MPI-IO that the library says it uses."""

    hints: Mapping[str, str] = NO_HINTS

    def read(self, step: int, micro: int, windows: Array) -> None:
        """Fill `windows`, uint8 of shape (slots of the micro-batch, sequence + 1)."""
        raise NotImplementedError

    def close(self) -> None:
        """Release files; every rank calls it, after the last step."""


class MemoryReader(Reader):
    """Keeps the rank's part of the corpus and copies windows out of it."""

    def __init__(self, corpus: Corpus, placement: Placement, rank: int):
        self._placement, self._rank = placement, rank
        self._first, stop = placement.span(rank)
        self._held = _part(corpus, self._first, stop)

    def read(self, step: int, micro: int, windows: Array) -> None:
        """Copy the windows."""
        _copy(self._held, self._placement.offsets(step, micro, self._rank) - self._first, windows)


class ScatterReader(Reader):
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


class FileReader(Reader):
    """Reads every window by its offset from a file at `path`, a copy of a `span` of the corpus for this job.

    One of the ranks that read it `writes` it; all ranks of the `world` make theirs, and `opened`, at once.
    """

    def __init__(
        self,
        path: Path,
        corpus: Corpus,
        span: tuple[int, int],
        placement: Placement,
        rank: int,
        *,
        world: Axis,
        writes: bool,
        opened: Callable[[Path], ParallelFile],
    ):
        self._path, self._world, self._writes = path, world, writes
        self._first, self._placement, self._rank = span[0], placement, rank
        if writes:
            _write(path, corpus, *span)
        world.barrier()
        self._file = opened(path)
        self.hints = self._file.hints

    def read(self, step: int, micro: int, windows: Array) -> None:
        """Read the windows; raises PscaleError where the file has become unreadable or shorter."""
        offsets = self._placement.offsets(step, micro, self._rank) - self._first
        for window, offset in zip(windows, offsets.tolist(), strict=True):
            try:
                self._file.read_at(offset, window)
            except (OSError, EOFError, RuntimeError) as error:  # MPI's own are RuntimeErrors
                place = f"{window.nbytes} bytes at {offset} of {str(self._path)!r}"
                raise PscaleError(f"step {step}: cannot read {place}: {error}") from error

    def close(self) -> None:
        """Close the file and, when every rank has, remove it."""
        self._file.close()
        self._world.barrier()
        if self._writes:
            self._path.unlink(missing_ok=True)


class PrefetchReader(Reader):
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
    read = partial(FileReader, corpus=corpus, placement=placement, rank=axis.rank, world=mesh.world)
    if loading == "files":
        path, span = folder / f"corpus-{axis.rank}.bin", placement.span(axis.rank)
        return read(path, span=span, writes=first_of_same, opened=ParallelFile)
    path, opened = folder / "corpus.bin", partial(mesh.world.open, hints=data.hints)
    try:
        return read(path, span=(0, corpus.size), writes=mesh.world.rank == 0, opened=opened)
    except RuntimeError as error:  # MPI's own
        told = ", ".join(f"{name}: {value}" for name, value in data.hints.items()) or "none"
        raise PscaleError(f"MPI-IO cannot open {str(path)!r} with data.hints {told}: {error}") from error


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
