"""The axis of one process: every verb is the identity, so the serial program is the parallel one.

With it, what records nothing: exchanges that belong to no step are timed by nobody.
"""

# ruff: noqa: ARG002 - asked like any axis, told like any recorder
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any, TypeVar

from pscale.mesh.axis import NO_HINTS, Array, Axis, Op, Tag, lies_in

T = TypeVar("T")


class Done:
    """A started call that was complete at once."""

    def poll(self) -> bool:
        """Return true."""
        return True

    def wait(self) -> None:
        """Return at once."""


class SelfAxis:
    """An axis of size 1."""

    size, rank = 1, 0

    def __init__(self, name: str):
        self.name = name

    def all_reduce(self, x: Array, op: Op = "sum") -> None:
        """Leave `x` as it is."""

    def start_all_reduce(self, x: Array, op: Op = "sum") -> Done:
        """Leave `x` as it is."""
        return Done()

    def all_gather(self, x: Array, out: Array, dim: int = 0, op: Op = "sum") -> None:
        """Copy `x` to `out`."""
        out[...] = x

    def start_all_gather(self, x: Array, out: Array, dim: int = 0, op: Op = "sum") -> Done:
        """Copy `x` to `out` unless it lies there."""
        if not lies_in(x, out):
            out[...] = x
        return Done()

    reduce_scatter, start_reduce_scatter = all_gather, start_all_gather

    def all_to_all(self, x: Array, out: Array) -> None:
        """Copy `x` to `out`."""
        out[...] = x

    def start_send(self, x: Array, to: int, tag: Tag = Tag.MESSAGE) -> Done:
        """Refuse: there is nobody to send to."""
        raise AssertionError("an axis of one rank has no neighbours")

    def start_receive(self, out: Array, source: int, tag: Tag = Tag.MESSAGE) -> Done:
        """Refuse: there is nobody to receive from."""
        raise AssertionError("an axis of one rank has no neighbours")

    copy = all_to_all

    def broadcast(self, x: Array, root: int = 0, op: Op = "sum") -> None:
        """Leave `x` as it is."""

    reduce = broadcast

    def gather(self, x: Array, out: Array | None, root: int = 0) -> None:
        """Copy `x` to the only row of `out`."""
        assert out is not None
        out[0] = x

    def scatter(self, parts: Array | None, out: Array, root: int = 0) -> None:
        """Copy the only part to `out`."""
        assert parts is not None
        out[...] = parts[0]

    def barrier(self) -> None:
        """Return at once."""

    def open(self, path: Path, hints: Mapping[str, Any] = NO_HINTS) -> PlainFile:
        """Open a file for this process alone."""
        return PlainFile(path)

    def gather_objects(self, value: T) -> list[T]:
        """Return `value` alone."""
        return [value]


class SelfMesh:
    """The grid of one process: the serial program is the parallel one on it."""

    def __init__(self) -> None:
        self.sizes: Mapping[str, int] = {}
        self.coordinates: Mapping[str, int] = {}
        self.world: Axis = SelfAxis("world")
        self.nodes: Sequence[int] = (0,)
        self.scratch_bytes = 0

    def axis(self, *axes: str) -> Axis:
        """Return the axis of this process alone."""
        return SelfAxis("+".join(axes))

    def progress(self) -> None:
        """Find nothing under way."""


class PlainFile:
    """A file read by offset, with no more than the operating system's help."""

    def __init__(self, path: Path):
        self._file, self.hints = path.open("rb", buffering=0), NO_HINTS

    def read_at(self, offset: int, out: Array) -> None:
        """Fill `out` with the bytes from `offset` on."""
        self._file.seek(offset)
        if self._file.readinto(out.data) != out.nbytes:
            raise EOFError(f"{self._file.name}: fewer than {out.nbytes} bytes at offset {offset}")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class NullRecorder:
    """Takes every note and keeps none."""

    now = staticmethod(perf_counter_ns)

    def call(
        self, axis: str, verb: str, sent_bytes: int, enter: int, leave: int, *, root: bool = False
    ) -> None:
        """Forget a blocking call."""

    def copied(self, axis: str, enter: int, leave: int) -> None:
        """Forget a copy."""

    def posted(
        self, axis: str, verb: str, sent_bytes: int, enter: int, leave: int, *, partner: int = -1
    ) -> int:
        """Forget that a call was started."""
        return 0

    def polled(self, request: int, enter: int, leave: int) -> None:
        """Forget a question."""

    def polled_complete(self, request: int, enter: int, leave: int) -> None:
        """Forget that a started call was found complete."""

    def completed(self, request: int, enter: int, leave: int) -> None:
        """Forget that a started call is relied on."""
