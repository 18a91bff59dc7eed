"""A unit's parameters as one flat array in equal shards, and the memory that such arrays lie in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pscale.mesh.axis import Axis
from pscale.nn.buffers import Buffers
from pscale.nn.param import Param

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


@dataclass(frozen=True, kw_only=True)
class ShardedUnit:
    """The parameters of a unit, dealt out over an axis."""

    params: Sequence[Param]
    axis: Axis

    @cached_property
    def layout(self) -> Shards:
        """Return how they are dealt out."""
        return Shards(size=sum(param.size for param in self.params), parts=self.axis.size)

    @property
    def owned(self) -> slice:
        """Return where in the unit is what this rank updates."""
        return self.layout.owned(self.axis.rank)

    @property
    def count(self) -> int:
        """Return how many elements these are."""
        return self.layout.count(self.axis.rank)


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

    def give(self, memory: Array) -> None:
        """Take `memory` back."""
        self._buffers.give(memory)


def show(params: Sequence[Param], kind: Literal["data", "grad"], memory: Array) -> None:
    """Let `data` or `grad` of the parameters be views of flat memory, one after another."""
    start = 0
    for param in params:
        setattr(param, kind, memory[start : start + param.size].reshape(param.shape))
        start += param.size


def hide(params: Sequence[Param], kind: Literal["data", "grad"]) -> None:
    """Let nobody use `data` or `grad` of the parameters."""
    for param in params:
        setattr(param, kind, _ELSEWHERE)
