"""Expert parallelism: every rank of the axis has a share of the experts, and tokens travel to theirs.

The ranks split the batch as well. Routing is decided where a token is, from whole router weights, and the
number of slots is fixed, so every exchange moves the same: experts x sequences x room vectors, room for as
many tokens of a sequence as a rank may have to send to one expert.
Tensor ranks do not cut experts: they route, exchange and multiply alike or, with sequence parallelism, each
the tokens of its slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pscale.config import Case
from pscale.errors import PlanError
from pscale.mesh.axis import Array, Axis
from pscale.nn.buffers import Buffers
from pscale.nn.layer import Layer
from pscale.nn.param import Cut, Param, share
from pscale.nn.queue import room
from pscale.parallel import division, standing
from pscale.parallel.fitting import degrees, divisors
from pscale.parallel.replicas import TOKENS, Call

SYNC = tuple(dim for dim in TOKENS if dim != "ep")  # over which the gradients of experts are partial sums


class Exchange:
    """The experts of all ranks of `axis`, as one layer on all slots: (experts, rows, C) to the same.

    `experts` is this rank's share of them, (experts / size, size x rows, C).
    """

    def __init__(self, experts: Layer, axis: Axis, *, buffers: Buffers):
        self.experts, self.axis, self.buffers = experts, axis, buffers
        self.params: Sequence[Param] = experts.params

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Send slots to their experts and bring the outputs home."""
        y, cache = self.experts.forward(self._send(x))
        return self._return(y), cache

    def backward(self, dy: Array, cache: Any) -> Array:
        """Do the same with gradients: the exchange home is the adjoint of that away."""
        dx = self.experts.backward(self._send(dy), cache)
        assert dx is not None
        return self._return(dx)

    def _send(self, x: Array) -> Array:
        E, rows, C = x.shape
        size = self.axis.size
        arrived = self._swapped(self._exchanged(x.reshape(size, E // size, rows, C)))
        return arrived.reshape(E // size, size * rows, C)

    def _return(self, y: Array) -> Array:
        mine, rows, C = y.shape
        size = self.axis.size
        home = self._exchanged(self._swapped(y.reshape(mine, size, rows // size, C)))
        return home.reshape(mine * size, rows // size, C)

    def _exchanged(self, x: Array) -> Array:
        """Return what the other ranks send for `x`, which is given back."""
        arrived = self.buffers.take_exchange(x.shape, x.dtype)
        self.axis.all_to_all(x, arrived)
        self.buffers.end_exchange(arrived)
        self.buffers.give(x)
        return arrived

    def _swapped(self, x: Array) -> Array:
        """Return `x` with its first two dims swapped, so that the rows of an expert lie together."""
        first, second, *rest = x.shape
        if first == 1 or second == 1:
            return x.reshape(second, first, *rest)
        swapped = self.buffers.take((second, first, *rest), x.dtype)
        self.axis.copy(x.swapaxes(0, 1), swapped)
        self.buffers.give(x)
        return swapped


def cut(whole: tuple[int, ...], axis: Axis) -> Cut | None:
    """Return which of the experts, the first dim of a parameter, this rank of `axis` has."""
    if axis.size == 1:
        return None
    mine = share(whole[0], axis.size, axis.rank)
    return Cut(whole=whole, view=whole, index=(mine,), dims=("ep",))


def check(case: Case) -> None:
    """Raise PlanError if experts cannot be dealt out evenly."""
    model, plan = case.model, case.plan
    if model.kind != "moe":
        if plan.ep > 1:
            raise PlanError(
                f"ep {plan.ep} needs experts, and model.kind {model.kind} has none; "
                "ep 1 with dp rest would do, or model.kind moe"
            )
        return
    if model.experts % plan.ep:
        fits = degrees(plan, "ep", divisors(model.experts))
        raise PlanError(
            f"experts {model.experts} do not divide by ep {plan.ep}; {fits} would, or "
            f"experts {model.experts + -model.experts % plan.ep}"
        )


def calls(case: Case, rank: int) -> list[Call]:
    """Predict two exchanges of slots forward and two backward for each mixture, and the news of choices."""
    mixtures = sum(division.with_experts(case, name) for name in division.units(case, rank))
    made = []
    if case.plan.ep > 1:
        made.append(Call(axis="ep", verb="all_to_all", sent_bytes=slot_bytes(case), count=4 * mixtures))
    if case.plan.sequence_parts > 1:
        made.append(standing.call(case, mixtures))
    return division.per_step(case, made)


def slot_bytes(case: Case) -> int:
    """Return the size of the slots of a micro-batch, which every exchange moves."""
    model = case.model
    slots = model.experts * room(model, case.plan.sequence_parts) * division.sequences(case)
    return slots * model.width * division.item_bytes(case)
