"""Random numbers that depend on a counter alone: Philox 4x32-10 (Salmon et al., 2011), vectorised.

A stream would depend on who draws from it, and when. The number of an element follows from its place, so that
every plan, micro-batch and recomputation draws the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 10
_FACTORS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
_STEPS = 0x9E3779B9, 0xBB67AE85
_LOW, _BITS = np.uint64(0xFFFFFFFF), np.uint64(32)


def threshold(rate: float) -> int:
    """Return below which of 2^32 numbers a share of `rate` lies."""
    return round(rate * 2**32)


def words(
    columns: NDArray[np.integer],
    rows: NDArray[np.integer] | int,
    sequence: NDArray[np.integer] | int,
    site: NDArray[np.integer] | int,
    key: tuple[int, int],
) -> NDArray[np.uint64]:
    """Return 32 random bits for each element: word `column` mod 4 of (column / 4, row, sequence, site).

    These four are a counter. `columns`, (C,), ascend; the others broadcast against (..., 1).
    """
    groups, which = np.unique(columns // 4, return_inverse=True)
    drawn = np.stack(block((groups, rows, sequence, site), key), axis=-1)
    of_groups = drawn.reshape(*drawn.shape[:-2], 4 * len(groups))
    found: NDArray[np.uint64] = np.take(of_groups, 4 * which + columns % 4, axis=-1)
    return found


def block(
    counter: tuple[NDArray[np.integer] | int, ...], key: tuple[int, int]
) -> tuple[NDArray[np.uint64], ...]:
    """Return four words of 32 bits for each counter, of four parts that broadcast."""
    a, b, c, d = np.broadcast_arrays(*(np.asarray(part).astype(np.uint64) for part in counter))
    left, right = key
    for _ in range(_ROUNDS):
        x, y = _FACTORS[0] * a, _FACTORS[1] * c
        a, b = (y >> _BITS) ^ b ^ np.uint64(left), y & _LOW
        c, d = (x >> _BITS) ^ d ^ np.uint64(right), x & _LOW
        left, right = (left + _STEPS[0]) & 0xFFFFFFFF, (right + _STEPS[1]) & 0xFFFFFFFF
    return a, b, c, d
