"""ZeRO and fully sharded data parallelism: replicas share the optimizer's state, gradients and parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pscale.config import Plan, Precision, Train
from pscale.mesh.axis import Axis, Mesh
from pscale.nn import kernels
from pscale.nn.offload.storage import Storage
from pscale.nn.optim import Elsewhere, Flat, Optimizer
from pscale.nn.optimizers import make_optimizer
from pscale.nn.param import Param
from pscale.parallel.gradients import Gradients, ShardedGradients, WholeGradients
from pscale.parallel.replicas import EVERYWHERE, SETS, Group, grouped
from pscale.parallel.shards import Pool, Shards, zeros
from pscale.parallel.weights import ShardedWeights, Weights, WholeWeights
from pscale.parallel.widening import AS_STORED, Summing

Array = NDArray[np.floating]


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """The parameters of one unit in one group."""

    params: Sequence[Param]
    weights: Weights
    gradients: Gradients
    shards: Shards
    axis: Axis
    copies: int  # ranks that own the same

    @property
    def owned(self) -> Flat:
        """What this rank updates."""
        return Flat(
            self.weights.own, self.gradients.own, self.params, self.shards.owned(self.axis.rank).start
        )


class Sharded:
    """Every rank of a group's axis owns one shard of each unit; implements `Replicas`.

    With `zero` 1 the optimizer's state is in shards, with 2 also the gradients, with 3 also the weights: they
    are gathered for each use. A group of one rank holds all, and exchanges nothing.

    While a unit computes, the next one is gathered. Which that is, the first step shows: every step uses the
    units in the same order.
    """

    def __init__(
        self,
        units: Sequence[Sequence[Param]],
        mesh: Mesh,
        plan: Plan,
        train: Train,
        dtype: DTypeLike,
        *,
        precision: Precision = AS_STORED,
        storage: Storage | None = None,
    ):
        self._units: list[list[_Piece]] = [[] for _ in units]
        self._pools: list[_Pools] = []
        self._updates: list[tuple[Optimizer, list[_Piece]]] = []  # of the groups
        self._everywhere = mesh.axis(*EVERYWHERE)
        for group in grouped(units, mesh):
            make_pools = partial(_Pools, plan=plan, dtype=dtype, precision=precision)
            make = partial(make_optimizer, train, storage=storage)
            self._add(group, mesh, make_pools, make)
        self._pieces = [piece for unit in self._units for piece in unit]
        self._reducing: list[Gradients] = []  # of the unit that ran backward last
        self._moving: list[Weights | Gradients] = []
        self._order: list[int] = []  # units in the order of their gathers in a step
        self._place = 0  # in that order
        for piece in self._pieces:
            piece.weights.fill(train.seed)

    def _add(
        self,
        group: Group,
        mesh: Mesh,
        make_pools: Callable[..., _Pools],
        make: Callable[[Sequence[Flat], Elsewhere], Optimizer],
    ) -> None:
        """Make the pieces of a group."""
        shared = tuple(dim for dim in group.sync if dim != SETS)
        axis, sets = mesh.axis(*shared), mesh.axis(*(dim for dim in group.sync if dim == SETS))
        layouts = {
            number: Shards(size=sum(param.size for param in params), parts=axis.size)
            for number, params in group.units.items()
        }
        pools = make_pools(layouts.values())
        self._pools.append(pools)
        different = {"pp", *group.cut, *shared}
        copies = math.prod(size for dim, size in mesh.sizes.items() if dim not in different)
        pieces = [
            _Piece(
                params=params,
                weights=pools.weights(params, layouts[number], axis),
                gradients=pools.gradients(params, layouts[number], axis, sets),
                shards=layouts[number],
                axis=axis,
                copies=copies,
            )
            for number, params in group.units.items()
        ]
        for number, piece in zip(group.units, pieces, strict=True):
            self._units[number].append(piece)
        elsewhere = Elsewhere(shards=axis.all_reduce, cuts=mesh.axis(*group.cut).all_reduce)
        optimizer = make([piece.owned for piece in pieces], elsewhere)
        self._updates.append((optimizer, pieces))

    def gather(self, unit: int) -> None:
        """Return when the weights of unit `unit` are whole; begin to gather the next unit's."""
        self._progress()
        if self._order[self._place : self._place + 1] != [unit]:
            self._order[self._place :] = [unit]
        self._place += 1
        for piece in self._units[unit]:
            piece.weights.gather()
        self._prefetch()

    def release(self, unit: int, *, again: bool = False) -> None:
        """Free the weights of unit `unit` unless they are kept for backward."""
        for piece in self._units[unit]:
            piece.weights.release(again=again)
        self._progress()
        self._prefetch()

    def drop(self, unit: int) -> None:
        """Free the weights of unit `unit`, which backward has used, unless another micro-batch needs them."""
        for piece in self._units[unit]:
            piece.weights.drop()
        self._progress()
        self._prefetch()

    def start_step(self) -> None:
        """Let the first contribution to each gradient replace what is there."""
        self._place = 0
        for piece in self._pieces:
            piece.gradients.start_step()

    def ready(self, unit: int, *, last: bool) -> None:
        """Begin to sum the gradients of unit `unit`; those of the unit before are there now."""
        for gradients in self._reducing:
            gradients.settle()
        self._reducing = [piece.gradients for piece in self._units[unit]]
        for piece in self._units[unit]:
            piece.gradients.reduce(last=last)
            self._moving.append(piece.gradients)
        self._progress()

    def finish(self) -> None:
        """Return when this rank has its shards of all sums, and no weights but those that stay."""
        del self._order[self._place :]
        self._reducing = []
        for piece in self._pieces:
            piece.gradients.settle()
            piece.weights.settle()
        for piece in self._pieces:
            piece.gradients.finish()

    def square_norm(self) -> float:
        """Sum the squares of all shards, each parameter counted once."""
        total = np.array(
            [sum(kernels.current().square_norm(piece.gradients.own) / piece.copies for piece in self._pieces)]
        )
        if self._everywhere.size > 1:
            self._everywhere.all_reduce(total)
        return float(total[0])

    def update(self, lr: float, scale: float) -> None:
        """Update this rank's shards; those that others hold whole travel while the next are updated."""
        for optimizer, _ in self._updates:
            optimizer.begin(lr, scale)
        for optimizer, pieces in self._updates:
            for number, piece in enumerate(pieces):
                optimizer.apply(number)
                piece.weights.publish()
                self._moving.append(piece.weights)
                self._progress()
        for piece in self._pieces:
            piece.weights.settle()

    def gradients(self) -> Iterator[tuple[Param, Array]]:
        """Yield every parameter with its summed gradient, gathered by unit; between finish and update."""
        for piece in self._pieces:
            own = piece.gradients.own
            shard, whole = zeros(piece.shards.shard, own.dtype), zeros(piece.shards.padded, own.dtype)
            shard[: own.size] = own
            piece.axis.all_gather(shard, whole)
            start = 0
            for param in piece.params:
                yield param, whole[start : start + param.size].reshape(param.shape)
                start += param.size

    def weights(self) -> Iterator[tuple[Param, Array]]:
        """Yield every parameter with its value, whole until the next is asked for; outside steps."""
        for piece in self._pieces:
            piece.weights.gather()
            for param in piece.params:
                yield param, param.data
            piece.weights.settle()

    def memory_bytes(self) -> dict[str, int]:
        """Return what this rank holds by kind; padding and the memory of the pools are for the exchange."""
        kinds = dict.fromkeys(("parameters", "gradients", "optimizer", "exchange"), 0)
        for piece in self._pieces:
            weights, gradients, itemsize = piece.weights, piece.gradients, piece.weights.own.itemsize
            kinds["parameters"] += weights.held * itemsize
            kinds["gradients"] += gradients.held * itemsize
            kinds["exchange"] += (weights.padding + gradients.padding) * itemsize
        kinds["optimizer"] = sum(state.nbytes for optimizer, _ in self._updates for state in optimizer.state)
        kinds["exchange"] += sum(pools.total_bytes for pools in self._pools)
        return kinds

    def _prefetch(self) -> None:
        """Begin to gather the unit that is used next."""
        for unit in self._order[self._place : self._place + 1]:
            for piece in self._units[unit]:
                piece.weights.start()
                self._moving.append(piece.weights)

    def _progress(self) -> None:
        """Give the library a chance to move what is under way."""
        self._moving = [moving for moving in self._moving if moving.poll()]


