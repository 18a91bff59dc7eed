"""How the state of an optimizer is cut into chunks, of which two are in memory: pure counting."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

_LEAST_CHUNKS = 8  # of a state; so that less than half of it is in memory
_ALIGNED = 64  # elements


def longest(total: int, item_bytes: int, chunk_bytes: int) -> int:
    """Return the elements of a chunk of each array of a state of `total` elements."""
    wanted = min(chunk_bytes // item_bytes, -(-total // _LEAST_CHUNKS))
    return max(aligned(wanted), _ALIGNED)


def even(size: int, most: int) -> list[slice]:
    """Cut flat memory of this size anywhere."""
    return [slice(at, min(at + most, size)) for at in range(0, size, most)]


def of_tensors(sizes: Sequence[int], most: int) -> list[slice]:
    """Cut flat memory, of tensors of these sizes, between tensors: slices of their numbers.

    A tensor that is larger than a chunk makes one of its own.
    """
    slices: list[slice] = []
    held = 0
    for number, size in enumerate(sizes):
        if slices and held + size <= most:
            slices[-1] = slice(slices[-1].start, number + 1)
            held += size
        else:
            slices.append(slice(number, number + 1))
            held = size
    return slices


def whole_pages(size_bytes: int) -> int:
    """Return the bytes that `size_bytes` take in the file."""
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def aligned(elements: int) -> int:
    """Return the elements that an array takes in a chunk."""
    return -(-elements // _ALIGNED) * _ALIGNED


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """What chunks of these `sizes` take, of each of `arrays` of `item_bytes`.

    One chunk is in use while the last goes, and then the next comes. Where two would take as much as all, all
    stay in memory for good.
    """

    sizes: Sequence[int]
    arrays: int
    item_bytes: int

    @property
    def moves(self) -> bool:
        """Whether there is anything to move."""
        return self._pair_bytes(self._fullest) < self.total_bytes

    @property
    def total_bytes(self) -> int:
        """What all chunks take."""
        return sum(map(self.chunk_bytes, self.sizes))

    @property
    def fullest(self) -> Sequence[int]:
        """The numbers of the chunks that are in memory at once, when most is."""
        count = len(self.sizes)
        return (self._fullest, (self._fullest + 1) % count) if self.moves else range(count)

    @property
    def rooms(self) -> list[int]:
        """What each chunk takes in the file."""
        return [whole_pages(self.chunk_bytes(size)) for size in self.sizes]

    @property
    def file_bytes(self) -> int:
        """Room in the file."""
        return sum(self.rooms) if self.moves else 0

    def chunk_bytes(self, size: int) -> int:
        """Return what a chunk takes, each of its arrays on a boundary."""
        return self.arrays * aligned(size) * self.item_bytes

    @cached_property
    def _fullest(self) -> int:
        return max(range(len(self.sizes)), key=self._pair_bytes, default=0)

    def _pair_bytes(self, first: int) -> int:
        """Return what a chunk and the next take together; the first follows the last."""
        pair = {number % len(self.sizes) for number in (first, first + 1)} if self.sizes else ()
        return sum(self.chunk_bytes(self.sizes[number]) for number in pair)
