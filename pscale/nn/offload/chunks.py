"""How the state of an optimizer is cut into chunks, of which two are in memory: pure counting."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

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


def fullest(chunks: Sequence[int]) -> Sequence[int]:
    """Return which chunks, of so many bytes each, are in memory at once when most is.

    One chunk is in use while the last goes, and then the next comes, behind the last the first. Where two
    would take as much as all, all stay in memory for good.
    """
    count = len(chunks)
    pairs = [tuple(dict.fromkeys((first, (first + 1) % count))) for first in range(count)]
    pair = max(pairs, key=lambda pair: sum(chunks[number] for number in pair), default=())
    return pair if sum(chunks[number] for number in pair) < sum(chunks) else range(count)
