"""Pipeline parallelism: consecutive units on different ranks, micro-batches on their way through them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from numpy.typing import DTypeLike

from pscale.config import Model, Plan
from pscale.mesh.axis import Array, Axis, Pending, Tag
from pscale.nn import counts
from pscale.nn.buffers import Buffers, zeros
from pscale.parallel.matrix.grid import activation_parts
from pscale.parallel.schedule import Action, Timetable


def timetable(plan: Plan, micro_batches: int) -> Timetable:
    """Return who does what in a step. A stage alone holds the model in one part: it has nobody to send to."""
    return Timetable(
        schedule=plan.schedule,
        stages=plan.pp,
        micro_batches=micro_batches,
        chunks=plan.virtual_stages if plan.pp > 1 else 1,
    )


def partition(costs: Sequence[float], parts: int) -> list[range]:
    """Cut a row of units into consecutive parts of at least one each.

    The most expensive part, for which all others wait, is as cheap as can be; among such cuts the costs are
    as even as can be.
    """
    assert 0 < parts <= len(costs), f"{len(costs)} units do not make {parts} parts"
    heaviest, _ = _cut(tuple(costs), parts, limit=None)
    _, cuts = _cut(tuple(costs), parts, limit=heaviest)
    return [range(start, stop) for start, stop in zip((0, *cuts), (*cuts, len(costs)), strict=True)]


@lru_cache(maxsize=64)
def _cut(costs: tuple[float, ...], parts: int, limit: float | None) -> tuple[float, tuple[int, ...]]:
    """Return the smallest largest cost of a part or, with a `limit` on it, the smallest sum of squares.

    And after which units to cut for it.
    """
    sums = [sum(costs[:stop]) for stop in range(len(costs) + 1)]
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0, ())}
    for part in range(parts):
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (value, cuts) in best.items():
            for stop in range(start + 1, len(costs) + 1):
                cost = sums[stop] - sums[start]
                if limit is not None and cost > limit:
                    break
                total = max(value, cost) if limit is None else value + cost * cost
                if stop not in found or total < found[stop][0]:
                    found[stop] = total, (*cuts, start) if part else ()
        best = found
    return best[len(costs)]


def stage_units(model: Model, plan: Plan, stage: int) -> dict[int, range]:
    """Return the numbers of the model's units that `stage` holds, by part, in forward order."""
    table = timetable(plan, micro_batches=plan.pp)
    cuts = partition([flops for _, flops in counts.unit_flops(model)], table.parts)
    return {part: cuts[part] for part in range(stage, table.parts, table.stages)}


def activation_shape(model: Model, plan: Plan, sequences: int) -> tuple[int, int, int]:
    """Return the shape of what one rank sends to the next stage for `sequences` sequences."""
    rows, columns = activation_parts(plan)
    return sequences // rows, model.sequence // plan.sequence_parts, model.width // columns


class Boundary:
    """Both ends of a stage: what comes in is received ahead, what goes out is on its way while it computes.

    All messages have one tag: a stage receives from each neighbour in the order in which that one sends.
    """

    def __init__(
        self,
        axis: Axis,
        table: Timetable,
        shape: tuple[int, ...],
        *,
        dtype: DTypeLike,
        buffers: Buffers,
    ):
        self.actions = table.actions(axis.rank)
        self._axis, self._table, self._shape, self._dtype = axis, table, shape, dtype
        self._buffers = buffers
        # Worked out once: a timetable is as long as there are micro-batches, and has as many lines as stages.
        self._receivers = [action for action in self.actions if self.receives(action)]
        orders = {stage: table.arriving(axis.rank, stage) for stage in range(table.stages)}
        self._orders = {stage: order for stage, order in orders.items() if order}
        self._needs: deque[Action] = deque()
        self._arriving: dict[int, deque[Action]] = {}
        self._receiving: dict[Action, tuple[Array, Pending]] = {}
        self._sending: deque[tuple[Array, Pending]] = deque()

    def start_step(self) -> None:
        """Expect the messages of one step."""
        assert not any((self._needs, self._receiving, self._sending)), "the last step is not over"
        self._needs.extend(self._receivers)
        self._arriving = {stage: deque(order) for stage, order in self._orders.items()}

    def receives(self, action: Action) -> bool:
        """Tell whether the input of `action` comes from another stage."""
        return self._table.source(action) is not None

    def sends(self, action: Action) -> bool:
        """Tell whether the output of `action` goes to another stage."""
        return self._table.target(action) is not None

    def receive(self, action: Action) -> Array:
        """Return the input of `action` when it is there."""
        self._start(self._needs.popleft())
        self._look_ahead()
        array, pending = self._receiving.pop(action)
        pending.wait()
        return self._buffers.end_exchange(array)

    def send(self, action: Action, output: Array) -> None:
        """Send the output of `action`; its memory is free when it is gone."""
        target = self._table.target(action)
        assert target is not None, "the output stays here"
        pending = self._axis.start_send(output, self._table.stage_of(target), Tag.ACTIVATIONS)
        self._sending.append((self._buffers.begin_exchange(output), pending))
        self._look_ahead()

    def receive_copy(self, action: Action) -> Array:
        """Return the input of a forward outside steps, in memory of its own: the pool stays as it is."""
        source, [array] = self._table.source(action), zeros([math.prod(self._shape)], self._dtype)
        assert source is not None
        array = array.reshape(self._shape)
        self._axis.start_receive(array, self._table.stage_of(source), Tag.ACTIVATIONS).wait()
        return array

    def send_copy(self, action: Action, output: Array) -> Pending:
        """Begin sending the output of a forward outside steps, likewise."""
        target = self._table.target(action)
        assert target is not None
        return self._axis.start_send(output.copy(), self._table.stage_of(target), Tag.ACTIVATIONS)

    def finish(self) -> None:
        """Return when all that was sent is gone."""
        while self._sending:
            self._sending[0][1].wait()
            self._sending.popleft()

    def _look_ahead(self) -> None:
        """Start receiving what is needed next, and free what is gone."""
        if self._needs:
            self._start(self._needs[0])
        while self._sending and self._sending[0][1].poll():
            self._sending.popleft()

    def _start(self, action: Action) -> None:
        """Start receiving the input of `action`, and before it whatever its sender sends before it."""
        source = self._table.source(action)
        assert source is not None
        neighbour = self._table.stage_of(source)
        while action not in self._receiving:
            coming = self._arriving[neighbour].popleft()
            array = self._buffers.take_exchange(self._shape, self._dtype)
            pending = self._axis.start_receive(array, neighbour, Tag.ACTIVATIONS)
            self._receiving[coming] = array, pending
