"""A communicator of mpi4py as one of its ranks sees it, alone: whatever others would send is there at once.

Of one rank every verb is the identity, so the serial program is the parallel one. Messages are small random
numbers, so that no sum of them overflows and no product is denormal.
"""

# ruff: noqa: N802, ARG002 - named and called as those of mpi4py
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from pscale.mesh.axis import Array, Axis, Mesh
from pscale.mesh.nonblocking import Recorder, RequestQueue

T = TypeVar("T")
_SCALE = 1e-3  # their standard deviation
_PATTERN = 1 << 16  # numbers that are drawn once, and repeated
_NOTHING = np.zeros(_PATTERN, np.uint8)


class Arrived:
    """A started call that is complete."""

    def Test(self) -> bool:
        """Return true."""
        return True

    def Wait(self) -> None:
        """Return at once."""


_ARRIVED = Arrived()


class Arriving:
    """Numbers for what others would send; those of 16 bits are `half`, which MPI knows as whole numbers."""

    def __init__(self, half: np.dtype[Any] | None = None):
        random = np.random.default_rng(0)
        numbers = random.standard_normal(_PATTERN) * _SCALE
        self._patterns: dict[Any, Array] = {
            np.dtype(np.uint8): random.integers(256, size=_PATTERN, dtype=np.uint8),
            np.dtype(np.float32): numbers.astype(np.float32),
            np.dtype(np.float64): numbers,
        }
        if half is not None:
            self._patterns[np.dtype(np.uint16)] = numbers.astype(half).view(np.uint16)

    def fill(self, out: Array) -> None:
        """Fill an array; with zeros if it counts something."""
        flat, pattern = out.reshape(-1), self._patterns.get(out.dtype, _NOTHING)
        for start in range(0, flat.size, len(pattern)):
            part = flat[start : start + len(pattern)]
            part[...] = pattern[: part.size]


class EmulatedComm:
    """A communicator on a grid of processes, of which this is the only one; its coordinates are `place`."""

    def __init__(self, sizes: Sequence[int], place: Sequence[int], arriving: Arriving | None = None):
        self._sizes, self._place, self._arriving = sizes, place, arriving
        self.size = math.prod(sizes)
        self.rank = int(np.ravel_multi_index(tuple(place), tuple(sizes))) if sizes else 0

    def Dup(self) -> EmulatedComm:
        """Return the same."""
        return self

    def Create_cart(self, dims: Sequence[int], *, reorder: bool = False) -> EmulatedComm:
        """Return the same: it is a grid."""
        assert tuple(dims) == tuple(self._sizes)
        return self

    def Sub(self, kept: Sequence[bool]) -> EmulatedComm:
        """Return the communicator of some axes of the grid."""
        sizes, place = ([*itertools.compress(each, kept)] for each in (self._sizes, self._place))
        return EmulatedComm(sizes, place, self._arriving)

    def Barrier(self, *_: Any) -> Arrived:
        """Return at once: nothing moves, and a sum is what is there."""
        return _ARRIVED

    Allreduce = Iallreduce = Reduce = Isend = Barrier

    def Allgather(self, x: Any, out: Array) -> Arrived:
        """Receive from others what this rank gives: a statistic, or an encoded message, has to be one."""
        parts = out.reshape(self.size, -1)
        if isinstance(x, np.ndarray) or self.size > 1:
            parts[...] = x.reshape(-1) if isinstance(x, np.ndarray) else parts[self.rank].copy()
        return _ARRIVED

    def Reduce_scatter_block(self, x: Any, out: Array, op: Any) -> Arrived:
        """Copy this rank's part; in place to the beginning."""
        if isinstance(x, np.ndarray):
            out.reshape(-1)[...] = x.reshape(self.size, -1)[self.rank]
        elif self.rank:
            parts = out.reshape(self.size, -1)
            parts[0] = parts[self.rank]
        return _ARRIVED

    def Alltoall(self, x: Array, out: Array) -> Arrived:
        """Copy what this rank gives."""
        out[...] = x
        return _ARRIVED

    def Irecv(self, out: Array, source: int, tag: int = 0) -> Arrived:
        """Receive numbers."""
        assert self._arriving is not None, "a rank alone has no neighbours"
        self._arriving.fill(out)
        return _ARRIVED

    def Bcast(self, x: Array, root: int) -> Arrived:
        """Receive numbers, except on the root."""
        return _ARRIVED if self.rank == root else self.Irecv(x, root)

    def Gather(self, x: Array, out: Array | None, root: int) -> Arrived:
        """Receive the parts of others on the root."""
        return _ARRIVED if out is None else self.Allgather(x, out)

    def Scatter(self, parts: Array | None, out: Array, root: int) -> Arrived:
        """Receive this rank's part, or numbers."""
        if parts is None:
            return self.Irecv(out, root)
        out[...] = parts[self.rank]
        return _ARRIVED

    Iallgather, Ireduce_scatter_block = Allgather, Reduce_scatter_block

    def gather(self, value: T) -> list[T]:
        """Return the value alone."""
        return [value]


def alone(name: str) -> Axis:
    """Return an axis of one rank, of which nothing is recorded."""
    return Axis(name, EmulatedComm((), ()), Recorder(), RequestQueue())


class SelfMesh(Mesh):
    """The grid of one process."""

    def __init__(self) -> None:
        axes: dict[tuple[str, ...], Axis] = {(): alone("")}
        super().__init__({}, 0, world=alone("world"), axes=axes, nodes=(0,), outstanding=RequestQueue())
