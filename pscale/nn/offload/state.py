"""The state of an optimizer in a file, chunk by chunk: one is updated, the next read, the last written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from pscale.nn.buffers import Array, zeros_like
from pscale.nn.buffers import aligned as aligned_bytes
from pscale.nn.offload.chunks import Amounts, aligned, whole_pages
from pscale.nn.offload.scratch import Bytes
from pscale.nn.offload.storage import Storage, Transfer


class StateMemory(Protocol):
    """Where the state of an optimizer lies, that of one flat memory after another."""

    def zeros(self, like: Sequence[Array], arrays: int) -> list[list[Array]]:
        """Return `arrays` lists of zeros like those given; asked for once."""
        ...

    def here(self, part: int, *, changes: bool = True) -> AbstractContextManager[None]:
        """Have the state of number `part` in memory meanwhile, and keep it if it `changes`."""
        ...


class InMemory:
    """State that stays where it is."""

    def zeros(self, like: Sequence[Array], arrays: int) -> list[list[Array]]:
        """Return arrays of their own."""
        return [[zeros_like(array) for array in like] for _ in range(arrays)]

    def here(self, part: int, *, changes: bool = True) -> AbstractContextManager[None]:  # noqa: ARG002
        """Find it here."""
        return nullcontext()


IN_MEMORY: StateMemory = InMemory()


class InChunks:
    """State of which a few chunks are in memory, in slots in turn; parts are chunks, used in their order.

    While one is used the next is read. What was used before may still be on its way out: the thread does
    one thing after another, so the slot is free when the thread comes to read into it.
    """

    def __init__(self, storage: Storage):
        self._storage = storage
        self.slots: Sequence[Bytes] = ()
        self._chunks: list[Bytes] = []  # the memory of each, in its slot
        self._places: list[int] = []  # in the file
        self._coming: Transfer | None = None  # the chunk that is used next

    def zeros(self, like: Sequence[Array], arrays: int) -> list[list[Array]]:
        """Return arrays in the slots, which are of the chunk in use alone; begin to read the first."""
        found: list[list[Array]] = [[] for _ in range(arrays)]
        if not like:
            return found
        sizes, kind = [array.size for array in like], like[0].dtype
        amounts = Amounts(sizes=sizes, arrays=arrays, item_bytes=kind.itemsize)
        self.slots = [aligned_bytes(size) for size in amounts.slots]
        for slot in self.slots:
            slot.fill(0)
        for number, size in enumerate(sizes):
            memory = self.slots[number % len(self.slots)][: amounts.chunk_bytes(size)]
            self._chunks.append(memory)
            numbers = memory.view(kind).reshape(arrays, aligned(size))
            for array in range(arrays):
                found[array].append(numbers[array, :size])
        if amounts.moves:
            start = self._storage.reserve(sum(whole_pages(chunk.nbytes) for chunk in self._chunks))
            for chunk in self._chunks:
                self._places.append(start)
                start += whole_pages(chunk.nbytes)
            self._read(0)
        return found

    @contextmanager
    def here(self, part: int, *, changes: bool = True) -> Iterator[None]:
        """Wait for the chunk, let the next one come, and write this one behind."""
        if self._coming is None:
            yield
            return
        assert self._coming.at == self._places[part], "chunks are used in their order"
        self._storage.wait(self._coming)
        following = (part + 1) % len(self._chunks)
        apart = following % len(self.slots) != part % len(self.slots)
        if apart:
            self._read(following)
        yield
        if changes:
            self._storage.write([self._chunks[part]], self._places[part])
        if not apart:
            self._read(following)

    def _read(self, part: int) -> None:
        self._coming = self._storage.read([self._chunks[part]], self._places[part])
