"""Numbers of 16 bits: which plans have them, and the memory in which their sums arrive.

Gradients may add up in float32: twice the bytes, and no rounding on the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from pscale.config import Case, is_16_bit
from pscale.mesh.grid import place
from pscale.nn.dtypes import compute_dtype, dtype_of
from pscale.parallel.replicas import Call

_BYTES = 2
_SUMS = ("all_reduce", "reduce_scatter", "reduce")


def sums_bytes(case: Case, rank: int, calls: Iterable[Call]) -> int:
    """Predict the memory in which parts of the sums among `calls` arrive: on every axis, of the largest."""
    if not is_16_bit(case.model.dtype):
        return 0
    sizes = case.plan.sizes
    largest: dict[str, int] = {}
    for call in calls:
        if call.verb in _SUMS and not call.wide:
            largest[call.axis] = max(largest.get(call.axis, 0), call.sent_bytes // _BYTES)
    total = 0
    for axis, numbers in largest.items():
        axes = axis.split("+")
        at, ranks = place(sizes, rank, *axes), math.prod(sizes[each] for each in axes)
        mine = numbers * (at + 1) // ranks - numbers * at // ranks
        total += (ranks - 1) * mine * _BYTES
    return total


def gradient_dtype(case: Case) -> np.dtype[Any]:
    """Return the type in which gradients of micro-batches add up, and are summed."""
    dtype = dtype_of(case.model.dtype)
    return compute_dtype(dtype) if case.precision.reduce == "float32" else dtype
