"""Numbers of 16 bits: which plans have them, and the memory in which their sums arrive.

Gradients may be summed in float32: twice the bytes, and no rounding on the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import numpy as np
from numpy.typing import DTypeLike

from pscale.config import Case, Precision
from pscale.dtypes import compute_dtype, has_16_bits, is_16_bit
from pscale.errors import PlanError
from pscale.mesh.axis import Array, Axis, Op, Pending
from pscale.mesh.grid import place
from pscale.nn.buffers import Buffers
from pscale.parallel import sharding
from pscale.parallel.replicas import Call

_BYTES = 2
_SUMS = ("all_reduce", "reduce_scatter", "reduce")


def check(case: Case) -> None:
    """Raise PlanError for what is not computed, or exchanged, in 16 bits."""
    dtype, plan = case.model.dtype, case.plan
    if case.model.kind == "collectives" and dtype != "float32":
        raise PlanError(
            f"precision {dtype} needs a model that computes; model.kind collectives sends float32"
        )
    if not is_16_bit(dtype):
        return
    if sharding.upcasts(case) and plan.reduction == "gather-broadcast":
        raise PlanError(
            "reduction gather-broadcast always adds in float32; reduce float32 is for bucketed, "
            "all-reduce and zero, reduce wire for all"
        )
    if plan.compression != "none":
        raise PlanError(
            f"compression {plan.compression} needs gradients of at least 32 bits, precision {dtype} has 16; "
            "compression none or precision float32 works"
        )


def calls(case: Case, rank: int) -> list[Call]:  # noqa: ARG001
    """Predict nothing: the calls are those of others, with smaller numbers."""
    return []


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


class UpcastAxis:
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
        copy = self._pool.take(x.shape, compute_dtype(x.dtype))
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


class GradientUpcast:
    """How gradients of type `dtype` are summed: as they are stored, or as float32."""

    def __init__(self, dtype: DTypeLike, precision: Precision):
        self._upcasts = precision.reduce == "float32" and has_16_bits(dtype)
        self._pool = Buffers()

    @property
    def total_bytes(self) -> int:
        """Memory of float32 copies."""
        return self._pool.total_bytes

    def over(self, axis: Axis) -> Axis:
        """Return the axis to sum over."""
        return cast("Axis", UpcastAxis(axis, self._pool)) if self._upcasts and axis.size > 1 else axis
