"""Numbers of 16 bits as kernels compute with them: wider, a piece at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pscale.nn.buffers import Array
from pscale.nn.kernels.scratch import scratch
from pscale.nn.kernels.tile import CHUNK

_WHOLE = slice(None)


def wide_pieces(x: Array, like: Array) -> Iterator[tuple[slice, Array]]:
    """Yield rows of `x` in the type of `like`, each until the next: all at once if that is its own type."""
    if x.dtype == like.dtype:
        yield _WHOLE, x
        return
    row = max(1, x.size // max(1, len(x)))
    size = max(1, CHUNK // row)
    pool = scratch()
    work = pool.take((min(size, len(x)), *x.shape[1:]), like.dtype)
    for start in range(0, len(x), size):
        part = slice(start, min(start + size, len(x)))
        wide = work[: part.stop - start]
        np.copyto(wide, x[part])
        yield part, wide
    pool.give(work)
