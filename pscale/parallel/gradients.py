"""Two ways to sum a unit's gradients so that every rank has its shard: once a step, or as they come."""

from __future__ import annotations

from dataclasses import dataclass

from pscale.mesh.axis import Axis, Pending
from pscale.parallel.shards import Array, Pool, ShardedUnit, UnderWay, hide, show


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
        self._pool.give(reduction.whole)
        if reduction.last:
            self._sum.pending = self._sets.start_all_reduce(self._shard)

    def _claim(self) -> None:
        """Give the gradients memory: the first contribution comes."""
        if self._filling is None:
            self._filling = self._pool.take(self._layout)
            show(self._params, "grad", self._filling)
