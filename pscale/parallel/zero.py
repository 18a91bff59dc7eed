"""Data parallelism: replicas hold all parameters, or share optimizer state, gradients, weights (ZeRO).

Rajbhandari et al., ZeRO, 2020; Zhao et al., PyTorch FSDP, 2023. Plain replicas hold shards of one rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pscale.config import Case
from pscale.config.axes import ALL_AXES, PARAMETER_AXES, SETS
from pscale.mesh.axis import Axis, Mesh, Tag
from pscale.mesh.grid import spanned
from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers, zeros
from pscale.nn.dtypes import compute_dtype, dtype_of
from pscale.nn.offload.storage import Storage
from pscale.nn.optimizers import WEIGHT, make_optimizer
from pscale.nn.optimizers.base import ProcessGroups
from pscale.nn.optimizers.state import Flat
from pscale.nn.param import Param, Share, views
from pscale.parallel.compression import Compressed, make_compressed
from pscale.parallel.reduction import make_reduction
from pscale.parallel.shards import (
    Gradients,
    Pool,
    ShardedGradients,
    ShardedUnit,
    ShardedWeights,
    Weights,
    WholeGradients,
    WholeWeights,
)
from pscale.runs.tensor_files import Elements, Tensor


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters that are summed over the same axis and cut by the same axes, unit by unit.

    Those that are `tied` make a group of their own, which is dealt out alike at both ends.
    """

    sync: tuple[str, ...]
    cut: tuple[str, ...]
    tied: bool
    units: dict[int, list[Param]]

    @property
    def params(self) -> list[Param]:
        """All parameters, in forward order."""
        return [param for unit in self.units.values() for param in unit]

    @property
    def slices(self) -> dict[int, slice]:
        """Where each unit lies in flat memory of all parameters."""
        slices, start = {}, 0
        for unit, params in self.units.items():
            stop = start + sum(param.size for param in params)
            slices[unit] = slice(start, stop)
            start = stop
        return slices


def square_norm(held: Iterable[tuple[NDArray[np.floating], int]], axis: Axis) -> float:
    """Sum squares of gradients over an axis; each comes with how many of its ranks hold the same."""
    squares = (kernels.current().square_norm(grad) / copies for grad, copies in held)
    total = np.array([sum(squares)], np.float64)
    if axis.size > 1:
        axis.all_reduce(total)
    return float(total[0])


def grouped(units: Sequence[Sequence[Param]], mesh: Mesh) -> list[Group]:
    """Sort the parameters of this rank's units into groups, in one order on every rank of an axis."""
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], bool], Group] = {}
    span = cache(partial(spanned, mesh.sizes))  # axes are few, parameters very many
    for number, params in enumerate(units):
        for param in params:
            sync, cut = span(param.sync), span(param.cut.axes if param.cut else ())
            key, new = (sync, cut, param.tied), Group(sync=sync, cut=cut, tied=param.tied, units={})
            group = groups.setdefault(key, new)
            group.units.setdefault(number, []).append(param)
    return list(groups.values())


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


class Held(NamedTuple):
    """A tensor of the training's state as this rank holds it: copy number `copy` of `copies` alike."""

    tensor: Tensor
    copy: int
    copies: int


