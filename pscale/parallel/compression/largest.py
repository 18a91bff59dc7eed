"""The encoding that picks: the largest gradients as they are, and where they belong (Aji, Heafield, 2017)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import DTypeLike

from pscale.nn.buffers import aligned
from pscale.parallel.compression.feedback import Array, Message, whole_words

_RUN = 4096  # numbers that are looked at together
_INDEX = np.dtype(np.int32)
MOST = np.iinfo(_INDEX).max  # numbers that indices can tell apart


class Largest:
    """A share of the `size` gradients of a rank, each with its index; what is not sent is held back."""

    def __init__(self, size: int, dtype: DTypeLike, share: float):
        self._kind, self._count = np.dtype(dtype), kept(size, share)
        self._sizes: Array = aligned(size * self._kind.itemsize).view(self._kind)
        self._work: Array = np.empty(_RUN, self._kind)
        self.message_bytes = message_bytes(size, self._kind, share)
        self.work_bytes = self._sizes.nbytes + self._work.nbytes

    def encode(self, x: Array, message: Message) -> None:
        """Write the largest numbers and their indices, and leave zeros in their place."""
        np.abs(x, out=self._sizes)
        self._sizes.partition(x.size - self._count)
        least = self._sizes[x.size - self._count]
        values, indices = self._seen(message)
        for start, found in _first(self._count, self._picked(x, least)):
            indices[start : start + found.size] = found
        for mine in self._runs():
            np.take(x, indices[mine], out=values[mine], mode="clip")
            x[indices[mine]] = 0

    def add_up(self, messages: Message, total: Array) -> None:
        """Replace `total` by the sum of what the rows of `messages` say."""
        total.fill(0)
        for message in messages:
            values, indices = self._seen(message)
            for mine in self._runs():
                work = self._work[: mine.stop - mine.start]
                np.take(total, indices[mine], out=work, mode="clip")
                work += values[mine]
                total[indices[mine]] = work

    def _picked(self, x: Array, least: np.floating) -> Iterator[np.ndarray]:
        """Yield the indices of what is larger than `least`, or no number, run by run; then of its equals."""
        for larger in (True, False):
            for start in range(0, x.size, _RUN):
                part = x[start : start + _RUN]
                size = np.abs(part, out=self._work[: part.size])
                found = np.flatnonzero(~(size <= least) if larger else size == least)
                found += start
                yield found

    def _runs(self) -> Iterator[slice]:
        """Yield where runs of what is sent lie."""
        for start in range(0, self._count, _RUN):
            yield slice(start, min(start + _RUN, self._count))

    def _seen(self, message: Message) -> tuple[Array, np.ndarray]:
        """Return the numbers and the indices of a message."""
        stop = self._count * self._kind.itemsize
        indices = message[stop : stop + self._count * _INDEX.itemsize].view(_INDEX)
        return message[:stop].view(self._kind), indices


def _first(count: int, found: Iterator[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the first `count` of all that is found, run by run, and how many came before."""
    done = 0
    for run in found:
        taken = run[: count - done]
        if taken.size:
            yield done, taken
        done += taken.size
        if done == count:
            return


def kept(size: int, share: float) -> int:
    """Return how many of `size` numbers are sent: one at least."""
    return min(size, max(1, round(size * share)))


def message_bytes(size: int, dtype: DTypeLike, share: float) -> int:
    """Return the bytes of the numbers that are sent and of their indices."""
    return whole_words(kept(size, share) * (np.dtype(dtype).itemsize + _INDEX.itemsize))


def work_bytes(size: int, dtype: DTypeLike) -> int:
    """Return the memory for finding the largest."""
    return (size + _RUN) * np.dtype(dtype).itemsize