class _Pools:
    """The memory of a group's units that are here for a while, and the choice of what stays."""

    def __init__(self, layouts: Iterable[Shards], plan: Plan, dtype: DTypeLike, precision: Precision):
        self._plan, self._dtype = plan, dtype
        self._summing = Summing(dtype, precision)
        self._keep = not plan.reshard_after_forward
        slot = max(layout.padded for layout in layouts)
        self._gathered, self._contributed = Pool(dtype, 0 if self._keep else slot), Pool(dtype, slot)

    @property
    def total_bytes(self) -> int:
        """Return what was ever allocated."""
        return self._gathered.total_bytes + self._contributed.total_bytes + self._summing.total_bytes

    def weights(self, params: Sequence[Param], layout: Shards, axis: Axis) -> Weights:
        """Return the weights of a unit as the plan wants them; a group of one rank holds all."""
        if self._plan.zero < 3 or axis.size == 1:
            return WholeWeights(params, layout, axis, self._dtype)
        return ShardedWeights(params, layout, axis, self._dtype, pool=self._gathered, keep=self._keep)

    def gradients(self, params: Sequence[Param], layout: Shards, axis: Axis, sets: Axis) -> Gradients:
        """Return the gradients of a unit as the plan wants them."""
        axis, sets = self._summing.over(axis), self._summing.over(sets)
        if self._plan.zero < 2 or axis.size == 1:
            return WholeGradients(params, layout, axis, self._dtype, sets=sets)
        return ShardedGradients(params, layout, axis, self._dtype, sets=sets, pool=self._contributed)