class ParameterGroup:
    """What a rank has of one group of parameters: their `pieces`, the sum of gradients, the `optimizer`.

    Ranks that share them have a piece for each unit, and sum each by itself. Replicas have one of all units,
    a shard of one rank, and the `reduction` of the plan.
    """

    def __init__(self, group: Group, mesh: Mesh, case: Case, storage: Storage | None):
        plan, shares = case.plan, case.plan.zero > 0
        shared = tuple(axis for axis in group.sync if axis != SETS) if shares else ()
        sets = tuple(axis for axis in group.sync if axis == SETS) if shares else ()
        axis, self._replicas = mesh.axis(*shared), mesh.axis(*(() if shares else group.sync))
        params = list(group.units.values()) if shares else [group.params]
        units = [ShardedUnit(each, axis) for each in params]
        self._memory = _Memory(units, case, mesh.axis(*sets))
        counting, different = mesh.sizes if shares else PARAMETER_AXES, {"pp", *group.cut, *shared}
        copies = math.prod(mesh.sizes.get(each, 1) for each in counting if each not in different)
        copies *= 1 + group.tied
        made = zip(units, self._memory.weights, self._memory.gradients, strict=True)
        self.pieces = [
            Piece(unit=unit, weights=weights, gradients=gradients, copies=copies)
            for unit, weights, gradients in made
        ]
        self._group = group
        self.by_unit = dict(zip(group.units, self.pieces, strict=True)) if shares else {}
        grad, shapes = self.pieces[0].gradients.own, [param.shape for param in group.params]
        self._compressed = make_compressed(plan, grad, shapes, self._replicas)
        self.reduction = self._compressed or make_reduction(plan, grad, group.slices, self._replicas)
        groups = ProcessGroups(shards=axis, cuts=mesh.axis(*group.cut))
        self.optimizer = make_optimizer(case.train, [piece.owned for piece in self.pieces], groups, storage)
        # Of what ranks own a shard of, of what all of them have, and of what each has of its own.
        self._copies = [_copy(mesh, {"pp", *group.cut, *more}) for more in (shared, (), group.sync)]

    @property
    def exchange_bytes(self) -> int:
        """Return what was ever allocated for sums, and for weights and gradients that do not stay."""
        return self._memory.exchange_bytes + self.reduction.buffer_bytes

    def state(self, *, changes: bool, held_back: bool) -> Iterator[Held]:
        """Yield weights, and what optimizer and compression keep: coarse weights are among the first's."""
        masters = set[Param]()
        for param, kind, elements, memory, everywhere in self.optimizer.kept(changes=changes):
            masters |= {param} if kind == WEIGHT else set()
            if memory.size:
                yield Held(Tensor(f"{param.key}:{kind}", elements, memory), *self._copies[everywhere])
        for piece in self.pieces:
            for run in piece.owned.runs:
                if run.size and run.param not in masters:
                    elements, memory = run.param.elements(run.first, run.size), piece.weights.own[run.place]
                    yield Held(Tensor(f"{run.param.key}:{WEIGHT}", elements, memory), *self._copies[0])
        if held_back and self._compressed is not None:
            yield from self._held_back(self._compressed)

    def _held_back(self, compressed: Compressed) -> Iterator[Held]:
        """Yield what each replica holds back, and factors of matrices; a table has some of either end."""
        group, replicas = self._group, self._replicas
        heads = (group.tied and unit > 0 for unit, params in group.units.items() for _ in params)
        memories, factors = views(group.params, compressed.held_back), chain(compressed.factors, repeat(None))
        for (param, memory), factor, is_head in zip(memories, factors, heads, strict=False):
            key, box = f"{param.key}:{'head.' * is_head}", param.elements(0, param.size)
            box = box._replace(dims=((replicas.rank, 1, math.prod(param.whole)), *box.dims))
            yield Held(Tensor(f"{key}held_back", box, memory.reshape(-1)), *self._copies[2])
            if factor is not None:
                box = Elements(((_factor_start(param, factor.size), factor.size, 1),), 0, factor.size)
                yield Held(Tensor(f"{key}factor", box, factor.reshape(-1)), *self._copies[1])

    def gradients(self, tie: Callable[[Sequence[Array]], None]) -> Iterator[tuple[Piece, Array]]:
        """Yield this rank's shards of the sums; what compression holds back on any rank is added to them.

        `tie` adds up what both ends of a table hold back.
        """
        for piece in self.pieces:
            total = piece.gradients.own
            if self._compressed is not None:
                total = self._compressed.held_back.copy()
                self._replicas.all_reduce(total)
                tie(self.ends(piece, total))
                total += piece.gradients.own
            yield piece, total

    def ends(self, piece: Piece, memory: Array) -> Sequence[Array]:
        """Return the parts of `memory` that are of the ends of a table which this rank has, one or two."""
        return np.split(memory, len(piece.unit.params)) if self._group.tied else ()


