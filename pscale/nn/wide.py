"""Arrays in the type in which is computed, and back: of 16 bits to float32; others are what they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from pscale.nn.buffers import Array, Buffers
from pscale.number import wide


def widened(x: Array, buffers: Buffers) -> Array:
    """Take over `x` and return it in the type in which is computed."""
    return _as(x, wide(x.dtype), buffers)


def rounded(x: Array, dtype: np.dtype[Any], buffers: Buffers) -> Array:
    """Take over `x` and return it rounded to `dtype`."""
    return _as(x, dtype, buffers)


def _as(x: Array, dtype: np.dtype[Any], buffers: Buffers) -> Array:
    if x.dtype == dtype:
        return x
    y = buffers.take(x.shape, dtype)
    np.copyto(y, x, casting="unsafe")
    buffers.give(x)
    return y
