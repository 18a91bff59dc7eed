"""Sums of numbers of 16 bits, for which MPI has no type: over any MPI the same to the last bit.

Every rank is sent its part of the numbers of all ranks, adds up in float32 in the order of the ranks, rounds
once and sends the sum to whoever wants it. As in a ring, 2 (P - 1) / P of the numbers leave a rank.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.mesh.nonblocking import Request
from pscale.nn.dtypes import HALF_BYTES, combine

Array = NDArray[Any]
_FUNCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}
_FIRST_TAG = 16_384  # above those of other messages (`Tag`), below the largest that any MPI has: 32,767
_TAGS = 8192  # pairs of them, in turn


def sendable(x: Array) -> Array:
    """Return `x` as MPI can move it: 16 bits as whole numbers."""
    return x.view(np.uint16) if x.itemsize == HALF_BYTES else x


class Sum:
    """A sum under way, which `messages` bring about in turns; goes on when it is asked for."""

    def __init__(self, sums: Sums, messages: Callable[[Sum], Iterator[Sequence[Request]]]):
        self.sums = sums
        self.added = False  # nothing arrives any more in the memory that sums share
        self._steps = messages(self)
        self._outstanding: Sequence[Request] | None = None
        self.complete = False

    def Test(self) -> bool:  # noqa: N802
        """Let all sums of the axis go on; true once this one is there."""
        self.sums.move()
        return self.complete

    def Wait(self) -> None:  # noqa: N802
        """Return when the sum is there, and all that were asked for before it."""
        self.sums.move(until=self)

    def advance(self, *, waits: bool) -> None:
        """Go as far as messages have arrived, or wait for them if it `waits`."""
        while not self.complete:
            for message in self._outstanding or ():
                if waits:
                    message.Wait()
                elif not message.Test():
                    return
            self._outstanding = next(self._steps, None)
            self.complete = self._outstanding is None


class Sums:
    """The sums over the ranks of a communicator, in the order in which all of them ask."""

    def __init__(self, comm: Any):
        self.comm, self._count = comm, 0
        self._queue: deque[Sum] = deque()
        self._memory = np.empty(0, np.uint16)

    @property
    def scratch_bytes(self) -> int:
        """Memory in which numbers arrive, kept from sum to sum."""
        return self._memory.nbytes

    def reduce(self, x: Array, op: str = "sum", root: int | None = None) -> Sum:
        """Begin to reduce `x` in place on every rank, or on `root`, where elsewhere `x` is undefined then."""
        flat, size = x.reshape(-1), self.comm.size
        bounds = [flat.size * part // size for part in range(size + 1)]
        parts = [slice(start, stop) for start, stop in itertools.pairwise(bounds)]
        to = range(size) if root is None else (root,)
        return self._started(flat, flat[parts[self.comm.rank]], parts, op, to)

    def scatter(self, x: Array, out: Array, op: str = "sum") -> Sum:
        """Begin to write this rank's part of the reduced `x` to `out`; that may be the first part of `x`."""
        parts = [slice(part * out.size, (part + 1) * out.size) for part in range(self.comm.size)]
        return self._started(x.reshape(-1), out.reshape(-1), parts, op, ())

    def move(self, until: Sum | None = None) -> None:
        """Let sums go on, the oldest first, each when the one before needs the memory no more.

        Wait for those up to `until`.
        """
        waits = until is not None
        for one in list(self._queue):
            one.advance(waits=waits)
            waits = waits and one is not until
            if not one.added:
                break
        while self._queue and self._queue[0].complete:
            self._queue.popleft()

    def memory(self, numbers: int) -> Array:
        """Return memory in which so many numbers may arrive, until the next sum begins."""
        if self._memory.size < numbers:
            self._memory = np.empty(numbers, np.uint16)
        return self._memory[:numbers]

    def _started(self, x: Array, out: Array, parts: Sequence[slice], op: str, to: Sequence[int]) -> Sum:
        """Begin a sum of the flat `x` of all ranks, in `parts`: that of this rank's goes to `out`.

        Those of all parts go to the ranks `to`, in place of `x`.
        """
        comm, tag = self.comm, _FIRST_TAG + 2 * (self._count % _TAGS)
        others = [rank for rank in range(comm.size) if rank != comm.rank]

        def messages(made: Sum) -> Iterator[Sequence[Request]]:
            sent, arriving = sendable(x), self.memory(len(others) * out.size).reshape(len(others), -1)
            yield [
                *(comm.Irecv(row, rank, tag) for row, rank in zip(arriving, others, strict=True)),
                *(comm.Isend(sent[parts[rank]], rank, tag) for rank in others),
            ]
            everyone = [*arriving.view(x.dtype)]
            everyone.insert(comm.rank, x[parts[comm.rank]])
            combine(everyone, out, _FUNCTIONS[op])
            made.added = True
            sources = others if comm.rank in to else []
            yield [
                *(comm.Irecv(sent[parts[rank]], rank, tag + 1) for rank in sources),
                *(comm.Isend(sendable(out), rank, tag + 1) for rank in others if rank in to),
            ]

        self._count += 1
        made = Sum(self, messages)
        self._queue.append(made)
        self.move()
        return made