def _factor_start(param: Param, size: int) -> int:
    """Return where the factor of a part, of so many numbers, begins behind those of the parts before it.

    Parts that have some of the columns need not have the same number of them.
    """
    if param.cut is None:
        return 0
    columns = param.shape[-1]
    if columns == param.whole[-1]:
        return param.cut.rank * size
    return param.cut.before * columns // param.size * (size // columns)


def _copy(mesh: Mesh, different: Set[str]) -> tuple[int, int]:
    """Return the number of this rank among those that differ along no axis of `different`, and theirs."""
    number, count = 0, 1
    for axis in (axis for axis in mesh.sizes if axis not in different):
        number = number * mesh.sizes[axis] + mesh.coordinates[axis]
        count *= mesh.sizes[axis]
    return number, count


class _Memory:
    """The memory of a group's units: what stays in one piece, and pools for what is here for a while.

    A shard of one rank is whole. Gradients are summed over `sets` too.
    """

    def __init__(self, units: Sequence[ShardedUnit], case: Case, sets: Axis):
        over, dtype = units[0].axis, dtype_of(case.model.dtype)
        stage = case.plan.zero if over.size > 1 else 1
        sums = compute_dtype(dtype) if case.precision.reduce == "float32" else dtype
        keep, slot = not case.plan.reshard_after_forward, max(unit.layout.padded for unit in units)
        self._gathered, self._contributed = Pool(dtype, 0 if keep else slot), Pool(sums, slot)
        staying = _staying(units, dtype, whole=stage <= 2)
        self.weights: Sequence[Weights] = (
            [ShardedWeights(unit, memory, pool=self._gathered, keep=keep) for unit, memory in staying]
            if stage == 3
            else [WholeWeights(unit, memory) for unit, memory in staying]
        )
        staying, exchange = _staying(units, sums, whole=stage <= 1), {"over": over, "sets": sets}
        self.gradients: Sequence[Gradients] = (
            [ShardedGradients(unit, memory, pool=self._contributed, **exchange) for unit, memory in staying]
            if stage >= 2
            else [WholeGradients(unit, memory, **exchange) for unit, memory in staying]
        )

    @property
    def exchange_bytes(self) -> int:
        """Return what was ever allocated for what does not stay."""
        return self._gathered.total_bytes + self._contributed.total_bytes


def _staying(
    units: Sequence[ShardedUnit], dtype: DTypeLike, *, whole: bool
) -> Iterator[tuple[ShardedUnit, Array]]:
    """Yield each unit with its memory, padded: of the whole, or of this rank's shard."""
    sizes = [unit.layout.padded if whole else unit.layout.shard for unit in units]
    return zip(units, zeros(sizes, dtype), strict=True)


