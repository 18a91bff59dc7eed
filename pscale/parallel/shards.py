"""A unit's parameters as one flat array in equal shards, and the memory that such arrays lie in.

Weights of which every rank owns a shard are held whole, or gathered for use. Gradients are summed so that
every rank has its shard: once a step, or as they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pscale.mesh.axis import Axis, Pending
from pscale.nn.buffers import Buffers
from pscale.nn.param import Param, Share, fill, views

Array = NDArray[np.floating]

_ELSEWHERE: Array = np.empty(0)  # what a parameter shows while its memory is not here: any use of it fails


@dataclass(frozen=True, kw_only=True)
class Shards:
    """How `size` elements are dealt out to `parts` ranks: padded to equal shards."""

    size: int
    parts: int

    @property
    def shard(self) -> int:
        """Elements of one shard."""
        return -(-self.size // self.parts)

    @property
    def padded(self) -> int:
        """Elements of all shards."""
        return self.shard * self.parts

    def count(self, part: int) -> int:
        """Return how many elements part `part` owns: fewer than a shard, or none, at the end."""
        return min(max(self.size - part * self.shard, 0), self.shard)

    def owned(self, part: int) -> slice:
        """Return where these elements are."""
        start = part * self.shard
        return slice(start, start + self.count(part))


class ShardedUnit:
    """The parameters of a unit, dealt out over an axis as `layout` says; this rank updates those `owned`."""

    def __init__(self, params: Sequence[Param], axis: Axis):
        self.params, self.axis = params, axis
        self.layout = Shards(size=sum(param.size for param in params), parts=axis.size)
        self.owned = self.layout.owned(axis.rank)
        self.count = self.layout.count(axis.rank)


class Pool:
    """Memory for units that are here for a while: all slots of one size, or without `slot` of the unit's."""

    def __init__(self, dtype: DTypeLike, slot: int = 0):
        self._slot, self._dtype, self._buffers = slot, np.dtype(dtype), Buffers()

    @property
    def total_bytes(self) -> int:
        """Return what was ever allocated."""
        return self._buffers.total_bytes

    def take(self, layout: Shards) -> Array:
        """Return uninitialised memory for a padded unit."""
        return self._buffers.take((max(self._slot, layout.padded),), self._dtype)[: layout.padded]


def show(params: Sequence[Param], kind: Literal["data", "grad"], memory: Array) -> None:
    """Let `data` or `grad` of the parameters be views of flat memory, one after another."""
    for param, view in views(params, memory):
        setattr(param, kind, view)


def hide(params: Sequence[Param], kind: Literal["data", "grad"]) -> None:
    """Let nobody use `data` or `grad` of the parameters."""
    for param in params:
        setattr(param, kind, _ELSEWHERE)


class UnderWay:
    """An exchange of a unit that was started, if there is one."""

    def __init__(self) -> None:
        self.pending: Pending | None = None

    def poll(self) -> bool:
        """Let it make progress; true while it is under way."""
        return self.pending is not None and not self.pending.poll()

    def finish(self) -> bool:
        """Return when it is complete; false if there is none."""
        if self.pending is None:
            return False
        self.pending.wait()
        self.pending = None
        return True


class Weights:
    """The weights of a unit; `own` is what this rank updates, `held` and `padding` count what stays.

    Those that are whole on every rank need nothing done before their use, or after it.
    """

    own: Array
    held: int
    padding: int

    def __init__(self) -> None:
        self._gathering = UnderWay()

    def start(self) -> None:
        """Begin to make the weights whole, unless they are."""

    def gather(self) -> None:
        """Return when the weights are whole."""

    def poll(self) -> bool:
        """Let an all-gather make progress; true while it is under way."""
        return self._gathering.poll()

    def release(self, *, again: bool) -> None:
        """Be told that forward is done; `again`, what was done before, for backward."""

    def drop(self) -> None:
        """Be told that backward is done."""

    def publish(self) -> None:
        """Begin to tell the others of an update; `settle` ends it."""

    def settle(self) -> None:
        """Return when nothing is under way."""
        self._gathering.finish()

    def fill(self, seed: int, share: Share) -> None:
        """Set initial values, each whole when `share` is told of it."""
        raise NotImplementedError


