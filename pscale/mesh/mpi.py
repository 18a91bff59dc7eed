"""The process mesh over MPI: the only module that touches mpi4py.

Every call is timed here and told to the recorder, so no layer or strategy contains timing code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from mpi4py import MPI

from pscale.mesh import grid
from pscale.mesh.axis import NO_HINTS, Array, Axis, Op, Pending, Recorder, Tag
from pscale.mesh.nonblocking import AsleepComm, NonblockingCall, Request, RequestQueue, progress
from pscale.mesh.self_axis import NullRecorder, SelfAxis
from pscale.mesh.sums import Sums, sendable
from pscale.nn.dtypes import HALF_BYTES

T = TypeVar("T")

Comm = MPI.Intracomm
_OPS = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
_IN_PLACE = MPI.IN_PLACE


class MpiMesh:
    """The ranks of `comm` as a grid, row-major over `sizes`: the last axis varies fastest.

    Creating a sub-communicator is collective, so every group that a plan can need is made here, in one
    order on every rank, never lazily. `nodes` says on which node each rank is. With `poll_s` a rank that
    waits sleeps and looks every so many seconds; 0: it waits as MPI does.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        sizes: Mapping[str, int],
        wanted: Sequence[Sequence[str]],
        recorder: Recorder,
        nodes: Sequence[int],
        *,
        poll_s: float = 0.0,
    ):
        def waiting(part: MPI.Intracomm) -> Any:
            return AsleepComm(part, self._outstanding) if poll_s else part

        self.sizes: Mapping[str, int] = dict(sizes)
        self.nodes: Sequence[int] = nodes
        self._outstanding = RequestQueue(poll_s)
        self.world: Axis = MpiAxis("world", waiting(comm.Dup()), NullRecorder(), self._outstanding)
        lattice = comm.Create_cart(list(sizes.values()), reorder=False)
        places = lattice.Get_coords(lattice.rank)
        self.coordinates: Mapping[str, int] = dict(zip(sizes, places, strict=True))
        self._axes: dict[tuple[str, ...], Axis] = {(): SelfAxis("")}
        for span in grid.groups(sizes, wanted):
            part = lattice.Sub([axis in span for axis in sizes])
            self._axes[span] = MpiAxis(grid.axis_name(span), waiting(part), recorder, self._outstanding)

    @property
    def scratch_bytes(self) -> int:
        """Memory in which this rank's calls have arranged data, kept from call to call."""
        return sum(axis.scratch_bytes for axis in self._axes.values() if isinstance(axis, MpiAxis))

    def axis(self, *axes: str) -> Axis:
        """Return the axis that spans the named axes of the grid, rank 0 first in their order."""
        return self._axes[grid.spanned(self.sizes, axes)]

    def progress(self) -> None:
        """Let exchanges that were started move on."""
        progress(self._outstanding)


