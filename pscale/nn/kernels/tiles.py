"""Memory in which kernels work: tiles and chunks that fit in cache, and float32 copies of 16-bit numbers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import DTypeLike

from pscale.nn.buffers import Array, Buffers, source
from pscale.nn.dtypes import compute_dtype, convert, has_16_bits

TILE_BYTES = 256 << 10  # measured on 1 MiB of cache: 128 KiB 3 % slower, 64 KiB 20 %, larger no faster
CHUNK = 48 << 10  # elements of flat memory; in float32 the five arrays of a chunk just fit in 1 MiB of cache


def tile_shape(x: Array) -> tuple[int, int]:
    """Return rows and width of the largest tile of `x`, shape (rows, C)."""
    rows, width = x.shape
    return min(rows, max(1, TILE_BYTES // (width * x.itemsize))), width


def tiles(x: Array, times: int = 1) -> Iterator[slice]:
    """Cut the rows of `x`, shape (rows, C), into tiles, or into parts of several."""
    size = tile_shape(x)[0] * times
    for start in range(0, len(x), size):
        yield slice(start, min(start + size, len(x)))


def chunks(size: int) -> Iterator[slice]:
    """Cut flat memory into chunks."""
    for start in range(0, size, CHUNK):
        yield slice(start, min(start + CHUNK, size))


@lru_cache(maxsize=32)
def ones(size: int, dtype: DTypeLike) -> Array:
    """Return a read-only vector of ones: `ones @ x` sums columns at the speed of BLAS."""
    vector = np.ones(size, dtype)
    vector.flags.writeable = False
    return vector


def rows_of(x: Array) -> Array:
    """View (..., C) as (rows, C)."""
    return x.reshape(-1, x.shape[-1])


_of_thread = threading.local()


def scratch() -> Buffers:
    """Return this thread's pool of memory from the present source."""
    pool: Buffers | None = getattr(_of_thread, "pool", None)
    if pool is None or pool.source is not source():
        pool = _of_thread.pool = Buffers()
    return pool


class Copies:
    """Float32 copies of arrays of 16 bits while something computes; other arrays stand for themselves."""

    def __init__(self) -> None:
        self._results: list[tuple[Array, Array]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Round what was written."""
        for copy, x in self._results:
            convert(copy, x)
        self._results.clear()

    def read(self, x: Array) -> Array:
        """Return `x` for reading, laid out alike: a transposed matrix stays one."""
        if not has_16_bits(x.dtype):
            return x
        if x.ndim > 1 and x.strides[-2] < x.strides[-1]:
            return self.read(x.swapaxes(-1, -2)).swapaxes(-1, -2)
        copy = scratch().take(x.shape, compute_dtype(x.dtype))
        convert(x, copy)
        return copy

    def write(self, x: Array) -> Array:
        """Return what is to be written in place of `x`."""
        if not has_16_bits(x.dtype):
            return x
        copy = scratch().take(x.shape, compute_dtype(x.dtype))
        self._results.append((copy, x))
        return copy

    def change(self, x: Array) -> Array:
        """Return what is to be changed in place of `x`."""
        copy = self.write(x)
        if copy is not x:
            convert(x, copy)
        return copy


_WHOLE = slice(None)


def upcast_pieces(x: Array, like: Array) -> Iterator[tuple[slice, Array]]:
    """Yield rows of `x` in the type of `like`, each until the next: all at once if that is its own type."""
    if x.dtype == like.dtype:
        yield _WHOLE, x
        return
    row = max(1, x.size // max(1, len(x)))
    size = max(1, CHUNK // row)
    work = scratch().take((min(size, len(x)), *x.shape[1:]), like.dtype)
    for start in range(0, len(x), size):
        part = slice(start, min(start + size, len(x)))
        wide = work[: part.stop - start]
        convert(x[part], wide)
        yield part, wide