class WholeWeights(Weights):
    """Whole on every rank, in `memory`; after an update every rank sends its shard to all, in place."""

    def __init__(self, unit: ShardedUnit, memory: Array):
        super().__init__()
        self._params, self._axis, self._whole = unit.params, unit.axis, memory
        layout = unit.layout
        self._shard = self._whole[unit.axis.rank * layout.shard :][: layout.shard]
        self.own = self._whole[unit.owned]
        self.held, self.padding = layout.size, layout.padded - layout.size
        show(unit.params, "data", self._whole)

    def publish(self) -> None:
        """Begin to gather the updated shards."""
        if self._axis.size > 1:
            self._gathering.pending = self._axis.start_all_gather(self._shard, self._whole)

    def fill(self, seed: int, share: Share) -> None:
        """Set initial values."""
        fill(self._params, seed, share)


class ShardedWeights(Weights):
    """Only this rank's shard stays, in `memory`; the whole is gathered into that of the pool for each use.

    With `keep` it stays from forward to backward, for as long as any micro-batch is between the two.
    """

    def __init__(self, unit: ShardedUnit, memory: Array, *, pool: Pool, keep: bool):
        super().__init__()
        self._unit, self._params, self._shard, self._pool, self._keep = unit, unit.params, memory, pool, keep
        self.own = memory[: unit.count]
        self.held, self.padding = unit.count, memory.size - unit.count
        self._whole: Array | None = None
        self._between = 0  # micro-batches between their forward and their backward
        hide(unit.params, "data")

    def start(self) -> None:
        """Begin to gather the shards, unless that was done."""
        if self._whole is None:
            self._whole = self._pool.take(self._unit.layout)
            self._gathering.pending = self._unit.axis.start_all_gather(self._shard, self._whole)

    def gather(self) -> None:
        """Gather the shards, unless they are here."""
        self.start()
        if self._gathering.finish():
            assert self._whole is not None
            show(self._params, "data", self._whole)

    def release(self, *, again: bool) -> None:
        """Free the whole, or keep it for backward."""
        if not self._keep:
            self.settle()
        elif not again:
            self._between += 1

    def drop(self) -> None:
        """Free the whole unless another micro-batch needs it."""
        self._between -= 1
        if not self._keep or self._between <= 0:
            self.settle()

    def settle(self) -> None:
        """Free the whole, if it is here."""
        self._between = 0
        if self._whole is None:
            return
        super().settle()  # where it was fetched, and not used
        hide(self._params, "data")
        self._whole = None

    def fill(self, seed: int, share: Share) -> None:
        """Draw the whole into memory of the pool and keep the shard."""
        whole = self._pool.take(self._unit.layout)
        show(self._params, "data", whole)
        fill(self._params, seed, share)
        np.copyto(self.own, whole[self._unit.owned])
        hide(self._params, "data")


class Gradients:
    """The gradients of a unit; `own` is this rank's of the sum, `held` and `padding` count what stays."""

    own: Array
    held: int
    padding: int

    def __init__(self, unit: ShardedUnit, *, over: Axis, sets: Axis):
        self._params, self._layout, self._axis, self._sets = unit.params, unit.layout, over, sets
        self._sum = UnderWay()  # of hybrid sharding: of shards, over the sets that each have all of them

    def start_step(self) -> None:
        """Let the first contribution to each gradient replace what is there."""
        for param in self._params:
            param.stale = True

    def reduce(self, *, last: bool) -> None:
        """Be told that the gradients of a micro-batch are final; the last one of the step if `last`."""
        raise NotImplementedError

    def poll(self) -> bool:
        """Let a sum make progress; true while it is under way."""
        raise NotImplementedError

    def settle(self) -> None:
        """Free memory of the pool that a sum under way needs: return when it is there."""

    def finish(self) -> None:
        """Return when `own` is the sum over all that hold these parameters."""
        self.settle()
        self._sum.finish()

    def _complete(self, whole: Array) -> None:
        """Clear what no layer contributed to, and the padding."""
        for param in self._params:
            param.accumulator()
        whole[self._layout.size :] = 0


