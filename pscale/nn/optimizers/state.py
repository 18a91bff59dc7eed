"""The state of an optimizer: in memory, or in a mapped file chunk by chunk, each updated where it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import NamedTuple

from pscale.nn.buffers import Array, aligned, zeros
from pscale.nn.offload.scratch import Bytes, Window, whole_pages
from pscale.nn.offload.storage import Storage, Transfer
from pscale.nn.param import Param
from pscale.runs.tensor_files import Elements

_LEAST_CHUNKS = 8  # of a state in a file; so that less than half of it is in memory
_ALIGNED = 64  # elements


def every(_: Param) -> bool:
    """Choose all tensors."""
    return True


@dataclass(frozen=True, kw_only=True)
class Slots:
    """What an optimizer keeps of the tensors that `of` chooses: `arrays` numbers for each weight.

    If `whole_tensors`, chunks of state in a file end where tensors do.
    """

    arrays: int
    of: Callable[[Param], bool] = every
    whole_tensors: bool = False


@dataclass(frozen=True)
class Run:
    """The elements of a parameter, from `first` on, that lie at `place` of flat memory; maybe none."""

    param: Param
    place: slice
    first: int

    @property
    def size(self) -> int:
        """How many."""
        size: int = self.place.stop - self.place.start
        return size


@dataclass(frozen=True)
class Flat:
    """Weights and gradients in flat memory: those of `params`, one after another, from element `start` on."""

    data: Array
    grad: Array
    params: Sequence[Param]
    start: int = 0

    @cached_property
    def runs(self) -> Sequence[Run]:
        """What is here of each parameter."""
        found, first = [], 0
        for param in self.params:
            low, high = (min(max(at - self.start, 0), self.data.size) for at in (first, first + param.size))
            found.append(Run(param, slice(low, high), max(self.start - first, 0)))
            first += param.size
        return found

    @cached_property
    def spans(self) -> Sequence[tuple[slice, bool]]:
        """The memory as few runs of equal decay."""
        found: list[tuple[slice, bool]] = []
        for run in self.runs:
            if found and found[-1][1] == run.param.decay:
                found[-1] = slice(found[-1][0].start, run.place.stop), run.param.decay
            elif run.size:
                found.append((run.place, run.param.decay))
        return found

    def part(self, here: slice) -> Flat:
        """Return some elements."""
        return Flat(self.data[here], self.grad[here], self.params, self.start + here.start)

    def tensors(self, numbers: slice) -> Flat:
        """Return what is here of some parameters in a row."""
        runs = self.runs[numbers]
        here = slice(runs[0].place.start, runs[-1].place.stop)
        return Flat(self.data[here], self.grad[here], self.params[numbers], runs[0].first)

    def chosen(self, slots: Slots) -> list[Flat]:
        """Return the tensors that have `slots`: all together, or neighbours of a layer."""
        if slots.of is every:
            return [self]
        found, start = [], 0
        for (of, _), group in groupby(self.params, lambda param: (slots.of(param), param.layer)):
            stop = start + len(list(group))
            if of:
                found.append(self.tensors(slice(start, stop)))
            start = stop
        return found


class Piece(NamedTuple):
    """Weights, and the arrays of state that belong to them."""

    flat: Flat
    arrays: Sequence[Array]


class Kept(NamedTuple):
    """Some elements of a tensor that an optimizer keeps for a parameter; `kind` tells its tensors apart.

    If `everywhere`, ranks that share the parameter have them all.
    """

    param: Param
    kind: str
    elements: Elements
    memory: Array
    everywhere: bool = False


class State:
    """Slots of flat memories, which start as zeros. `at_hand` is what is in memory at once, at most.

    In `storage` two chunks are in memory, in turn. While one is used the thread has the next come; before, it
    gave up the one that was used last.
    """

    def __init__(self, flats: Sequence[Flat], slots: Slots, storage: Storage | None = None):
        self._storage = storage
        parts = [flat.chosen(slots) for flat in flats]
        if storage is not None:
            parts = _cut(parts, storage.chunk_bytes, slots)
        self.flats = parts
        every = [flat for part in parts for flat in part]
        self._windows: list[Window] = []
        self._coming: Transfer | None = None  # the chunk that is used next
        arrays, self.at_hand = self._zeros(every, slots.arrays)
        pieces = (Piece(flat, each) for flat, each in zip(every, arrays, strict=True))
        self._pieces = [[next(pieces) for _ in part] for part in parts]
        self._first = [sum(map(len, parts[:number])) for number in range(len(parts))]

    def pieces(self, part: int, *, changes: bool = True) -> Iterator[Piece]:
        """Yield the pieces of flat memory number `part`, each until the next; `changes` are written.

        All parts are to be used in their order, whole, and then again from the first.
        """
        if self._coming is None:
            yield from self._pieces[part]
            return
        for number, piece in enumerate(self._pieces[part], self._first[part]):
            window = self._fetched(number, changes=changes)
            yield piece
            assert self._storage is not None
            self._storage.release(window, changed=changes)

    def kept(self, *, changes: bool) -> Iterator[Kept]:
        """Yield all of it, each array until the next is asked for; `changes` are written."""
        for part in range(len(self.flats)):
            for flat, arrays in self.pieces(part, changes=changes):
                for run in flat.runs:
                    for number, array in enumerate(arrays):
                        elements = run.param.elements(run.first, run.size)
                        yield Kept(run.param, str(number), elements, array[run.place])

    def _fetched(self, number: int, *, changes: bool) -> Window:
        """Wait for a chunk, and let the next one come."""
        assert self._storage is not None
        assert self._coming is not None
        window = self._windows[number]
        assert self._coming.at == window.at, "chunks are used in their order"
        self._storage.wait(self._coming)
        following = (number + 1) % len(self._windows)
        changing = changes or not following  # the next pass may be another
        self._coming = self._storage.fetch(self._windows[following], writable=changing)
        return window

    def _zeros(self, flats: Sequence[Flat], arrays: int) -> tuple[Sequence[Sequence[Array]], Sequence[Array]]:
        """Return the arrays of each flat memory, and what of them is in memory."""
        sizes = [flat.data.size for flat in flats]
        if not sizes or not arrays:
            return [()] * len(sizes), ()
        kind = flats[0].data.dtype
        if self._storage is None:
            lists = [zeros(sizes, kind) for _ in range(arrays)]
            return list(zip(*lists, strict=True)), [array for each in lists for array in each]
        chunk_bytes = [arrays * _aligned(size) * kind.itemsize for size in sizes]
        at_hand = fullest(chunk_bytes)
        moves = len(at_hand) < len(sizes)
        chunks = self._mapped(self._storage, chunk_bytes) if moves else _in_memory(chunk_bytes)
        numbers = [
            chunk.view(kind).reshape(arrays, _aligned(size))[:, :size]
            for chunk, size in zip(chunks, sizes, strict=True)
        ]
        return [list(each) for each in numbers], [chunks[number] for number in at_hand]

    def _mapped(self, storage: Storage, chunk_bytes: Sequence[int]) -> list[Bytes]:
        """Set the file aside and let the first chunk come."""
        rooms = list(map(whole_pages, chunk_bytes))
        whole, starts = storage.mapped(sum(rooms)), accumulate(rooms, initial=0)
        self._windows = [whole.part(*each) for each in zip(starts, chunk_bytes, strict=False)]
        self._coming = storage.fetch(self._windows[0], writable=True)
        return [window.memory for window in self._windows]


def _in_memory(chunk_bytes: Sequence[int]) -> list[Bytes]:
    chunks = list(map(aligned, chunk_bytes))
    for chunk in chunks:
        chunk.fill(0)
    return chunks


def _cut(parts: Sequence[Sequence[Flat]], chunk_bytes: int, slots: Slots) -> list[list[Flat]]:
    """Cut flat memories into chunks: anywhere, or between tensors."""
    sizes = [[flat.data.size for flat in part] for part in parts]
    total = sum(map(sum, sizes))
    if not total:
        return [[] for _ in parts]
    item = next(flat.data.itemsize for part in parts for flat in part)
    most = max(_aligned(min(chunk_bytes // item, -(-total // _LEAST_CHUNKS))), _ALIGNED)

    def cut(flat: Flat) -> list[Flat]:
        if slots.whole_tensors:
            return [flat.tensors(each) for each in of_tensors([run.size for run in flat.runs], most)]
        size = flat.data.size
        return [flat.part(slice(at, min(at + most, size))) for at in range(0, size, most)]

    return [[chunk for flat in part for chunk in cut(flat)] for part in parts]


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


def _aligned(elements: int) -> int:
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
