"""OTF2 archives, which Vampir, Score-P's tools, Scalasca and otf2-print read.

Written by the package `otf2` (https://pypi.org/project/otf2). A rank is a process with one thread; its
regions are steps, in them phases, in them calls, with MPI's events. Times are in ns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import groupby
from pathlib import Path
from shutil import rmtree
from typing import Any

from pscale.errors import UsageError
from pscale.export.activities import Activity, Launch
from pscale.runs.schema import BETWEEN_TWO

_OPERATIONS = {
    "all_reduce": "ALLREDUCE",
    "all_gather": "ALLGATHERV",
    "reduce_scatter": "REDUCE_SCATTER",
    "all_to_all": "ALLTOALLV",
    "barrier": "BARRIER",
    "broadcast": "BCAST",
    "scatter": "SCATTERV",
    "gather": "GATHERV",
    "reduce": "REDUCE",
}
_NANOSECONDS = 1_000_000_000  # ticks of the clock in a second


def write_otf2(launch: Launch, folder: Path, name: str) -> list[Path]:
    """Write the archive of a launch into a folder of its own; return its anchor file.

    An archive of an earlier call is replaced; raises UsageError where the package is not installed, OSError
    where the archive cannot be written.
    """
    try:
        otf2, refused = import_module("otf2"), import_module("_otf2.ErrorCodes").Error
    except ImportError as error:
        raise UsageError(f"--format otf2 needs the package otf2 ({error}): pip install otf2") from None
    anchor = folder / name / f"{name}.otf2"
    if anchor.exists():
        rmtree(anchor.parent)
    trace = None
    try:
        with otf2.writer.open(str(anchor.parent), archive_name=name, timer_resolution=_NANOSECONDS) as trace:
            _Archive(otf2, trace, launch).write()
    except refused as error:
        if trace is not None:
            trace._handle = None  # else it would try again when it is freed
        raise OSError(str(error)) from error
    return [anchor]


class _Archive:
    """An archive that is being written."""

    def __init__(self, otf2: Any, trace: Any, launch: Launch):
        self._enums, self._trace, self._launch = otf2.enums, trace, launch
        self._regions: dict[str, Any] = {}
        definitions, mpi = trace.definitions, otf2.enums.Paradigm.MPI
        machine = definitions.system_tree_node("machine", "machine")
        self._locations = {
            rank: definitions.location(
                f"rank {rank}", group=definitions.location_group(f"rank {rank}", system_tree_parent=machine)
            )
            for rank in launch.ranks
        }
        everyone = tuple(self._locations)
        members = tuple(self._locations.values())
        definitions.group("ranks", otf2.enums.GroupType.COMM_LOCATIONS, mpi, members=members)
        self._world = self._communicator("world", everyone)
        self._comms = {
            (axis, first): self._communicator(f"{axis} of {first}", members)
            for (axis, first), members in launch.groups.items()
        }

    def _communicator(self, name: str, ranks: Sequence[int]) -> Any:
        definitions, enums = self._trace.definitions, self._enums
        members = tuple(self._locations[rank] for rank in ranks)
        group = definitions.group(name, enums.GroupType.COMM_GROUP, enums.Paradigm.MPI, members=members)
        return definitions.comm(name, group=group)

    def write(self) -> None:
        """Write the events of all ranks."""
        for rank, own in self._launch.ranks.items():
            writer = self._trace.event_writer_from_location(self._locations[rank])
            for step, in_step in groupby(own, key=lambda each: each.step):
                of_step = list(in_step)
                with self._region(writer, f"step {step}", of_step):
                    for phase, in_phase in groupby(of_step, key=lambda each: each.phase):
                        of_phase = list(in_phase)
                        with self._region(writer, phase.partition(" ")[0], of_phase):
                            for each in of_phase:
                                self._activity(writer, each)

    @contextmanager
    def _region(
        self, writer: Any, name: str, inside: Sequence[Activity], *, mpi: bool = False
    ) -> Iterator[None]:
        if name not in self._regions:
            paradigm = self._enums.Paradigm.MPI if mpi else self._enums.Paradigm.USER
            self._regions[name] = self._trace.definitions.region(name, paradigm=paradigm)
        writer.enter(inside[0].enter, self._regions[name])
        yield
        writer.leave(inside[-1].leave, self._regions[name])

    def _activity(self, writer: Any, each: Activity) -> None:
        if each.kind == "compute":
            return
        kinds = {"start": "start ", "test": "test ", "wait": "wait for "}
        with self._region(writer, kinds.get(each.kind, "") + each.name, [each], mpi=True):
            if each.verb in BETWEEN_TWO:
                self._message(writer, each)
            elif each.kind == "call":
                writer.mpi_collective_begin(each.enter)
                writer.mpi_collective_end(each.leave, *self._collective(each))
            elif each.kind == "start":
                writer.non_blocking_collective_request(each.enter, each.request)
            elif each.completes and each.id:
                writer.non_blocking_collective_complete(each.leave, *self._collective(each), each.request)

    def _collective(self, each: Activity) -> tuple[Any, Any, int, int, int]:
        """Return operation, communicator, root among its ranks, bytes sent and received."""
        assert each.id is not None
        group = each.id.axis, each.id.group
        members = self._launch.groups[group]
        root = self._enums.Undefined.UINT32
        if each.id in self._launch.roots:
            root = members.index(self._launch.roots[each.id])
        operation = getattr(self._enums.CollectiveOp, _OPERATIONS[each.verb])
        return operation, self._comms[group], root, each.bytes, self._received(each, members)

    def _received(self, each: Activity, members: Sequence[int]) -> int:
        """Return how many bytes a rank has from a call: of all its ranks, its part, or as many as it gave."""
        handed = [self._launch.bytes.get((each.id, rank), 0) for rank in members if each.id]
        match each.verb:
            case "all_gather" | "gather":
                return sum(handed)
            case "broadcast":
                return max(handed)
            case "reduce_scatter" | "scatter":
                return max(handed) // len(members)
        return each.bytes

    def _message(self, writer: Any, each: Activity) -> None:
        """Write the event of one end of a message, by its numbers in the world."""
        about = (each.partner, self._world, 0, each.bytes, each.request)
        match each.kind, each.verb:
            case "start", "send":
                writer.mpi_isend(each.enter, *about)
            case "start", _:
                writer.mpi_irecv_request(each.enter, each.request)
            case _, "send" if each.completes:
                writer.mpi_isend_complete(each.leave, each.request)
            case _, _ if each.completes:
                writer.mpi_irecv(each.leave, *about)