class WholeGradients(Gradients):
    """Gradients of the whole unit stay, summed once a step; the shard of the sum lies at their start."""

    def __init__(self, unit: ShardedUnit, memory: Array, *, over: Axis, sets: Axis):
        super().__init__(unit, over=over, sets=sets)
        layout, self._whole = unit.layout, memory
        self._shard = self._whole[: layout.shard]
        self.own = self._shard[: unit.count]
        self.held, self.padding = layout.size, layout.padded - layout.size
        self._scattering = UnderWay()
        show(unit.params, "grad", self._whole)

    def reduce(self, *, last: bool) -> None:
        """Begin to sum at the end of the step."""
        if last:
            self._complete(self._whole)
            self._scattering.pending = self._axis.start_reduce_scatter(self._whole, self._shard)

    def poll(self) -> bool:
        """Let the sum make progress; true while it is under way."""
        return self._scattering.poll()

    def finish(self) -> None:
        """Return when this rank has its shard of the sum."""
        if self._scattering.finish():
            self._sum.pending = self._sets.start_all_reduce(self._shard)
        super().finish()


@dataclass(frozen=True)
class _Reduction:
    """A sum of one micro-batch's gradients under way."""

    pending: Pending
    whole: Array  # what is summed; of the pool
    first: bool  # of the step: goes to its place at once; others lie at the start of `whole`
    last: bool


class ShardedGradients(Gradients):
    """Only the shard stays; the gradients of a micro-batch lie in memory of the pool until summed."""

    def __init__(self, unit: ShardedUnit, memory: Array, *, over: Axis, sets: Axis, pool: Pool):
        super().__init__(unit, over=over, sets=sets)
        self._shard, self._pool = memory, pool
        self.own = memory[: unit.count]
        self.held, self.padding = unit.count, memory.size - unit.count
        self._first = True
        self._filling: Array | None = None
        self._reduction: _Reduction | None = None
        hide(unit.params, "grad")
        for param in unit.params:
            param.claim = self._claim

    def start_step(self) -> None:
        """Let the first sum replace what is there."""
        self._first = True
        super().start_step()

    def reduce(self, *, last: bool) -> None:
        """Begin to sum what this micro-batch contributed; the next one's gradients get other memory."""
        self.settle()
        self._claim()
        whole = self._filling
        assert whole is not None
        self._complete(whole)
        out = self._shard if self._first else whole[: self._layout.shard]
        pending = self._axis.start_reduce_scatter(whole, out)
        self._reduction = _Reduction(pending, whole, self._first, last)
        self._first, self._filling = False, None
        hide(self._params, "grad")
        for param in self._params:
            param.stale = True

    def poll(self) -> bool:
        """Let the sum make progress; true while it is under way."""
        if self._reduction is None:
            return self._sum.poll()
        return not self._reduction.pending.poll()

    def settle(self) -> None:
        """Return when the sum of the micro-batch is in the shard."""
        reduction = self._reduction
        if reduction is None:
            return
        self._reduction = None
        reduction.pending.wait()
        if not reduction.first:
            self._shard += reduction.whole[: self._layout.shard]
        if reduction.last:
            self._sum.pending = self._sets.start_all_reduce(self._shard)

    def _claim(self) -> None:
        """Give the gradients memory: the first contribution comes."""
        if self._filling is None:
            self._filling = self._pool.take(self._layout)
            show(self._params, "grad", self._filling)
