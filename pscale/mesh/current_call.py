"""Which call another thread is in: read from its frames, so that a call costs no more for being watched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from pscale.mesh import mpi, nonblocking

_FILES = {mpi.__file__, nonblocking.__file__}


@dataclass(frozen=True, kw_only=True)
class CurrentCall:
    """A verb over an axis that has been entered and not left. `request` numbers a started call, -1: none."""

    axis: str
    verb: str
    request: int = -1


def current_call(frame: FrameType | None) -> CurrentCall | None:
    """Return the call that the innermost of the frames from `frame` outwards is in; None: not in the mesh."""
    for code, owner in _mesh_frames(frame):
        if isinstance(owner, mpi.MpiAxis):
            return CurrentCall(axis=owner.name, verb=code)
        if isinstance(owner, nonblocking.NonblockingCall):
            return CurrentCall(axis="", verb=code, request=owner.number)
    return None


def _mesh_frames(frame: FrameType | None) -> Iterator[tuple[str, object]]:
    while frame is not None:
        if frame.f_code.co_filename in _FILES:
            yield frame.f_code.co_name, frame.f_locals.get("self")
        frame = frame.f_back
