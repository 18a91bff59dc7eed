"""One named axis of the process mesh: what every layer and strategy knows of other ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from pscale.mesh import grid
from pscale.mesh.nonblocking import NonblockingCall, Recorder, Request, RequestQueue, progress
from pscale.mesh.sums import Sums, sendable
from pscale.nn.dtypes import HALF_BYTES

Array = NDArray[Any]
Op = Literal["sum", "max", "min"]
T = TypeVar("T")
NO_HINTS: Mapping[str, Any] = {}
Pending = NonblockingCall  # a call that was started: to be polled, and waited for
_IN_PLACE = None  # as mpi4py takes it


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


class Axis:
    """A group of ranks that exchange data over a communicator, which has the verbs of mpi4py.

    Arrays are C-contiguous; results are written in place. A verb that takes a `dim` packs and unpacks where
    the library cannot; that time is noted as copy. `outstanding` knows what was started on any axis.

    Before and after a call of MPI little is done, and by few functions: the data that it moves have taken the
    caches, and every line of code or memory that is touched comes from far away.
    """

    # Reductions as the communicator knows them, and where an array begins.
    ops: ClassVar[Mapping[Op, Any]] = {"sum": "sum", "max": "max", "min": "min"}
    address: Callable[[Array], int] = staticmethod(lambda x: x.__array_interface__["data"][0])

    def __init__(self, name: str, comm: Any, recorder: Recorder, outstanding: RequestQueue):
        self.name = name
        self.size: int = comm.size
        self.rank: int = comm.rank
        self._comm, self._recorder, self._now = comm, recorder, recorder.now
        self._outstanding = outstanding
        self._scratches: dict[tuple[tuple[int, ...], np.dtype[Any]], Array] = {}
        self._sums = Sums(comm)
        self._summed = HALF_BYTES if self.size > 1 else 0  # bytes of what MPI cannot add up

    @property
    def scratch_bytes(self) -> int:
        """Memory for arranging data, and for adding up."""
        return self.arranged_bytes + self._sums.scratch_bytes

    @property
    def arranged_bytes(self) -> int:
        """Memory for arranging data alone."""
        return sum(scratch.nbytes for scratch in self._scratches.values())

    def all_reduce(self, x: Array, op: Op = "sum") -> None:
        """Replace `x` on every rank by the reduction over all ranks."""
        enter = self._now()
        if x.itemsize == self._summed:
            self._outstanding.wait(self._sums.reduce(x, op))
        else:
            self._comm.Allreduce(_IN_PLACE, x, self.ops[op])
        self._recorder.call(self.name, "all_reduce", x.nbytes, enter, self._now())

    def start_all_reduce(self, x: Array, op: Op = "sum") -> Pending:
        """Begin replacing `x` by the reduction over all ranks; leave `x` alone until complete."""
        enter = self._now()
        if x.itemsize == self._summed:
            request: Request = self._sums.reduce(x, op)
        else:
            request = self._comm.Iallreduce(_IN_PLACE, x, self.ops[op])
        number = self._recorder.posted(self.name, "all_reduce", x.nbytes, enter, self._now())
        return NonblockingCall(request, number, self._recorder, self._outstanding)

    def all_gather(self, x: Array, out: Array, dim: int = 0) -> None:
        """Put `x` of every rank side by side along `dim` of `out`."""
        whole = out if self._is_in_parts(out, dim) else self._scratch((self.size, *x.shape), x)
        enter = self._now()
        if x.itemsize == HALF_BYTES:
            self._comm.Allgather(sendable(x), sendable(whole))
        else:
            self._comm.Allgather(x, whole)
        self._recorder.call(self.name, "all_gather", x.nbytes, enter, self._now())
        if whole is not out:
            self.copy(np.moveaxis(whole, 0, dim), _parted(out, dim, self.size))

    def start_all_gather(self, x: Array, out: Array, dim: int = 0) -> Pending:
        """Begin putting `x` of every rank side by side along `dim` of `out`."""
        mine = _IN_PLACE if x.base is not None and self._lies_in(x, out, self.rank) else sendable(x)
        whole = out if self._is_in_parts(out, dim) else self._borrow((self.size, *x.shape), x)
        enter = self._now()
        request = self._comm.Iallgather(mine, sendable(whole))
        number = self._recorder.posted(self.name, "all_gather", x.nbytes, enter, self._now())

        def arrange() -> None:
            self.copy(np.moveaxis(whole, 0, dim), _parted(out, dim, self.size))
            self._give_back(whole)

        then = None if whole is out else arrange
        return NonblockingCall(request, number, self._recorder, self._outstanding, then)

    def reduce_scatter(self, x: Array, out: Array, dim: int = 0, op: Op = "sum") -> None:
        """Write this rank's part along `dim` of the reduction of `x` over all ranks to `out`."""
        parts = x
        if not self._is_in_parts(x, dim):
            parts = self._scratch((self.size, *out.shape), x)
            self.copy(_parted(x, dim, self.size), np.moveaxis(parts, 0, dim))
        enter = self._now()
        if x.itemsize == self._summed:
            self._outstanding.wait(self._sums.scatter(parts, out, op))
        else:
            self._comm.Reduce_scatter_block(parts, out, self.ops[op])
        self._recorder.call(self.name, "reduce_scatter", x.nbytes, enter, self._now())

    def start_reduce_scatter(self, x: Array, out: Array, dim: int = 0, op: Op = "sum") -> Pending:
        """Begin writing this rank's part along `dim` of the reduction of `x` to `out`.

        Along the first, `out` may be the first part of `x`; the rest of `x` is then undefined.
        """
        parts = x
        if not self._is_in_parts(x, dim):
            parts = self._borrow((self.size, *out.shape), x)
            self.copy(_parted(x, dim, self.size), np.moveaxis(parts, 0, dim))
        given, taken = (_IN_PLACE, x) if out.base is not None and self._lies_in(out, x) else (parts, out)
        enter = self._now()
        if x.itemsize == self._summed:
            request: Request = self._sums.scatter(parts, out, op)
        else:
            request = self._comm.Ireduce_scatter_block(given, taken, self.ops[op])
        number = self._recorder.posted(self.name, "reduce_scatter", x.nbytes, enter, self._now())
        then = None if parts is x else partial(self._give_back, parts)
        return NonblockingCall(request, number, self._recorder, self._outstanding, then)

    def all_to_all(self, x: Array, out: Array) -> None:
        """Send `x[j]` to rank j and write what rank i sent to `out[i]`; both (size, ...)."""
        enter = self._now()
        if x.itemsize == HALF_BYTES:
            self._comm.Alltoall(sendable(x), sendable(out))
        else:
            self._comm.Alltoall(x, out)
        self._recorder.call(self.name, "all_to_all", x.nbytes, enter, self._now())

    def start_send(self, x: Array, to: int, tag: Tag) -> Pending:
        """Begin sending `x` to rank `to`; leave `x` alone until complete."""
        enter = self._now()
        request = self._comm.Isend(sendable(x), to, tag)
        number = self._recorder.posted(self.name, "send", x.nbytes, enter, self._now(), partner=to)
        return NonblockingCall(request, number, self._recorder, self._outstanding)

    def start_receive(self, out: Array, source: int, tag: Tag) -> Pending:
        """Begin receiving `out` from rank `source`; a pair of ranks posts its messages in one order."""
        enter = self._now()
        request = self._comm.Irecv(sendable(out), source, tag)
        number = self._recorder.posted(self.name, "receive", 0, enter, self._now(), partner=source)
        return NonblockingCall(request, number, self._recorder, self._outstanding)

    def copy(self, x: Array, out: Array) -> None:
        """Copy `x` to `out`, an arrangement that an exchange needs; noted as copy."""
        enter = self._now()
        np.copyto(out, x)
        self._recorder.copied(self.name, enter, self._now())

    def _is_in_parts(self, x: Array, dim: int) -> bool:
        """Tell whether the ranks' parts along `dim` lie one after another in memory."""
        return self.size == 1 or all(size == 1 for size in x.shape[:dim])

    def _lies_in(self, part: Array, whole: Array, index: int = 0) -> bool:
        """Tell whether `part` is the memory of part `index` of `whole`: an exchange is then in place."""
        return self.address(part) == self.address(whole) + index * part.nbytes

    def _borrow(self, shape: tuple[int, ...], like: Array) -> Array:
        """Return memory for arranging data that no other call has until it is given back."""
        scratch = self._scratch(shape, like)
        del self._scratches[shape, like.dtype]
        return scratch

    def _give_back(self, scratch: Array) -> None:
        self._scratches[scratch.shape, scratch.dtype] = scratch

    def _scratch(self, shape: tuple[int, ...], like: Array) -> Array:
        """Return memory for arranging data, kept from call to call."""
        key = (shape, like.dtype)
        if key not in self._scratches:
            self._scratches[key] = np.empty_like(like, shape=shape, order="C")
        return self._scratches[key]

    def broadcast(self, x: Array, root: int = 0) -> None:
        """Replace `x` on every rank by that of `root`."""
        enter = self._now()
        self._comm.Bcast(sendable(x), root)
        is_root = self.rank == root
        self._recorder.call(
            self.name, "broadcast", x.nbytes if is_root else 0, enter, self._now(), root=is_root
        )

    def reduce(self, x: Array, root: int = 0, op: Op = "sum") -> None:
        """Replace `x` on `root` by the reduction over all ranks; elsewhere it stays."""
        is_root = self.rank == root
        enter = self._now()
        if x.itemsize == self._summed:
            self._outstanding.wait(self._sums.reduce(x if is_root else x.copy(), op, root))
        else:
            self._comm.Reduce(_IN_PLACE if is_root else x, x if is_root else None, self.ops[op], root)
        self._recorder.call(self.name, "reduce", x.nbytes, enter, self._now(), root=is_root)

    def gather(self, x: Array, out: Array | None, root: int = 0) -> None:
        """Collect `x` of every rank in `out`, shape (size, *x.shape), on `root`; others pass None."""
        enter = self._now()
        self._comm.Gather(sendable(x), None if out is None else sendable(out), root)
        self._recorder.call(self.name, "gather", x.nbytes, enter, self._now(), root=self.rank == root)

    def scatter(self, parts: Array | None, out: Array, root: int = 0) -> None:
        """Give rank i `parts[i]` of `root`; others pass None."""
        enter = self._now()
        self._comm.Scatter(None if parts is None else sendable(parts), sendable(out), root)
        sent = 0 if parts is None else parts.nbytes
        self._recorder.call(self.name, "scatter", sent, enter, self._now(), root=self.rank == root)

    def barrier(self) -> None:
        """Return when every rank has arrived."""
        enter = self._now()
        self._comm.Barrier()
        self._recorder.call(self.name, "barrier", 0, enter, self._now())

    def open(self, path: Path, hints: Mapping[str, Any] = NO_HINTS) -> ParallelFile:  # noqa: ARG002
        """Open a file that every rank of the axis reads; `hints` are for MPI-IO."""
        return ParallelFile(path)

    def gather_objects(self, value: T) -> list[T]:
        """Collect any Python value of every rank on rank 0 (elsewhere: an empty list); never in a step."""
        return self._comm.gather(value) or []


