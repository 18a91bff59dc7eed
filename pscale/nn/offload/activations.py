"""What layers keep for backward leaves memory for a file after forward, and is back before backward.

A block of activations goes to the file from the memory where it is, and returns to any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pscale.nn.buffers import Array, Buffers, Lease, lease_of
from pscale.nn.offload.scratch import Bytes
from pscale.nn.offload.storage import Storage, Transfer


@dataclasses.dataclass(frozen=True)
class _Place:
    """Stands for an array whose memory is away."""

    number: int  # of the piece of memory
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    def view(self, pieces: Sequence[Bytes]) -> Array:
        memory = pieces[self.number]
        kind = type(memory)
        return kind.__new__(kind, self.shape, self.dtype, memory.data, self.offset, self.strides)


@dataclasses.dataclass(eq=False)
class _Block:
    """What a segment keeps, with places in `cache` for what is away.

    `sizes` are those of each piece of memory; `memory` is what is here of it.
    """

    cache: Any
    sizes: list[int]
    memory: list[Any]
    at: int  # in the file
    transfer: Transfer
    fetched: bool = False


class ActivationOffloader:
    """Moves blocks between a pool and a file, each to a place of its size that is free, or to a new one.

    While a segment computes, the one before it is written; while one goes back, the next to do so is read.
    Without `storage` everything stays where it is.
    """

    def __init__(self, buffers: Buffers, storage: Storage | None = None):
        self._buffers, self._storage = buffers, storage
        self._free: dict[int, list[int]] = {}  # places in the file, by size
        self._leaving: _Block | None = None

    @property
    def moves(self) -> bool:
        """Whether anything leaves."""
        return self._storage is not None

    def put(self, cache: Any, y: Array, *, goes: bool) -> Any:
        """Return what to keep of a segment whose forward is over; `goes` says whether it may leave.

        Its output belongs to others.
        """
        self._settle()
        if self._storage is None or not goes:
            return cache
        leases: dict[int, Lease] = {}
        output = lease_of(y)

        def place(array: Array) -> _Place | Array:
            lease = lease_of(array)
            if lease is None or lease is output:
                return array
            leases[id(lease)] = lease
            number, offset = [*leases].index(id(lease)), lease.offset(array)
            return _Place(number, offset, array.shape, array.strides, array.dtype)

        outline = _mapped(cache, np.ndarray, place)
        pieces = [lease.memory for lease in leases.values()]
        sizes = [memory.nbytes for memory in pieces]
        free = self._free.get(sum(sizes))
        at = free.pop() if free else self._storage.reserve(sum(sizes))
        transfer = self._storage.write(pieces, at)
        self._leaving = _Block(outline, sizes, [*leases.values()], at, transfer)
        return self._leaving

    def begin(self, kept: list[Any]) -> None:
        """Fetch the last of `kept`: its backward is next."""
        self._settle()
        if kept and isinstance(kept[-1], _Block) and not kept[-1].fetched:
            self._fetch(kept[-1])

    def get(self, kept: list[Any]) -> Any:
        """Take the last of `kept` off, whole, and fetch the one before it."""
        self.begin(kept)
        last = kept.pop()
        if isinstance(last, _Block):
            last = self._arrived(last)
        self.begin(kept)
        return last

    def _settle(self) -> None:
        """Give up the memory of the block that leaves, once it is written."""
        if self._storage is None or self._leaving is None:
            return
        block, self._leaving = self._leaving, None
        self._storage.wait(block.transfer)
        block.memory.clear()

    def _fetch(self, block: _Block) -> None:
        """Take as many pieces of memory, and begin to read."""
        assert self._storage is not None, "a block has left"
        block.memory += (self._buffers.take((size_bytes,), np.uint8) for size_bytes in block.sizes)
        block.transfer, block.fetched = self._storage.read(block.memory, block.at), True

    def _arrived(self, block: _Block) -> Any:
        """Wait for the read; return what the segment kept."""
        assert self._storage is not None, "a block has left"
        self._storage.wait(block.transfer)
        self._free.setdefault(sum(block.sizes), []).append(block.at)
        cache = _mapped(block.cache, _Place, lambda place: place.view(block.memory))
        block.memory.clear()  # of which the thread of the storage has the list as well
        return cache


def _mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return `value` with all of a kind in it changed; what has none of it is the same object."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, list | tuple):
        items = [_mapped(item, kind, change) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return items if isinstance(value, list) else _like(value, items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        changed = {name: _mapped(item, kind, change) for name, item in held.items()}
        different = {name: item for name, item in changed.items() if item is not held[name]}
        return dataclasses.replace(value, **different) if different else value
    return value


def _like(value: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    named = getattr(type(value), "_make", None)
    made: tuple[Any, ...] = named(items) if named else tuple(items)
    return made
