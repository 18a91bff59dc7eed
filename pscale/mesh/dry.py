"""A mesh that moves nothing: one rank's axes note which calls it makes, in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from pscale.mesh import grid
from pscale.mesh.alone import alone
from pscale.mesh.axis import NO_HINTS, Array, Axis, Op, Tag
from pscale.nn.dtypes import HALF_BYTES

T = TypeVar("T")
Event = Literal["call", "start", "wait", "copy", "poll"]


@dataclass(frozen=True, slots=True)
class AxisCall:
    """What a rank does with an axis: a blocking call, the start of one, the wait for it, or a copy beside it.

    `bytes` is the payload that the rank hands to the call; of a copy, what is arranged. `partner` is the
    other side of a message, counted along the axis from this rank on, modulo its size: 1 is the next rank.
    `request` numbers the started calls of a step; a wait has the number of its start. `arriving` is the
    memory in bytes for what arrives by a receive, a broadcast or a scatter.

    A poll is a question for the progress of started calls, of no axis; only noted if asked for.
    """

    event: Event
    axis: str
    verb: str
    bytes: int
    partner: int | None = None
    request: int | None = None
    root: bool = False
    arriving: int = 0


Note = Callable[[AxisCall], None]
_POLL = AxisCall("poll", "", "", 0)
_SUMS = ("all_reduce", "reduce_scatter", "reduce")


class Started:
    """A started call; it is complete when it is asked for the second time, as if it took a while."""

    def __init__(self, call: AxisCall, mesh: DryMesh):
        self._call, self._mesh, self._asked = call, mesh, False

    def poll(self) -> bool:
        """Say whether it is complete."""
        self._mesh.progress()
        before, self._asked = self._asked, True
        return before and not (self._mesh.polls and self._call.verb == "send")

    def wait(self) -> None:
        """Note that its result is needed now."""
        call = self._call
        self._mesh.note(AxisCall("wait", call.axis, call.verb, 0, call.partner, call.request))


def _noting(verb: str, *, starts: bool = False) -> Callable[..., Any]:
    """Return a method that notes a call of `verb` with its first argument, or the start of one."""

    def method(axis: DryAxis, x: Array, out: Any = None, dim: int = 0, **_: Any) -> Started | None:
        axis._take(verb, x, out, dim)
        if starts:
            return axis._start(verb, x.nbytes)
        axis._call(verb, x.nbytes)
        return None

    return method


class DryAxis(Axis):
    """An axis of several ranks seen from one of them; no data move, arrays stay as they are."""

    def __init__(self, name: str, size: int, rank: int, mesh: DryMesh):
        self.name, self.size, self.rank, self._mesh = name, size, rank, mesh

    all_reduce, all_gather, reduce_scatter, all_to_all = map(
        _noting, ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    )
    start_all_reduce, start_all_gather, start_reduce_scatter = (
        _noting(verb, starts=True) for verb in ("all_reduce", "all_gather", "reduce_scatter")
    )

    def start_send(self, x: Array, to: int, tag: Tag) -> Started:  # noqa: ARG002
        """Note the start."""
        return self._start("send", x.nbytes, (to - self.rank) % self.size)

    def start_receive(self, out: Array, source: int, tag: Tag) -> Started:  # noqa: ARG002
        """Note the start."""
        return self._start("receive", 0, (source - self.rank) % self.size, out.nbytes)

    def broadcast(self, x: Array, root: int = 0) -> None:
        """Note the call."""
        is_root = self.rank == root
        self._call("broadcast", x.nbytes if is_root else 0, root=is_root, arriving=x.nbytes)

    def reduce(self, x: Array, root: int = 0, op: Op = "sum") -> None:  # noqa: ARG002
        """Note the call."""
        self._take("reduce", x, None, 0)
        self._call("reduce", x.nbytes, root=self.rank == root)

    def gather(self, x: Array, out: Array | None, root: int = 0) -> None:  # noqa: ARG002
        """Note the call."""
        self._call("gather", x.nbytes, root=self.rank == root)

    def scatter(self, parts: Array | None, out: Array, root: int = 0) -> None:
        """Note the call."""
        given = 0 if parts is None else parts.nbytes
        self._call("scatter", given, root=self.rank == root, arriving=out.nbytes)

    def copy(self, x: Array, out: Array) -> None:  # noqa: ARG002
        """Note the copy."""
        self._mesh.note(AxisCall("copy", self.name, "copy", x.nbytes))

    def barrier(self) -> None:
        """Note the call."""
        self._call("barrier", 0)

    def open(self, path: Path, hints: Mapping[str, Any] = NO_HINTS) -> NoReturn:  # noqa: ARG002
        """Refuse: there are no files."""
        raise AssertionError(f"{path}: a dry run reads no files")

    def gather_objects(self, value: T) -> list[T]:
        """Return `value` alone."""
        return [value]

    def _take(self, verb: str, x: Array, out: Any, dim: int) -> None:
        """Note the memory in which a call arranges parts, or numbers of 16 bits arrive for `mesh.sums`."""
        whole, scratch = (out if verb == "all_gather" else x), self._mesh.scratch
        if any(size > 1 for size in whole.shape[:dim]):
            part = (*whole.shape[:dim], whole.shape[dim] // self.size, *whole.shape[dim + 1 :])
            scratch[self.name, part, whole.dtype] = whole.nbytes
        if x.itemsize == HALF_BYTES and verb in _SUMS:
            mine = x.size * (self.rank + 1) // self.size - x.size * self.rank // self.size
            key = self.name, (), x.dtype
            scratch[key] = max(scratch.get(key, 0), (self.size - 1) * mine * HALF_BYTES)

    def _call(self, verb: str, size_bytes: int, *, root: bool = False, arriving: int = 0) -> None:
        self._mesh.note(AxisCall("call", self.name, verb, size_bytes, root=root, arriving=arriving))

    def _start(self, verb: str, size_bytes: int, partner: int | None = None, arriving: int = 0) -> Started:
        mesh = self._mesh
        mesh.requests += 1
        call = AxisCall("start", self.name, verb, size_bytes, partner, mesh.requests, arriving=arriving)
        mesh.note(call)
        return Started(call, mesh)


class DryMesh:
    """The grid as rank `rank` sees it; every call goes to `note`. Axes of one rank are as in any job.

    With `polls` questions for progress do too, and no message has left before it is waited for.
    """

    def __init__(self, sizes: Mapping[str, int], rank: int, note: Note, *, polls: bool = False):
        self.sizes: Mapping[str, int] = dict(sizes)
        self.coordinates: Mapping[str, int] = grid.coordinates(sizes, rank)
        self.note, self.requests = note, 0  # calls that were started
        self.polls = polls
        ranks = math.prod(sizes.values())
        self.world: Axis = DryAxis("world", ranks, rank, self)
        self.nodes: Sequence[int] = [0] * ranks
        self.scratch: dict[tuple[str, tuple[int, ...], Any], int] = {}  # bytes by axis, part and type
        self._axes: dict[tuple[str, ...], Axis] = {}  # by what was asked for

    @property
    def scratch_bytes(self) -> int:
        """Memory in which this rank's calls would arrange data, and add up."""
        return sum(self.scratch.values())

    def axis(self, *axes: str) -> Axis:
        """Return the axis that spans the named axes of the grid, rank 0 first in their order."""
        if axes not in self._axes:
            self._axes[axes] = self._axis(grid.spanned(self.sizes, axes))
        return self._axes[axes]

    def progress(self) -> None:
        """Find nothing to move."""
        if self.polls:
            self.note(_POLL)

    def _axis(self, span: Sequence[str]) -> Axis:
        if not span:
            return alone("")
        sizes = {axis: self.sizes[axis] for axis in span}
        rank = grid.rank_at(sizes, self.coordinates)
        return DryAxis(grid.axis_name(span), math.prod(sizes.values()), rank, self)
