"""A mesh that moves nothing: one rank's axes note which calls it makes, in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pscale.mesh import grid
from pscale.mesh.alone import alone
from pscale.mesh.axis import Array, Axis, Mesh
from pscale.mesh.nonblocking import Recorder, Request, RequestQueue
from pscale.mesh.sums import Sums

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


class DryRecorder(Recorder):
    """Notes calls as they are made; questions for progress too, if it `polls`. Its clock stands.

    `message` has what the communicator knows of the call: the partner and the bytes that arrive.
    """

    now = staticmethod(int)

    def __init__(self, note: Note, *, polls: bool):
        self.note, self.polls = note, polls
        self.message: tuple[int | None, int] = (None, 0)
        self.started: list[AxisCall] = []

    def call(self, axis: str, verb: str, sent_bytes: int, *_: int, root: bool = False) -> None:
        """Note a blocking call."""
        self.note(AxisCall("call", axis, verb, sent_bytes, root=root, arriving=self._taken()[1]))

    def posted(self, axis: str, verb: str, sent_bytes: int, *_: int, partner: int = -1) -> int:  # noqa: ARG002
        """Note the start of a call."""
        other, arriving = self._taken()
        number = len(self.started) + 1
        self.started.append(AxisCall("start", axis, verb, sent_bytes, other, number, arriving=arriving))
        self.note(self.started[-1])
        return number

    def polled(self, request: int = 0, enter: int = 0, leave: int = 0) -> None:  # noqa: ARG002
        """Note a question, whatever the answer."""
        if self.polls:
            self.note(_POLL)

    polled_complete = polled

    def completed(self, request: int, *_: int) -> None:
        """Note that a result is needed now."""
        call = self.started[request - 1]
        self.note(AxisCall("wait", call.axis, call.verb, 0, call.partner, call.request))

    def _taken(self) -> tuple[int | None, int]:
        message, self.message = self.message, (None, 0)
        return message


class DryRequest:
    """A started call that is complete when it is asked for the second time, as if it took a while."""

    def __init__(self, questions: float = 1):
        self._left = questions

    def Test(self) -> bool:  # noqa: N802
        """Say whether it is complete."""
        self._left -= 1
        return self._left < 0


class DryComm:
    """A communicator of several ranks seen from one of them; no data move, arrays stay as they are."""

    def __init__(self, size: int, rank: int, recorder: DryRecorder):
        self.size, self.rank, self._recorder = size, rank, recorder

    def Isend(self, x: Array, to: int, tag: int) -> DryRequest:  # noqa: N802, ARG002
        """Tell who gets it; where there are questions, no message has left before it is waited for."""
        self._recorder.message = (to - self.rank) % self.size, 0
        return DryRequest(math.inf if self._recorder.polls else 1)

    def Irecv(self, out: Array, source: int, tag: int) -> DryRequest:  # noqa: N802, ARG002
        """Tell what arrives."""
        self._recorder.message = (source - self.rank) % self.size, out.nbytes
        return DryRequest()

    def Bcast(self, x: Array, root: int) -> None:  # noqa: N802, ARG002
        """Tell what arrives."""
        self._recorder.message = None, x.nbytes

    def Scatter(self, parts: Array | None, out: Array, root: int) -> None:  # noqa: N802, ARG002
        """Tell what arrives."""
        self._recorder.message = None, out.nbytes

    def __getattr__(self, verb: str) -> Callable[..., DryRequest]:
        return lambda *_: DryRequest()

    def gather(self, value: T) -> list[T]:
        """Return the value alone."""
        return [value]


class DryQueue(RequestQueue):
    """Requests of which each is asked once at a time."""

    def ask(self, request: Request) -> bool:
        """Return whether it is complete."""
        return request.Test()

    def wait(self, request: Request) -> None:
        """Return at once."""


class DrySums(Sums):
    """Sums of 16 bits of which the memory alone is known."""

    scratch_bytes = 0

    def _started(self, x: Array, out: Array, *_: Any) -> Any:  # noqa: ARG002
        self.scratch_bytes = max(self.scratch_bytes, (self.comm.size - 1) * out.nbytes)
        return DryRequest()


class DryAxis(Axis):
    """An axis of several ranks seen from one of them."""

    def __init__(self, name: str, size: int, rank: int, recorder: DryRecorder):
        super().__init__(name, DryComm(size, rank, recorder), recorder, DryQueue())
        self._note, self._sums = recorder.note, DrySums(self._comm)

    def copy(self, x: Array, out: Array) -> None:  # noqa: ARG002
        """Note the copy."""
        self._note(AxisCall("copy", self.name, "copy", x.nbytes))

    def _is_in_parts(self, x: Array, dim: int) -> bool:
        """Take the memory in which parts would be arranged, and arrange nothing."""
        if not super()._is_in_parts(x, dim):
            self._scratch((self.size, *x.shape[:dim], x.shape[dim] // self.size, *x.shape[dim + 1 :]), x)
        return True


class DryMesh(Mesh):
    """The grid as rank `rank` sees it; every call goes to `note`. Axes of one rank are as in any job.

    With `polls` questions for progress do too, and no message has left before it is waited for.
    """

    def __init__(self, sizes: Mapping[str, int], rank: int, note: Note, *, polls: bool = False):
        self.recorder, ranks = DryRecorder(note, polls=polls), math.prod(sizes.values())
        world = DryAxis("world", ranks, rank, self.recorder)
        axes: dict[tuple[str, ...], Axis] = {(): alone("")}
        super().__init__(sizes, rank, world=world, axes=axes, nodes=[0] * ranks, outstanding=DryQueue())

    @property
    def arranged_bytes(self) -> int:
        """Memory in which this rank's calls would arrange data."""
        return sum(axis.arranged_bytes for axis in self._axes.values())

    def axis(self, *axes: str) -> Axis:
        """Return the axis that spans the named axes of the grid, rank 0 first in their order."""
        span = grid.spanned(self.sizes, axes)
        if span not in self._axes:
            sizes = {axis: self.sizes[axis] for axis in span}
            place = math.prod(sizes.values()), grid.rank_at(sizes, self.coordinates)
            self._axes[span] = DryAxis(grid.axis_name(span), *place, self.recorder)
        return self._axes[span]

    def progress(self) -> None:
        """Find nothing to move."""
        self.recorder.polled()