class Replicas:
    """A rank's copy, or share, of the parameters: their memory, their exchange and their update.

    With `zero` 1 the optimizer's state is in shards, with 2 also the gradients, with 3 also the weights: they
    are gathered for each use. Without, every replica has all of them: a shard of one rank.

    While a unit computes, the next one is gathered. Which that is, the first step shows: every step uses the
    units in the same order.
    """

    def __init__(
        self, units: Sequence[Sequence[Param]], mesh: Mesh, case: Case, storage: Storage | None = None
    ):
        """Take memory for the parameters of this rank's units; `storage` is for what the plan offloads."""
        storage = storage if case.plan.offloads_state else None
        self._groups = [ParameterGroup(group, mesh, case, storage) for group in grouped(units, mesh)]
        self._units = [
            [group.by_unit[number] for group in self._groups if number in group.by_unit]
            for number in range(len(units))
        ]
        pieces = self._units if case.plan.zero else [group.pieces for group in self._groups]
        self._pieces = [piece for each in pieces for piece in each]
        self._different = mesh.axis(*(ALL_AXES if case.plan.zero else PARAMETER_AXES))
        self.updates = 0
        self._reducing: list[Gradients] = []  # of the unit that ran backward last
        self._tied = [
            end
            for group in self._groups
            for piece in group.pieces
            for end in group.ends(piece, piece.gradients.own)
        ]
        self._stages, self._arrived = mesh.axis("pp"), Buffers()
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
        """Free the weights of unit `unit` unless they are kept for backward.

        `again`: the forward that used them was one for a backward to come, which repeats an earlier one.
        """
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
        """Begin to sum the gradients of unit `unit`, final for a micro-batch, the step's last if `last`.

        Those of the unit before are there now.
        """
        for gradients in self._reducing:
            gradients.settle()
        self._reducing = [piece.gradients for piece in self._units[unit]]
        for piece in self._units[unit]:
            piece.gradients.reduce(last=last)
            self._moving.append(piece.gradients)
        if last:
            for group in self._groups:
                group.reduction.ready(unit)
        self._progress()

    @contextmanager
    def forward_alone(self) -> Iterator[None]:
        """Let units be used in another order than in a step, which is remembered; nothing of them stays."""
        order, self._order, self._place = self._order, [], 0
        yield
        for piece in self._pieces:
            piece.weights.settle()
        self._order = order

    def finish(self) -> None:
        """Return when this rank has its shards of all sums, and no weights but those that stay."""
        del self._order[self._place :]
        self._reducing = []
        for piece in self._pieces:
            piece.gradients.settle()
            piece.weights.settle()
        for piece in self._pieces:
            piece.gradients.finish()
        for group in self._groups:
            group.reduction.finish()
        self._tie(self._tied)

    def _tie(self, ends: Sequence[Array]) -> None:
        """Add up what both ends of a table have: two units, or the first and the last stage."""
        if not ends:
            return
        mine, *others = ends
        if others:
            mine += others[0]
            np.copyto(others[0], mine)
            return
        other = self._arrived.take(mine.shape, mine.dtype)
        partner = self._stages.size - 1 - self._stages.rank
        arriving = self._stages.start_receive(other, partner, Tag.TIED)
        leaving = self._stages.start_send(mine, partner, Tag.TIED)
        arriving.wait()
        leaving.wait()
        mine += other

    def square_norm(self) -> float:
        """Return the squared norm of the whole model's gradient."""
        return square_norm(((piece.gradients.own, piece.copies) for piece in self._pieces), self._different)

    def update(self, lr: float, scale: float) -> None:
        """Update this rank's shards; those that others hold whole travel while the next are updated."""
        self.updates += 1
        for group in self._groups:
            group.optimizer.begin(lr, scale, self.updates)
        for group in self._groups:
            for index, piece in enumerate(group.pieces):
                group.optimizer.apply(index)
                piece.weights.publish()
                self._moving.append(piece.weights)
                self._progress()
        for piece in self._pieces:
            piece.weights.settle()

    def state(self, *, changes: bool = False, held_back: bool = True) -> Iterator[Held]:
        """Yield all that one step leaves for the next, each until the next; outside steps, and to the end.

        Changed weights are then sent to those that hold them too. What is held back may be left out.
        """
        for group in self._groups:
            yield from group.state(changes=changes, held_back=held_back)
        for piece in self._pieces if changes else ():
            piece.weights.publish()
            piece.weights.settle()

    def gradients(self) -> Iterator[tuple[Param, Array]]:
        """Yield every parameter with its summed gradient, gathered by unit; between finish and update."""
        for group in self._groups:
            for piece, own in group.gradients(self._tie):
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
        kinds["exchange"] += sum(group.exchange_bytes for group in self._groups) + self._arrived.total_bytes
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
