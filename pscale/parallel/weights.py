"""Two ways to hold a unit's weights of which every rank owns a shard: whole, or gathered for use."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pscale.mesh.axis import Pending
from pscale.parallel.shards import Array, Pool, ShardedUnit, hide, show


class Weights(Protocol):
    """The weights of a unit; `own` is what this rank updates, `held` and `padding` count what stays."""

    own: Array
    held: int
    padding: int

    def start(self) -> None:
        """Begin to make the weights whole, unless they are."""
        ...

    def gather(self) -> None:
        """Return when the weights are whole."""
        ...

    def poll(self) -> bool:
        """Let a gather make progress; true while it is under way."""
        ...

    def release(self, *, again: bool) -> None:
        """Be told that forward is done; `again`, what was done before, for backward."""
        ...

    def drop(self) -> None:
        """Be told that backward is done."""
        ...

    def publish(self) -> None:
        """Begin to tell the others of an update; `settle` ends it."""
        ...

    def settle(self) -> None:
        """Return when nothing is under way."""
        ...

    def fill(self, seed: int) -> None:
        """Set initial values, which every rank draws alike."""
        ...


class WholeWeights:
    """Whole on every rank, in `memory`; after an update every rank sends its shard to all, in place."""

    def __init__(self, unit: ShardedUnit, memory: Array):
        self._params, self._axis, self._whole = unit.params, unit.axis, memory
        layout = unit.layout
        self._shard = self._whole[unit.axis.rank * layout.shard :][: layout.shard]
        self.own = self._whole[unit.owned]
        self.held, self.padding = layout.size, layout.padded - layout.size
        self._pending: Pending | None = None
        show(unit.params, "data", self._whole)

    def start(self) -> None:
        """Find them whole."""

    def gather(self) -> None:
        """Find them whole."""

    def poll(self) -> bool:
        """Let the others' shards come; true while they do."""
        return self._pending is not None and not self._pending.poll()

    def release(self, *, again: bool) -> None:
        """Keep them."""

    def drop(self) -> None:
        """Keep them."""

    def publish(self) -> None:
        """Begin to gather the updated shards."""
        self._pending = self._axis.start_all_gather(self._shard, self._whole)

    def settle(self) -> None:
        """Return when all shards are here."""
        if self._pending is not None:
            self._pending.wait()
            self._pending = None

    def fill(self, seed: int) -> None:
        """Set initial values."""
        for param in self._params:
            param.data[...] = param.initial(seed)


class ShardedWeights:
    """Only this rank's shard stays, in `memory`; the whole is gathered into that of the pool for each use.

    With `keep` it stays from forward to backward, for as long as any micro-batch is between the two.
    """

    def __init__(self, unit: ShardedUnit, memory: Array, *, pool: Pool, keep: bool):
        self._unit, self._params, self._shard, self._pool, self._keep = unit, unit.params, memory, pool, keep
        self.own = memory[: unit.count]
        self.held, self.padding = unit.count, memory.size - unit.count
        self._whole: Array | None = None
        self._pending: Pending | None = None
        self._between = 0  # micro-batches between their forward and their backward
        hide(unit.params, "data")

    def start(self) -> None:
        """Begin to gather the shards, unless that was done."""
        if self._whole is None:
            self._whole = self._pool.take(self._unit.layout)
            self._pending = self._unit.axis.start_all_gather(self._shard, self._whole)

    def gather(self) -> None:
        """Gather the shards, unless they are here."""
        self.start()
        if self._pending is not None:
            assert self._whole is not None
            self._pending.wait()
            self._pending = None
            show(self._params, "data", self._whole)

    def poll(self) -> bool:
        """Let the others' shards come; true while they do."""
        return self._pending is not None and not self._pending.poll()

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

    def publish(self) -> None:
        """Leave it to the next gather."""

    def settle(self) -> None:
        """Free the whole, if it is here."""
        self._between = 0
        if self._whole is None:
            return
        if self._pending is not None:  # fetched, and not used
            self._pending.wait()
            self._pending = None
        hide(self._params, "data")
        self._pool.give(self._whole)
        self._whole = None

    def fill(self, seed: int) -> None:
        """Draw the whole into memory of the pool and keep the shard."""
        whole = self._pool.take(self._unit.layout)
        show(self._params, "data", whole)
        for param in self._params:
            param.data[...] = param.initial(seed)
        np.copyto(self.own, whole[self._unit.owned])
        hide(self._params, "data")
        self._pool.give(whole)
