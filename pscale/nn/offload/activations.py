"""Parcels of arrays: their memory goes to the file from where it is, and returns to any other."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pscale.nn.buffers import Array, Buffers
from pscale.nn.offload.keeping import Parcel, Room
from pscale.nn.offload.pages import Bytes
from pscale.nn.offload.storage import Storage, Transfer


@dataclasses.dataclass(frozen=True)
class _Place:
    """Stands for an array whose memory is away."""

    number: int  # of the piece of memory
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    def view(self, held: Sequence[Bytes]) -> Array:
        memory = held[self.number]
        return np.ndarray(self.shape, self.dtype, memory.data, self.offset, self.strides)


class Activations:
    """Moves parcels between a pool and a file in which `reserved_bytes` are set aside for them."""

    def __init__(self, buffers: Buffers, storage: Storage, reserved_bytes: int):
        self.room = Room()
        self._buffers, self._storage = buffers, storage
        self._start, self._reserved_bytes = storage.reserve(reserved_bytes), reserved_bytes
        self._under_way: dict[int, Transfer] = {}  # of parcels, by their place

    def leave(self, cache: Any, mark: Mapping[int, int], x: Array, y: Array) -> Parcel[Bytes]:
        """Begin to write; what `mark` knows belongs to others, but for the input, which was taken over."""
        mine = self._buffers.leases_since(mark, x, y)
        held, holders = [memory for memory, _ in mine], [count for _, count in mine]
        sizes = [memory.nbytes for memory in held]
        at = self.room.take(sum(sizes))
        assert self.room.size_bytes <= self._reserved_bytes, "no more leaves than was predicted"
        parcel = Parcel(_Outline(held).of(cache), sizes, holders, held, at)
        self._under_way[at] = self._storage.write(held, self._start + at)
        return parcel

    def vacate(self, parcel: Parcel[Bytes]) -> None:
        """Wait for the write; give every piece back."""
        self._storage.wait(self._under_way.pop(parcel.at))
        for memory, holders in zip(parcel.held, parcel.holders, strict=True):
            for _ in range(holders):
                self._buffers.give(memory)
        parcel.held = []

    def fetch(self, parcel: Parcel[Bytes]) -> None:
        """Take as many pieces, held as often, and begin to read."""
        for size_bytes, holders in zip(parcel.sizes, parcel.holders, strict=True):
            memory = self._buffers.take((size_bytes,), np.uint8)
            for _ in range(holders - 1):
                self._buffers.share(memory)
            parcel.held.append(memory)
        self._under_way[parcel.at] = self._storage.read(parcel.held, self._start + parcel.at)

    def arrive(self, parcel: Parcel[Bytes]) -> Any:
        """Wait for the read; put arrays in the places of arrays."""
        self._storage.wait(self._under_way.pop(parcel.at))
        self.room.give(parcel.total_bytes, parcel.at)
        return _mapped(parcel.cache, _Place, lambda place: place.view(parcel.held))


class _Outline:
    """Puts places in the place of arrays in some pieces of memory."""

    def __init__(self, held: Sequence[Bytes]):
        order = sorted(range(len(held)), key=lambda number: _address(held[number]))
        self._numbers, self._starts = order, [_address(held[number]) for number in order]
        self._sizes = [held[number].nbytes for number in order]

    def of(self, cache: Any) -> Any:
        """Return `cache` with places; arrays elsewhere stay."""
        return _mapped(cache, np.ndarray, self._place)

    def _place(self, array: Array) -> _Place | Array:
        start = _address(array)
        place = bisect_right(self._starts, start) - 1
        if place < 0 or start >= self._starts[place] + self._sizes[place]:
            return array
        offset = start - self._starts[place]
        return _Place(self._numbers[place], offset, array.shape, array.strides, array.dtype)


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


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
