"""The process mesh over MPI: the only module that touches mpi4py.

Every call is timed by its axis and told to the recorder, so no layer or strategy contains timing code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from mpi4py import MPI

from pscale.mesh import grid
from pscale.mesh.alone import alone
from pscale.mesh.axis import NO_HINTS, Array, Axis, Mesh, Op, ParallelFile
from pscale.mesh.nonblocking import AsleepComm, Recorder, RequestQueue

Comm = MPI.Intracomm


class MpiMesh(Mesh):
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
            return AsleepComm(part, outstanding) if poll_s else part

        outstanding = RequestQueue(poll_s)
        lattice = comm.Create_cart(list(sizes.values()), reorder=False)
        axes: dict[tuple[str, ...], Axis] = {(): alone("")}
        for span in grid.groups(sizes, wanted):
            part = lattice.Sub([axis in span for axis in sizes])
            axes[span] = MpiAxis(grid.axis_name(span), waiting(part), recorder, outstanding)
        world = MpiAxis("world", waiting(comm.Dup()), Recorder(), outstanding)
        super().__init__(sizes, lattice.rank, world=world, axes=axes, nodes=nodes, outstanding=outstanding)


class MpiAxis(Axis):
    """A communicator of MPI as an axis."""

    ops: ClassVar[Mapping[Op, Any]] = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
    address = staticmethod(MPI.Get_address)

    def open(self, path: Path, hints: Mapping[str, Any] = NO_HINTS) -> MpiFile:
        """Open a file that every rank of the axis reads; `hints` are for MPI-IO."""
        return MpiFile(self._comm, path, hints)


class MpiFile(ParallelFile):
    """A file read through MPI-IO; `hints` are those that the library says it uses."""

    def __init__(self, comm: MPI.Intracomm, path: Path, hints: Mapping[str, Any]):
        info = MPI.Info.Create(hints)
        self._opened = MPI.File.Open(comm, str(path), MPI.MODE_RDONLY, info)
        info.Free()
        info = self._opened.Get_info()
        self.hints = dict(info.items())
        info.Free()

    def read_at(self, offset: int, out: Array) -> None:
        """Fill `out` with the bytes from `offset` on."""
        status = MPI.Status()
        self._opened.Read_at(offset, out, status)
        if status.Get_count(MPI.BYTE) != out.nbytes:
            raise EOFError(f"fewer than {out.nbytes} bytes at offset {offset}")

    def close(self) -> None:
        """Close the file on every rank."""
        self._opened.Close()


def world() -> MPI.Intracomm:
    """Return the communicator of all processes of this job."""
    return MPI.COMM_WORLD


def world_axis() -> Axis:
    """Return all processes of this job as an axis whose calls are not timed."""
    return MpiAxis("world", MPI.COMM_WORLD, Recorder(), RequestQueue())


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