class ParallelFile:
    """A file that ranks read by offset, each with no more than the operating system's help.

    `hints` are those that a library says it uses.
    """

    def __init__(self, path: Path):
        self.hints: Mapping[str, str] = NO_HINTS
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


class Mesh:
    """The ranks of a job as a grid with named axes, of which `axes` has those of several ranks by their span.

    Of `nodes` it has which node every rank of the world is on, numbered as they first appear. The `world` is
    untimed: for exchanges outside the steps.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        rank: int,
        *,
        world: Axis,
        axes: dict[tuple[str, ...], Axis],
        nodes: Sequence[int],
        outstanding: RequestQueue,
    ):
        self.sizes: Mapping[str, int] = dict(sizes)
        self.coordinates: Mapping[str, int] = grid.coordinates(sizes, rank)
        self.world, self.nodes, self._axes, self._outstanding = world, nodes, axes, outstanding

    @property
    def scratch_bytes(self) -> int:
        """Memory in which this rank's calls have arranged data, kept from call to call."""
        return sum(axis.scratch_bytes for axis in self._axes.values())

    def axis(self, *axes: str) -> Axis:
        """Return the axis that spans the named axes of the grid, rank 0 first in their order."""
        return self._axes[grid.spanned(self.sizes, axes)]

    def progress(self) -> None:
        """Let exchanges that were started move on: many an MPI moves nothing unless it is called."""
        progress(self._outstanding)


def _parted(x: Array, dim: int, parts: int) -> Array:
    """View `x` with `dim` cut in two: which part, and where in it."""
    return x.reshape(*x.shape[:dim], parts, x.shape[dim] // parts, *x.shape[dim + 1 :])
