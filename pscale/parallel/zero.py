"""ZeRO and fully sharded data parallelism: replicas share the optimizer's state, gradients and parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from numpy.typing import DTypeLike

from pscale.config import Case
from pscale.config.axes import ALL_AXES, SETS
from pscale.dtypes import dtype_of
from pscale.mesh.axis import Axis, Mesh
from pscale.nn.buffers import Array, zeros
from pscale.nn.offload.storage import Storage
from pscale.nn.optimizers import make_optimizer
from pscale.nn.optimizers.base import Elsewhere
from pscale.nn.optimizers.state import Flat
from pscale.nn.param import Param, Share, views
from pscale.parallel.gradients import Gradients, ShardedGradients, WholeGradients
from pscale.parallel.precision import gradient_dtype
from pscale.parallel.replicas import Group, grouped, square_norm
from pscale.parallel.shards import Pool, ShardedUnit, ShardedWeights, Weights, WholeWeights


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
        shared = tuple(axis for axis in group.sync if axis != SETS)
        axis, sets = mesh.axis(*shared), mesh.axis(*(axis for axis in group.sync if axis == SETS))
        units = [ShardedUnit(params=params, axis=axis) for params in group.units.values()]
        self._memory = _Memory(units, case)
        different = {"pp", *group.cut, *shared}
        copies = math.prod(size for axis, size in mesh.sizes.items() if axis not in different)
        made = zip(units, self._memory.weights(), self._memory.gradients(sets), strict=True)
        self.pieces = {
            number: Piece(unit=unit, weights=weights, gradients=gradients, copies=copies)
            for number, (unit, weights, gradients) in zip(group.units, made, strict=True)
        }
        flats = [piece.owned for piece in self.pieces.values()]
        elsewhere = Elsewhere(shards=axis, cuts=mesh.axis(*group.cut))
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
        self._units, self._dtype = units, dtype_of(case.model.dtype)
        self._gradient_dtype = gradient_dtype(case)
        self._keep = not case.plan.reshard_after_forward
        slot = max(unit.layout.padded for unit in units)
        self._gathered = Pool(self._dtype, 0 if self._keep else slot)
        self._contributed = Pool(self._gradient_dtype, slot)

    @property
    def exchange_bytes(self) -> int:
        """Return what was ever allocated for what does not stay."""
        return self._gathered.total_bytes + self._contributed.total_bytes

    def weights(self) -> list[Weights]:
        """Return the weights of each unit as the plan wants them."""
        if not self._shards_weights:
            return [WholeWeights(unit, memory) for unit, memory in self._staying(self._dtype, whole=True)]
        return [
            ShardedWeights(unit, memory, pool=self._gathered, keep=self._keep)
            for unit, memory in self._staying(self._dtype, whole=False)
        ]

    def gradients(self, sets: Axis) -> list[Gradients]:
        """Return the gradients of each unit as the plan wants them, summed over `sets` too."""
        over, dtype = self._units[0].axis, self._gradient_dtype
        if not self._shards_gradients:
            return [
                WholeGradients(unit, memory, over=over, sets=sets)
                for unit, memory in self._staying(dtype, whole=True)
            ]
        return [
            ShardedGradients(unit, memory, over=over, sets=sets, pool=self._contributed)
            for unit, memory in self._staying(dtype, whole=False)
        ]

    def _staying(self, dtype: DTypeLike, *, whole: bool) -> Iterator[tuple[ShardedUnit, Array]]:
        """Yield each unit with its memory, padded: of the whole, or of this rank's shard."""
        sizes = [unit.layout.padded if whole else unit.layout.shard for unit in self._units]
        return zip(self._units, zeros(sizes, dtype), strict=True)


class Sharded:
    """Every rank of a group's axis owns one shard of each unit; implements `Replicas`.

    With `zero` 1 the optimizer's state is in shards, with 2 also the gradients, with 3 also the weights: they
    are gathered for each use. A group of one rank holds all, and exchanges nothing.

    While a unit computes, the next one is gathered. Which that is, the first step shows: every step uses the
    units in the same order.
    """

    def __init__(
        self, units: Sequence[Sequence[Param]], mesh: Mesh, case: Case, storage: Storage | None = None
    ):
        self._groups = [ShardedGroup(group, mesh, case, storage) for group in grouped(units, mesh)]
        self._units = [
            [group.pieces[number] for group in self._groups if number in group.pieces]
            for number in range(len(units))
        ]
        self._pieces = [piece for unit in self._units for piece in unit]
        self._everywhere = mesh.axis(*ALL_AXES)
        self._reducing: list[Gradients] = []  # of the unit that ran backward last
        self._moving: list[Weights | Gradients] = []
        self._order: list[int] = []  # units in the order of their gathers in a step
        self._place = 0  # in that order

    def fill(self, seed: int, share: Share) -> None:
        """Give every parameter its initial value, and `share` it while it is whole."""
        for piece in self._pieces:
            piece.weights.fill(seed, share)

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
        """Sum the squares of all shards."""
        return square_norm(((piece.gradients.own, piece.copies) for piece in self._pieces), self._everywhere)

    def update(self, lr: float, scale: float) -> None:
        """Update this rank's shards; those that others hold whole travel while the next are updated."""
        for group in self._groups:
            group.optimizer.begin(lr, scale)
        for group in self._groups:
            for index, piece in enumerate(group.pieces.values()):
                group.optimizer.apply(index)
                piece.weights.publish()
                self._moving.append(piece.weights)
                self._progress()
        for piece in self._pieces:
            piece.weights.settle()

    def gradients(self) -> Iterator[tuple[Param, Array]]:
        """Yield every parameter with its summed gradient, gathered by unit; between finish and update."""
        for piece in self._pieces:
            own = piece.gradients.own
            shard, whole = zeros([piece.unit.layout.shard, piece.unit.layout.padded], own.dtype)
            shard[: own.size] = own
            piece.unit.axis.all_gather(shard, whole)
            yield from views(piece.unit.params, whole)

    def weights(self) -> Iterator[tuple[Param, Array]]:
        """Yield every parameter with its value, whole until the next is asked for; outside steps."""
        for piece in self._pieces:
            piece.weights.gather()
            for param in piece.unit.params:
                yield param, param.data
            piece.weights.settle()

    def memory_bytes(self) -> dict[str, int]:
        """Return what this rank holds by kind; padding and the memory of the pools are for the exchange."""
        kinds = dict.fromkeys(("parameters", "gradients", "optimizer", "exchange"), 0)
        for piece in self._pieces:
            for kind, memory in (("parameters", piece.weights), ("gradients", piece.gradients)):
                kinds[kind] += memory.held * memory.own.itemsize
                kinds["exchange"] += memory.padding * memory.own.itemsize
        kinds["optimizer"] = sum(state.nbytes for group in self._groups for state in group.optimizer.state)
        kinds["exchange"] += sum(group.exchange_bytes for group in self._groups)
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
