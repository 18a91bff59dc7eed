"""The axis of one process: every verb is the identity, so the serial program is the parallel one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pscale.mesh.axis import Array, Axis, Op, lies_in

T = TypeVar("T")


class Done:
    """A started call that was complete at once."""

    def poll(self) -> bool:
        """Return true."""
        return True

    def wait(self) -> None:
        """Return at once."""


class Solo:
    """An axis of size 1."""

    size, rank = 1, 0

    def __init__(self, name: str):
        self.name = name

    def all_reduce(self, x: Array, op: Op = "sum") -> None:
        """Leave `x` as it is."""

    def start_all_reduce(self, x: Array, op: Op = "sum") -> Done:  # noqa: ARG002
        """Leave `x` as it is."""
        return Done()

    def all_gather(self, x: Array, out: Array, dim: int = 0) -> None:  # noqa: ARG002
        """Copy `x` to `out`."""
        out[...] = x

    def start_all_gather(self, x: Array, out: Array) -> Done:
        """Copy `x` to `out` unless it lies there."""
        if not lies_in(x, out):
            out[...] = x
        return Done()

    def reduce_scatter(self, x: Array, out: Array, dim: int = 0) -> None:  # noqa: ARG002
        """Copy `x` to `out`."""
        out[...] = x

    def start_reduce_scatter(self, x: Array, out: Array) -> Done:
        """Copy `x` to `out` unless it lies there."""
        if not lies_in(x, out):
            out[...] = x
        return Done()

    def all_to_all(self, x: Array, out: Array) -> None:
        """Copy `x` to `out`."""
        out[...] = x

    def start_send(self, x: Array, to: int) -> Done:  # noqa: ARG002
        """Refuse: there is nobody to send to."""
        raise AssertionError("an axis of one rank has no neighbours")

    def start_receive(self, out: Array, source: int) -> Done:  # noqa: ARG002
        """Refuse: there is nobody to receive from."""
        raise AssertionError("an axis of one rank has no neighbours")

    def copy(self, x: Array, out: Array) -> None:
        """Copy `x` to `out`."""
        out[...] = x

    def broadcast(self, x: Array, root: int = 0) -> None:
        """Leave `x` as it is."""

    def reduce(self, x: Array, root: int = 0) -> None:
        """Leave `x` as it is."""

    def gather(self, x: Array, out: Array | None, root: int = 0) -> None:  # noqa: ARG002
        """Copy `x` to the only row of `out`."""
        assert out is not None
        out[0] = x

    def scatter(self, parts: Array | None, out: Array, root: int = 0) -> None:  # noqa: ARG002
        """Copy the only part to `out`."""
        assert parts is not None
        out[...] = parts[0]

    def barrier(self) -> None:
        """Return at once."""

    def open(self, path: Path) -> PlainFile:
        """Open a file for this process alone."""
        return PlainFile(path)

    def gather_objects(self, value: T) -> list[T]:
        """Return `value` alone."""
        return [value]


class SoloMesh:
    """The grid of one process: the serial program is the parallel one on it."""

    def __init__(self) -> None:
        self.sizes: Mapping[str, int] = {}
        self.coordinates: Mapping[str, int] = {}
        self.world: Axis = Solo("world")
        self.nodes: Sequence[int] = (0,)
        self.scratch_bytes = 0

    def axis(self, *dims: str) -> Axis:
        """Return the axis of this process alone."""
        return Solo("+".join(dims))

    def progress(self) -> None:
        """Find nothing under way."""


class PlainFile:
    """A file read by offset, with no more than the operating system's help."""

    def __init__(self, path: Path):
        self._file = path.open("rb", buffering=0)

    def read_at(self, offset: int, out: Array) -> None:
        """Fill `out` with the bytes from `offset` on."""
        self._file.seek(offset)
        if self._file.readinto(out.data) != out.nbytes:
            raise EOFError(f"{self._file.name}: fewer than {out.nbytes} bytes at offset {offset}")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
