"""One named axis of the process mesh, as the rest of the program sees it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from numpy.typing import NDArray

Array = NDArray[Any]
Op = Literal["sum", "max", "min"]
T = TypeVar("T")


class Pending(Protocol):
    """A collective that was started and is not yet known to be complete."""

    def poll(self) -> bool:
        """Give the library a chance to make progress; true once the result is there."""
        ...

    def wait(self) -> None:
        """Return when the result is there."""
        ...


class Axis(Protocol):
    """A group of ranks that exchange data. Arrays are C-contiguous; results are written in place."""

    name: str
    size: int
    rank: int

    def all_reduce(self, x: Array, op: Op = "sum") -> None:
        """Replace `x` on every rank by the reduction over all ranks."""
        ...

    def start_all_reduce(self, x: Array) -> Pending:
        """Begin replacing `x` by the sum over all ranks; leave `x` alone until complete."""
        ...

    def broadcast(self, x: Array, root: int = 0) -> None:
        """Replace `x` on every rank by that of `root`."""
        ...

    def gather(self, x: Array, out: Array | None, root: int = 0) -> None:
        """Collect `x` of every rank in `out`, shape (size, *x.shape), on `root`; others pass None."""
        ...

    def scatter(self, parts: Array | None, out: Array, root: int = 0) -> None:
        """Give rank i `parts[i]` of `root`; others pass None."""
        ...

    def barrier(self) -> None:
        """Return when every rank has come here."""
        ...

    def open(self, path: Path) -> ParallelFile:
        """Open a file that every rank of the axis reads."""
        ...

    def gather_objects(self, value: T) -> list[T]:
        """Collect any Python value of every rank on rank 0 (elsewhere: an empty list); never in a step."""
        ...


class ParallelFile(Protocol):
    """A file opened by all ranks of an axis for reading."""

    def read_at(self, offset: int, out: Array) -> None:
        """Fill `out` with the bytes from `offset` on."""
        ...

    def close(self) -> None:
        """Close the file on every rank."""
        ...


class Mesh(Protocol):
    """The ranks of a job as a grid with named axes."""

    sizes: Mapping[str, int]
    world: Axis

    def axis(self, *names: str) -> Axis:
        """Return the axis that spans the named dims of the grid."""
        ...


class Recorder(Protocol):
    """Told of every communication call by the axes; times are `perf_counter_ns`."""

    def call(
        self, axis: str, verb: str, sent_bytes: int, enter: int, leave: int, *, root: bool = False
    ) -> None:
        """Note a blocking call; `root` marks the rank that the others depend on."""
        ...

    def posted(self, axis: str, verb: str, sent_bytes: int, enter: int, leave: int) -> int:
        """Note that a non-blocking call was started; returns its number."""
        ...

    def polled(self, request: int, enter: int, leave: int) -> None:
        """Note time spent asking whether a started call is complete."""
        ...

    def completed(self, request: int, enter: int, leave: int) -> None:
        """Note the call in which a started one was found or made complete."""
        ...
