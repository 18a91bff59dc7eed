"""Memory for activations that is used again: a steady step allocates nothing of its size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pscale.nn.dtypes import compute_dtype, convert

Array = NDArray[Any]

ALIGNMENT_BYTES = 64  # a cache line, and the widest vector


class Lease:
    """Memory of a pool in which arrays lie: when the last of them goes, the pool has it back."""

    pool: Buffers
    memory: NDArray[np.uint8]
    in_exchange = False

    def array(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """Return an uninitialised C-contiguous array in it."""
        raise NotImplementedError

    def offset(self, array: Array) -> int:
        """Return at which byte of the memory `array` begins."""
        raise NotImplementedError

    def __del__(self) -> None:
        """Give the memory back."""
        self.pool.regain(self)


class _Bytes(np.ndarray):
    """Bytes that are the base of their views: NumPy replaces a base by its own where classes are the same."""


class _ArrayLease(Lease, _Bytes):
    """Bytes on loan."""

    def array(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> Array:
        """Return an uninitialised C-contiguous array in it."""
        return np.ndarray(shape, kind, self)

    def offset(self, array: Array) -> int:
        """Return at which byte of the memory `array` begins."""
        return address(array) - address(self)


class Source(NamedTuple):
    """What makes bytes of a size, that start on a cache line, and leases of such bytes."""

    allocate: Callable[[int], NDArray[np.uint8]]
    lease: Callable[[NDArray[np.uint8]], Lease]


def _allocate(size_bytes: int) -> NDArray[np.uint8]:
    raw = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes]


_ARRAYS = Source(_allocate, lambda memory: memory.view(_Bytes).view(_ArrayLease))
_source: ContextVar[Source] = ContextVar("source", default=_ARRAYS)


def source() -> Source:
    """Return where this thread's memory comes from."""
    return _source.get()


@contextmanager
def memory_from(other: Source) -> Iterator[None]:
    """Let the memory of whatever this thread makes during the block come from another source."""
    before = _source.set(other)
    try:
        yield
    finally:
        _source.reset(before)


def aligned(size_bytes: int) -> NDArray[np.uint8]:
    """Return uninitialised bytes that start on a cache line."""
    return source().allocate(size_bytes)


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


class Buffers:
    """A pool of arrays: the memory of one that nobody refers to any more is taken again."""

    def __init__(self) -> None:
        self.source = source()
        self._free: dict[int, list[NDArray[np.uint8]]] = {}
        self.total_bytes = 0  # ever allocated
        self.held_bytes = 0
        self.exchange_bytes = 0  # the most that was for exchanges at once
        self._exchanged_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """What is held, and neither leaves nor arrives."""
        return self.held_bytes - self._exchanged_bytes

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return an uninitialised C-contiguous array."""
        kind = np.dtype(dtype)
        size_bytes = max(math.prod(shape), 1) * kind.itemsize
        free = self._free.get(size_bytes)
        if free:
            memory = free.pop()
        else:
            memory = self.source.allocate(size_bytes)
            self.total_bytes += size_bytes
        lease = self.source.lease(memory)
        lease.pool, lease.memory = self, memory
        self.held_bytes += size_bytes
        return lease.array(shape, kind)

    def regain(self, lease: Lease) -> None:
        """Take memory back in which no array lies any more."""
        memory = lease.memory
        self._exchanged_bytes -= memory.nbytes * lease.in_exchange
        self._free.setdefault(memory.nbytes, []).append(memory)
        self.held_bytes -= memory.nbytes

    def take_exchange(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Return an array, as `take` does, that is for an exchange alone: what leaves, or arrives."""
        return self.begin_exchange(self.take(shape, dtype))

    def begin_exchange(self, array: Array) -> Array:
        """Count `array` among the memory of exchanges until its exchange ends or it goes."""
        self._count(array, in_exchange=True)
        self.exchange_bytes = max(self.exchange_bytes, self._exchanged_bytes)
        return array

    def end_exchange(self, array: Array) -> Array:
        """Count `array`, which has arrived, no longer."""
        self._count(array, in_exchange=False)
        return array

    def _count(self, array: Array, *, in_exchange: bool) -> None:
        lease = lease_of(array)
        assert lease is not None, f"an array of shape {array.shape} is of no pool"
        self._exchanged_bytes += lease.memory.nbytes * (in_exchange - lease.in_exchange)
        lease.in_exchange = in_exchange


def lease_of(array: Array) -> Lease | None:
    """Return the lease in whose memory `array` lies, if it is of a pool."""
    base: Any = array
    while not (base is None or isinstance(base, Lease)):
        base = base.base
    return base


def address(array: Array) -> int:
    """Return where the first number lies."""
    found: int = array.__array_interface__["data"][0]
    return found


def upcast(x: Array, buffers: Buffers) -> Array:
    """Return `x` in the type in which is computed: itself, where it has that."""
    dtype = compute_dtype(x.dtype)
    return x if x.dtype == dtype else rounded(x, buffers.take(x.shape, dtype))


def rounded(x: Array, out: Array) -> Array:
    """Write `x` to `out`, rounded to its type, unless it lies there; return `out`."""
    if x.dtype != out.dtype:
        convert(x, out)
    return out
