"""Bare collectives: a model that learns nothing, whose forward is every verb on every axis, one by one.

Its backward starts those that can be started and computes meanwhile, for about as long as they took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from pscale.config import Model
from pscale.mesh.axis import Array, Axis, Mesh, Op, Pending, Tag
from pscale.nn.buffers import Buffers
from pscale.nn.dtypes import dtype_of
from pscale.nn.param import Param

AXES = ("dp", "tp")
_POLLS = 8  # chances for the library to move a started call
_WORK = 32  # rows of the matrices of float32 that are multiplied meanwhile

Exchange = Callable[[], object]
Start = Callable[[], Sequence[Pending]]


@dataclass(frozen=True)
class Arrays:
    """What is exchanged: `whole` and `other` of the message's size, a row of each rank's; `op` reduces it."""

    whole: Array
    other: Array
    op: Op

    @property
    def part(self) -> Array:
        """The share of this rank."""
        return self.other[:1]


class Collectives:
    """All verbs on all axes of the plan that have more than one rank: a layer without parameters."""

    params: Sequence[Param] = ()

    def __init__(self, model: Model, mesh: Mesh, *, buffers: Buffers):
        self.message_bytes, self.calls, self.buffers = model.message_bytes, model.calls, buffers
        self._dtype, self._op = dtype_of(model.dtype), model.op
        self._axes = [axis for axis in map(mesh.axis, AXES) if axis.size > 1]
        self._took_s: dict[tuple[str, str], float] = {}  # by axis and verb
        self._factors = [np.zeros((_WORK, _WORK), np.float32) for _ in range(3)]

    def forward(self, x: Array) -> tuple[Array, None]:
        """Make every call, one after another."""
        for axis in self._axes:
            self._exchange(axis, self._take(axis))
        y = self.buffers.take(x.shape, x.dtype)
        y.fill(0)
        return y, None

    def backward(self, dy: Array, cache: None) -> None:  # noqa: ARG002
        """Start calls, and multiply small matrices until they should be complete."""
        for axis in self._axes:
            self._exchange_beside_work(axis, self._take(axis))

    def _exchange(self, axis: Axis, arrays: Arrays) -> None:
        for verb, exchange in exchanges(axis, arrays).items():
            axis.barrier()
            begin = perf_counter()
            for _ in range(self.calls):
                exchange()
            self._took_s[axis.name, verb] = (perf_counter() - begin) / self.calls

    def _exchange_beside_work(self, axis: Axis, arrays: Arrays) -> None:
        for verb, start in starts(axis, arrays).items():
            axis.barrier()
            for _ in range(self.calls):
                self._compute(start(), self._took_s[axis.name, verb])

    def _compute(self, pending: Sequence[Pending], seconds: float) -> None:
        begin, (a, b, c) = perf_counter(), self._factors
        for poll in range(1, _POLLS + 1):
            while perf_counter() - begin < seconds * poll / _POLLS:
                np.matmul(a, b, out=c)
            for each in pending:
                each.poll()
        for each in pending:
            each.wait()

    def _take(self, axis: Axis) -> Arrays:
        shape = axis.size, self.message_bytes // self._dtype.itemsize // axis.size
        whole, other = (self.buffers.take_exchange(shape, self._dtype) for _ in range(2))
        for array in (whole, other):
            array.fill(0)  # reductions stay small, and pages are there
        return Arrays(whole, other, self._op)


class Nothing:
    """The loss of a model that has nothing to learn."""

    def forward(self, y: Array, targets: Array, weight: float) -> tuple[float, Array]:  # noqa: ARG002
        """Return none, and what came as its gradient."""
        return 0.0, y


def exchanges(axis: Axis, arrays: Arrays) -> dict[str, Exchange]:
    """Return all verbs; the larger array of each is of the message's size."""
    whole, other, part, op = arrays.whole, arrays.other, arrays.part, arrays.op
    root = axis.rank == 0

    def there_and_back() -> None:
        for pending in starts(axis, arrays)["send"]():
            pending.wait()

    return {
        "all_reduce": lambda: axis.all_reduce(whole, op),
        "all_gather": lambda: axis.all_gather(part, whole),
        "reduce_scatter": lambda: axis.reduce_scatter(whole, part, op=op),
        "all_to_all": lambda: axis.all_to_all(whole, other),
        "broadcast": lambda: axis.broadcast(whole),
        "reduce": lambda: axis.reduce(whole, op=op),
        "gather": lambda: axis.gather(part, whole[:, None] if root else None),
        "scatter": lambda: axis.scatter(whole[:, None] if root else None, part),
        "send": there_and_back,
    }


def starts(axis: Axis, arrays: Arrays) -> dict[str, Start]:
    """Return the verbs that can be started."""
    whole, other, part, op = arrays.whole, arrays.other, arrays.part, arrays.op
    after, before = (axis.rank + 1) % axis.size, (axis.rank - 1) % axis.size
    return {
        "all_reduce": lambda: [axis.start_all_reduce(whole, op)],
        "all_gather": lambda: [axis.start_all_gather(part, whole)],
        "reduce_scatter": lambda: [axis.start_reduce_scatter(whole, part, op=op)],
        "send": lambda: [
            axis.start_receive(other, before, Tag.MESSAGE),
            axis.start_send(whole, after, Tag.MESSAGE),
        ],
    }
