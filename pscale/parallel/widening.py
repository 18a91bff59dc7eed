"""Sums of gradients of 16 bits in float32: twice the bytes, and no rounding on the way."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import DTypeLike

from pscale.config import Precision
from pscale.mesh.axis import Array, Axis, Op, Pending
from pscale.nn.buffers import Buffers
from pscale.number import is_narrow, wide


class Widened:
    """An axis for sums, which travel as float32 in memory of `pool`; other numbers go as they are."""

    def __init__(self, axis: Axis, pool: Buffers):
        self.name, self.size, self.rank = axis.name, axis.size, axis.rank
        self._axis, self._pool = axis, pool

    def all_reduce(self, x: Array, op: Op = "sum") -> None:
        """Replace `x` by the sum, which is rounded once."""
        self.start_all_reduce(x, op).wait()

    def start_all_reduce(self, x: Array, op: Op = "sum") -> Pending:
        """Begin to do so."""
        copy = self._copy(x)
        return _Rounded(self._axis.start_all_reduce(copy, op), copy, copy, x, self._pool)

    def start_reduce_scatter(self, x: Array, out: Array) -> Pending:
        """Begin to write this rank's part of the sum to `out`."""
        copy = self._copy(x)
        mine = copy[: out.size]
        return _Rounded(self._axis.start_reduce_scatter(copy, mine), copy, mine, out, self._pool)

    def _copy(self, x: Array) -> Array:
        copy = self._pool.take(x.shape, wide(x.dtype))
        np.copyto(copy, x)
        return copy


class _Rounded:
    """A sum under way; what has come of it in `sum_` is rounded to `out` when it is waited for."""

    def __init__(self, pending: Pending, copy: Array, sum_: Array, out: Array, pool: Buffers):
        self._pending, self._copy, self._sum, self._out, self._pool = pending, copy, sum_, out, pool

    def poll(self) -> bool:
        return self._pending.poll()

    def wait(self) -> None:
        self._pending.wait()
        np.copyto(self._out, self._sum, casting="unsafe")
        self._pool.give(self._copy)


class Summing:
    """How gradients of type `dtype` are summed: as they are stored, or as float32."""

    def __init__(self, dtype: DTypeLike, precision: Precision):
        self._widens = precision.reduce == "float32" and is_narrow(dtype)
        self._pool = Buffers()

    @property
    def total_bytes(self) -> int:
        """Memory of float32 copies."""
        return self._pool.total_bytes

    def over(self, axis: Axis) -> Axis:
        """Return the axis to sum over."""
        return cast("Axis", Widened(axis, self._pool)) if self._widens and axis.size > 1 else axis
