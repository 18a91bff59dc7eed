"""One named axis of the process mesh, as the rest of the program sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Op = Literal["sum", "max", "min"]
T = TypeVar("T")
NO_HINTS: Mapping[str, Any] = {}


def lies_in(part: Array, whole: Array) -> bool:
    """Tell whether `part` is the first of `whole` in memory: an exchange is then in place."""
    if not np.may_share_memory(part, whole):
        return False
    address: int = part.__array_interface__["data"][0]
    start: int = whole.__array_interface__["data"][0]
    return address == start


class Tag(IntEnum):
    """What a message is for: a receive gets the messages of its own tag alone."""

    MESSAGE = 0  # of no other meaning
    ACTIVATIONS = 1  # of a micro-batch, or their gradients, between stages
    KEYS = 2  # and values, on their way round a ring
    KEY_GRADIENTS = 3
    BLOCK = 4  # of a matrix, on its way round a grid
    CLOCK = 5
    WAITS = 6
    TIED = 7  # gradients of weights that two stages have


class Pending(Protocol):
    """A collective that was started and is not yet known to be complete."""

    def poll(self) -> bool:
        """Give the library a chance to make progress; true once the result is there."""
        ...

    def wait(self) -> None:
        """Return when the result is there."""
        ...


class Axis(Protocol):
    """A group of ranks that exchange data. Arrays are C-contiguous; results are written in place.

    A verb that takes a `dim` packs and unpacks where the library cannot; that time is noted as copy.
    """

    name: str
    size: int
    rank: int

    def all_reduce(self, x: Array, op: Op = "sum") -> None:
        """Replace `x` on every rank by the reduction over all ranks."""
        ...

    def start_all_reduce(self, x: Array, op: Op = "sum") -> Pending:
        """Begin replacing `x` by the reduction over all ranks; leave `x` alone until complete."""
        ...

    def all_gather(self, x: Array, out: Array, dim: int = 0) -> None:
        """Put `x` of every rank side by side along `dim` of `out`."""
        ...

    def start_all_gather(self, x: Array, out: Array, dim: int = 0) -> Pending:
        """Begin putting `x` of every rank side by side along `dim` of `out`; it may lie there."""
        ...

    def reduce_scatter(self, x: Array, out: Array, dim: int = 0, op: Op = "sum") -> None:
        """Write this rank's part along `dim` of the reduction of `x` over all ranks to `out`."""
        ...

    def start_reduce_scatter(self, x: Array, out: Array, dim: int = 0, op: Op = "sum") -> Pending:
        """Begin writing this rank's part along `dim` of the reduction of `x` to `out`.

        Along the first, `out` may be the first part of `x`; the rest of `x` is then undefined.
        """
        ...

    def all_to_all(self, x: Array, out: Array) -> None:
        """Send `x[j]` to rank j and write what rank i sent to `out[i]`; both (size, ...)."""
        ...

    def start_send(self, x: Array, to: int, tag: Tag = Tag.MESSAGE) -> Pending:
        """Begin sending `x` to rank `to`; leave `x` alone until complete."""
        ...

    def start_receive(self, out: Array, source: int, tag: Tag = Tag.MESSAGE) -> Pending:
        """Begin receiving `out` from rank `source`; a pair of ranks posts its messages in one order."""
        ...

    def broadcast(self, x: Array, root: int = 0) -> None:
        """Replace `x` on every rank by that of `root`."""
        ...

    def reduce(self, x: Array, root: int = 0, op: Op = "sum") -> None:
        """Replace `x` on `root` by the reduction over all ranks; elsewhere it stays."""
        ...

    def gather(self, x: Array, out: Array | None, root: int = 0) -> None:
        """Collect `x` of every rank in `out`, shape (size, *x.shape), on `root`; others pass None."""
        ...

    def scatter(self, parts: Array | None, out: Array, root: int = 0) -> None:
        """Give rank i `parts[i]` of `root`; others pass None."""
        ...

    def copy(self, x: Array, out: Array) -> None:
        """Copy `x` to `out`, an arrangement that an exchange needs; noted as copy."""
        ...

    def barrier(self) -> None:
        """Return when every rank has arrived."""
        ...

    def open(self, path: Path, hints: Mapping[str, Any] = NO_HINTS) -> ParallelFile:
        """Open a file that every rank of the axis reads; `hints` are for MPI-IO."""
        ...

    def gather_objects(self, value: T) -> list[T]:
        """Collect any Python value of every rank on rank 0 (elsewhere: an empty list); never in a step."""
        ...


class ParallelFile(Protocol):
    """A file opened by all ranks of an axis for reading; `hints` are those that the library says it uses."""

    hints: Mapping[str, str]

    def read_at(self, offset: int, out: Array) -> None:
        """Fill `out` with the bytes from `offset` on."""
        ...

    def close(self) -> None:
        """Close the file on every rank."""
        ...


class Mesh(Protocol):
    """The ranks of a job as a grid with named axes."""

    sizes: Mapping[str, int]
    coordinates: Mapping[str, int]
    world: Axis  # untimed: for exchanges outside the steps
    nodes: Sequence[int]  # of every rank of the world: which node it is on, numbered as they first appear

    @property
    def scratch_bytes(self) -> int:
        """Memory in which this rank's calls have arranged data, kept from call to call."""
        ...

    def axis(self, *axes: str) -> Axis:
        """Return the axis that spans the named axes of the grid, rank 0 first in their order."""
        ...

    def progress(self) -> None:
        """Let exchanges that were started move on: many an MPI moves nothing unless it is called."""
        ...


class Recorder(Protocol):
    """Told of every communication call by the axes; times are what `now` said, in ns."""

    @property
    def now(self) -> Callable[[], int]:
        """The clock of this rank."""
        ...

    def call(
        self, axis: str, verb: str, sent_bytes: int, enter: int, leave: int, *, root: bool = False
    ) -> None:
        """Note a blocking call; `root` marks the rank that the others depend on."""
        ...

    def copied(self, axis: str, enter: int, leave: int) -> None:
        """Note that data were arranged for an exchange."""
        ...

    def posted(
        self, axis: str, verb: str, sent_bytes: int, enter: int, leave: int, *, partner: int = -1
    ) -> int:
        """Note that a call was started, to or from `partner` if with one rank; returns its number."""
        ...

    def polled(self, request: int, enter: int, leave: int) -> None:
        """Note time spent asking whether a started call is complete."""
        ...

    def polled_complete(self, request: int, enter: int, leave: int) -> None:
        """Note the question whose answer was that a started call is complete."""
        ...

    def completed(self, request: int, enter: int, leave: int) -> None:
        """Note the call from which on the rank relies on a started one."""
        ...
