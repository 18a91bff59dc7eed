"""Memory for activations that is used again: a steady step allocates nothing of its size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pscale.dtypes import compute_dtype, convert

Array = NDArray[Any]

ALIGNMENT_BYTES = 64  # a cache line, and the widest vector


Allocate = Callable[[int], NDArray[np.uint8]]


def _allocate(size_bytes: int) -> NDArray[np.uint8]:
    raw = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes]


_source: ContextVar[Allocate] = ContextVar("source", default=_allocate)  # of the thread


def source() -> Allocate:
    """Return where memory comes from."""
    return _source.get()


@contextmanager
def memory_from(allocate: Allocate) -> Iterator[None]:
    """Let the memory of whatever this thread makes during the block come from `allocate`."""
    before = _source.set(allocate)
    try:
        yield
    finally:
        _source.reset(before)


def aligned(size_bytes: int) -> NDArray[np.uint8]:
    """Return uninitialised bytes that start on a cache line."""
    return source()(size_bytes)


def zeros(sizes: Sequence[int], dtype: DTypeLike) -> list[Array]:
    """Return flat zeros of each size, in one piece of memory, each from a cache line on.

    A piece of many megabytes gets large pages, and a pass over it looks fewer of them up; pieces of a few
    megabytes each do not.
    """
    kind = np.dtype(dtype)
    lines = [-(-size * kind.itemsize // ALIGNMENT_BYTES) for size in sizes]
    memory = aligned(sum(lines) * ALIGNMENT_BYTES)
    memory.fill(0)
    starts = (line * ALIGNMENT_BYTES for line in accumulate(lines, initial=0))
    return [
        memory[start : start + size * kind.itemsize].view(kind)
        for size, start in zip(sizes, starts, strict=False)
    ]


def zeros_like(array: Array) -> Array:
    """Return zeros of the type and size of `array`, flat, that start on a cache line."""
    return zeros([array.size], array.dtype)[0]


@dataclass
class _Lease:
    memory: NDArray[np.uint8]
    holders: int
    under_way: bool = False


class Buffers:
    """A pool of arrays with counted holders.

    Whoever takes an array, or is handed one, holds it once: it hands it on, keeps it, or gives it back.
    To keep what is also handed on, `share` it. Nobody but a sole holder writes into an array.
    """

    def __init__(self) -> None:
        self.allocate = source()
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        self._leases: dict[int, _Lease] = {}  # by address
        self.total_bytes = 0  # ever allocated
        self.held_bytes = 0
        self.exchange_bytes = 0  # the most that was for exchanges at once
        self._exchanged_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """What is held, and neither leaves nor arrives."""
        return self.held_bytes - self._exchanged_bytes

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return an uninitialised C-contiguous array, held once."""
        kind = np.dtype(dtype)
        elements = math.prod(shape)
        size_bytes = max(elements, 1) * kind.itemsize
        free = self._free.get(size_bytes)
        if free:
            memory = free.pop()
        else:
            memory = self.allocate(size_bytes)
            self.total_bytes += size_bytes
        self._leases[address(memory)] = _Lease(memory, 1)
        self.held_bytes += size_bytes
        return (memory if elements else memory[:0]).view(kind).reshape(shape)

    def share(self, array: Array) -> None:
        """Note one more holder of `array`."""
        self._lease(array).holders += 1

    def give(self, *arrays: Array) -> None:
        """End one holding of each array; after the last its memory is taken again."""
        for array in arrays:
            at = address(array)
            lease = self._lease(array, at)
            lease.holders -= 1
            if not lease.holders:
                self._exchanged_bytes -= lease.memory.nbytes * lease.under_way
                del self._leases[at]
                self._free.setdefault(lease.memory.nbytes, []).append(lease.memory)
                self.held_bytes -= lease.memory.nbytes

    def reuse(self, array: Array) -> Array:
        """Give `array` for one of its shape to write into: itself where nobody else holds it.

        What it holds may still be read, so that `np.add(x, y, out=buffers.reuse(x))` is right either way.
        """
        lease = self._lease(array)
        if lease.holders == 1:
            return array
        lease.holders -= 1
        return self.take(array.shape, array.dtype)

    def holdings(self) -> dict[int, int]:
        """Return how often what is held: a mark for `forget_since`."""
        return {at: lease.holders for at, lease in self._leases.items()}

    def forget_since(self, mark: Mapping[int, int], output: Array) -> None:
        """Give back all that was taken, or shared, since `mark` was made, but one holding of `output`."""
        kept = address(output)
        for at, lease in list(self._leases.items()):
            for _ in range(lease.holders - mark.get(at, 0) - (at == kept)):
                self.give(lease.memory)

    def leases_since(
        self, mark: Mapping[int, int], x: Array, output: Array
    ) -> list[tuple[NDArray[np.uint8], int]]:
        """Return all memory that was taken since `mark`, with its holders, but that of `output`.

        And that of `x`, which was there before, if nobody else held it then.
        """
        kept, taken_over = address(output), address(x)
        return [
            (lease.memory, lease.holders)
            for at, lease in self._leases.items()
            if at != kept and (at not in mark or (at == taken_over and mark[at] == 1))
        ]

    def take_exchange(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return an array, as `take` does, that is for an exchange alone: what leaves, or arrives."""
        return self.begin_exchange(self.take(shape, dtype))

    def begin_exchange(self, array: Array) -> Array:
        """Count `array` among the memory of exchanges until its exchange ends or it is given back."""
        lease = self._lease(array)
        lease.under_way = True
        self._exchanged_bytes += lease.memory.nbytes
        self.exchange_bytes = max(self.exchange_bytes, self._exchanged_bytes)
        return array

    def end_exchange(self, array: Array) -> None:
        """Count `array`, which has arrived, no longer."""
        lease = self._lease(array)
        self._exchanged_bytes -= lease.memory.nbytes * lease.under_way
        lease.under_way = False

    def _lease(self, array: Array, at: int | None = None) -> _Lease:
        lease = self._leases.get(address(array) if at is None else at)
        assert lease is not None, f"an array of shape {array.shape} is not of this pool, or was given back"
        return lease


def address(array: Array) -> int:
    """Return where the first number lies."""
    found: int = array.__array_interface__["data"][0]
    return found


def upcast(x: Array, buffers: Buffers) -> Array:
    """Take over `x` and return it in the type in which is computed."""
    return _as(x, compute_dtype(x.dtype), buffers)


def downcast(x: Array, dtype: np.dtype[Any], buffers: Buffers) -> Array:
    """Take over `x` and return it rounded to `dtype`."""
    return _as(x, dtype, buffers)


def _as(x: Array, dtype: np.dtype[Any], buffers: Buffers) -> Array:
    if x.dtype == dtype:
        return x
    y = buffers.take(x.shape, dtype)
    convert(x, y)
    buffers.give(x)
    return y
