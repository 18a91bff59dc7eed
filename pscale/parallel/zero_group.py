"""Parameters in shards: their memory, unit by unit, their exchange and their optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pscale.config import Case
from pscale.mesh.axis import Axis, Mesh
from pscale.nn.buffers import Array, zeros
from pscale.nn.offload.storage import Storage
from pscale.nn.optim import Elsewhere, Flat
from pscale.nn.optimizers import make_optimizer
from pscale.number import number
from pscale.parallel.gradients import Gradients, ShardedGradients, WholeGradients
from pscale.parallel.replicas import SETS, Group
from pscale.parallel.shards import Pool, ShardedUnit
from pscale.parallel.weights import ShardedWeights, Weights, WholeWeights
from pscale.parallel.widening import Summing


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The parameters of one unit in one group."""

    unit: ShardedUnit
    weights: Weights
    gradients: Gradients
    copies: int  # ranks that own the same

    @property
    def owned(self) -> Flat:
        """What this rank updates."""
        return Flat(self.weights.own, self.gradients.own, self.unit.params, self.unit.owned.start)


class ShardedGroup:
    """What a rank has of one group of parameters: `pieces` by number of the unit, and their `optimizer`."""

    def __init__(self, group: Group, mesh: Mesh, case: Case, storage: Storage | None):
        shared = tuple(dim for dim in group.sync if dim != SETS)
        axis, sets = mesh.axis(*shared), mesh.axis(*(dim for dim in group.sync if dim == SETS))
        units = [ShardedUnit(params=params, axis=axis) for params in group.units.values()]
        self._memory = _Memory(units, case)
        different = {"pp", *group.cut, *shared}
        copies = math.prod(size for dim, size in mesh.sizes.items() if dim not in different)
        made = zip(units, self._memory.weights(), self._memory.gradients(sets), strict=True)
        self.pieces = {
            number: Piece(unit=unit, weights=weights, gradients=gradients, copies=copies)
            for number, (unit, weights, gradients) in zip(group.units, made, strict=True)
        }
        flats = [piece.owned for piece in self.pieces.values()]
        elsewhere = Elsewhere(shards=axis.all_reduce, cuts=mesh.axis(*group.cut).all_reduce)
        self.optimizer = make_optimizer(case.train, flats, elsewhere, storage)

    @property
    def exchange_bytes(self) -> int:
        """Return what was ever allocated for weights and gradients that are here for a while."""
        return self._memory.exchange_bytes


class _Memory:
    """The memory of a group's units: what stays in one piece, and pools for what is here for a while.

    A group of one rank holds all.
    """

    def __init__(self, units: Sequence[ShardedUnit], case: Case):
        stage = case.plan.zero if units[0].axis.size > 1 else 1
        self._shards_weights, self._shards_gradients = stage == 3, stage >= 2
        self._units, self._dtype = units, number(case.model.dtype)
        self._summing = Summing(self._dtype, case.precision)
        self._keep = not case.plan.reshard_after_forward
        slot = max(unit.layout.padded for unit in units)
        self._gathered = Pool(self._dtype, 0 if self._keep else slot)
        self._contributed = Pool(self._dtype, slot)

    @property
    def exchange_bytes(self) -> int:
        """Return what was ever allocated for what does not stay."""
        return self._gathered.total_bytes + self._contributed.total_bytes + self._summing.total_bytes

    def weights(self) -> list[Weights]:
        """Return the weights of each unit as the plan wants them."""
        if not self._shards_weights:
            return [WholeWeights(unit, memory) for unit, memory in self._staying(whole=True)]
        return [
            ShardedWeights(unit, memory, pool=self._gathered, keep=self._keep)
            for unit, memory in self._staying(whole=False)
        ]

    def gradients(self, sets: Axis) -> list[Gradients]:
        """Return the gradients of each unit as the plan wants them, summed over `sets` too."""
        sets, over = self._summing.over(sets), self._summing.over(self._units[0].axis)
        if not self._shards_gradients:
            return [
                WholeGradients(unit, memory, over=over, sets=sets)
                for unit, memory in self._staying(whole=True)
            ]
        return [
            ShardedGradients(unit, memory, over=over, sets=sets, pool=self._contributed)
            for unit, memory in self._staying(whole=False)
        ]

    def _staying(self, *, whole: bool) -> Iterator[tuple[ShardedUnit, Array]]:
        """Yield each unit with its memory, padded: of the whole, or of this rank's shard."""
        sizes = [unit.layout.padded if whole else unit.layout.shard for unit in self._units]
        return zip(self._units, zeros(sizes, self._dtype), strict=True)
