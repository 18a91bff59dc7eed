"""Cutting element-wise work so that a chain of NumPy calls finds its operands in the second-level cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import DTypeLike

from pscale.nn.buffers import Array

TILE_BYTES = 256 << 10  # measured on 1 MiB of cache: 128 KiB 3 % slower, 64 KiB 20 %, larger no faster


def tile_rows(row_bytes: int) -> int:
    """Return how many rows make a tile."""
    return max(1, TILE_BYTES // row_bytes)


def tiles(x: Array) -> Iterator[slice]:
    """Cut the rows of a C-contiguous array into tiles."""
    rows = tile_rows(x.nbytes // max(len(x), 1))
    for start in range(0, len(x), rows):
        yield slice(start, min(start + rows, len(x)))


@lru_cache(maxsize=32)
def ones(size: int, dtype: DTypeLike) -> Array:
    """Return a read-only vector of ones: `ones @ x` sums columns at the speed of BLAS."""
    vector = np.ones(size, dtype)
    vector.flags.writeable = False
    return vector


def rows_of(x: Array) -> Array:
    """View (..., C) as (rows, C)."""
    return x.reshape(-1, x.shape[-1])