class MpiAxis:
    """A communicator as an axis; `outstanding` knows what was started on any axis of the mesh.

    Before and after a call of MPI little is done, and by few functions: the data that it moves have taken the
    caches, and every line of code or memory that is touched comes from far away.
    """

    def __init__(self, name: str, comm: MPI.Intracomm, recorder: Recorder, outstanding: RequestQueue):
        self.name = name
        self.size, self.rank = comm.size, comm.rank
        self._comm, self._recorder, self._now = comm, recorder, recorder.now
        self._outstanding = outstanding
        self._scratches: dict[tuple[tuple[int, ...], np.dtype[Any]], Array] = {}
        self._sums = Sums(comm)

    @property
    def scratch_bytes(self) -> int:
        """Memory for arranging data."""
        return sum(scratch.nbytes for scratch in self._scratches.values()) + self._sums.scratch_bytes

    def all_reduce(self, x: Array, op: Op = "sum") -> None:
        """Replace `x` on every rank by the reduction over all ranks."""
        enter = self._now()
        if x.itemsize == HALF_BYTES:
            self._outstanding.wait(self._sums.reduce(x, op))
        else:
            self._comm.Allreduce(_IN_PLACE, x, _OPS[op])
        self._recorder.call(self.name, "all_reduce", x.nbytes, enter, self._now())

    def start_all_reduce(self, x: Array, op: Op = "sum") -> Pending:
        """Begin replacing `x` by the reduction over all ranks; leave `x` alone until complete."""
        enter = self._now()
        if x.itemsize == HALF_BYTES:
            request: Request = self._sums.reduce(x, op)
        else:
            request = self._comm.Iallreduce(_IN_PLACE, x, _OPS[op])
        number = self._recorder.posted(self.name, "all_reduce", x.nbytes, enter, self._now())
        return NonblockingCall(request, number, self._recorder, self._outstanding)

    def all_gather(self, x: Array, out: Array, dim: int = 0) -> None:
        """Put `x` of every rank side by side along `dim` of `out`."""
        whole = out if dim == 0 or _leads(out, dim) else self._scratch((self.size, *x.shape), x)
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
        mine = _IN_PLACE if x.base is not None and _lies_in(x, out, self.rank) else sendable(x)
        whole = out if dim == 0 or _leads(out, dim) else self._borrow((self.size, *x.shape), x)
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
        if dim and not _leads(x, dim):
            parts = self._scratch((self.size, *out.shape), x)
            self.copy(_parted(x, dim, self.size), np.moveaxis(parts, 0, dim))
        enter = self._now()
        if x.itemsize == HALF_BYTES:
            self._outstanding.wait(self._sums.scatter(parts, out, op))
        else:
            self._comm.Reduce_scatter_block(parts, out, _OPS[op])
        self._recorder.call(self.name, "reduce_scatter", x.nbytes, enter, self._now())

    def start_reduce_scatter(self, x: Array, out: Array, dim: int = 0, op: Op = "sum") -> Pending:
        """Begin writing this rank's part along `dim` of the reduction of `x` to `out`."""
        parts = x
        if dim and not _leads(x, dim):
            parts = self._borrow((self.size, *out.shape), x)
            self.copy(_parted(x, dim, self.size), np.moveaxis(parts, 0, dim))
        given, taken = (_IN_PLACE, x) if out.base is not None and _lies_in(out, x) else (parts, out)
        enter = self._now()
        if x.itemsize == HALF_BYTES:
            request: Request = self._sums.scatter(parts, out, op)
        else:
            request = self._comm.Ireduce_scatter_block(given, taken, _OPS[op])
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

    def start_send(self, x: Array, to: int, tag: Tag = Tag.MESSAGE) -> Pending:
        """Begin sending `x` to rank `to`; leave `x` alone until complete."""
        enter = self._now()
        request = self._comm.Isend(sendable(x), to, tag)
        number = self._recorder.posted(self.name, "send", x.nbytes, enter, self._now(), partner=to)
        return NonblockingCall(request, number, self._recorder, self._outstanding)

    def start_receive(self, out: Array, source: int, tag: Tag = Tag.MESSAGE) -> Pending:
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
            self._scratches[key] = np.empty(shape, like.dtype)
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
        if x.itemsize == HALF_BYTES:
            self._outstanding.wait(self._sums.reduce(x if is_root else x.copy(), op, root))
        else:
            self._comm.Reduce(_IN_PLACE if is_root else x, x if is_root else None, _OPS[op], root)
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

    def open(self, path: Path, hints: Mapping[str, Any] = NO_HINTS) -> MpiFile:
        """Open a file that every rank of the axis reads; `hints` are for MPI-IO."""
        info = MPI.Info.Create(hints)
        file = MpiFile(MPI.File.Open(self._comm, str(path), MPI.MODE_RDONLY, info))
        info.Free()
        return file

    def gather_objects(self, value: T) -> list[T]:
        """Collect any Python value of every rank on rank 0 (elsewhere: an empty list); never in a step."""
        return self._comm.gather(value) or []


def _lies_in(part: Array, whole: Array, index: int = 0) -> bool:
    """Tell whether `part`, a view of some array, is the memory of part `index` of `whole`."""
    at: int = MPI.Get_address(part)
    return at == MPI.Get_address(whole) + index * part.nbytes


def _leads(x: Array, dim: int) -> bool:
    """Tell whether parts along `dim` lie one after another in memory."""
    return all(size == 1 for size in x.shape[:dim])


def _parted(x: Array, dim: int, parts: int) -> Array:
    """View `x` with `dim` cut in two: which part, and where in it."""
    return x.reshape(*x.shape[:dim], parts, x.shape[dim] // parts, *x.shape[dim + 1 :])


class MpiFile:
    """A file read through MPI-IO; `hints` are those that the library says it uses."""

    def __init__(self, file: MPI.File):
        self._file, info = file, file.Get_info()
        self.hints = dict(info.items())
        info.Free()

    def read_at(self, offset: int, out: Array) -> None:
        """Fill `out` with the bytes from `offset` on."""
        status = MPI.Status()
        self._file.Read_at(offset, out, status)
        if status.Get_count(MPI.BYTE) != out.nbytes:
            raise EOFError(f"fewer than {out.nbytes} bytes at offset {offset}")

    def close(self) -> None:
        """Close the file on every rank."""
        self._file.Close()


def world() -> MPI.Intracomm:
    """Return the communicator of all processes of this job."""
    return MPI.COMM_WORLD


def world_axis() -> Axis:
    """Return all processes of this job as an axis whose calls are not timed."""
    return MpiAxis("world", MPI.COMM_WORLD, NullRecorder(), RequestQueue())


def takes_threads() -> bool:
    """Tell whether threads may call MPI at once."""
    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def nodes(comm: MPI.Intracomm) -> list[int]:
    """Return on which node each rank of `comm` is, numbered as they first appear; collective.

    Ranks of a node are those that can share memory; host names may be equal on different nodes.
    """
    here = comm.Split_type(MPI.COMM_TYPE_SHARED)
    firsts = comm.allgather(here.allreduce(comm.rank, MPI.MIN))
    here.Free()
    numbers = {first: number for number, first in enumerate(dict.fromkeys(firsts))}
    return [numbers[first] for first in firsts]


def abort() -> NoReturn:
    """End the whole job: the other ranks would wait forever for this one."""
    MPI.COMM_WORLD.Abort(1)
    raise AssertionError("Abort returned")


def library() -> dict[str, str]:
    """Return vendor and version of the MPI library that was loaded."""
    vendor, version = MPI.get_vendor()
    return {
        "vendor": vendor,
        "version": ".".join(str(part) for part in version),
        "library": MPI.Get_library_version().splitlines()[0].strip("\0 "),
    }
