"""The state of an optimizer in a mapped file, chunk by chunk: each is updated where it lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from pscale.nn.buffers import Array, zeros
from pscale.nn.buffers import aligned as aligned_bytes
from pscale.nn.offload.chunks import Amounts, aligned
from pscale.nn.offload.pages import Bytes
from pscale.nn.offload.scratch import Window
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
        """Return arrays of their own, each list in one piece of memory."""
        return [zeros([array.size for array in like], like[0].dtype) for _ in range(arrays)]

    def here(self, part: int, *, changes: bool = True) -> AbstractContextManager[None]:  # noqa: ARG002
        """Find it here."""
        return nullcontext()


IN_MEMORY: StateMemory = InMemory()


class InChunks:
    """State of which two chunks are in memory, in turn; parts are chunks, used in their order.

    While one is used the thread has the next come; before, it gave up the one that was used last.
    """

    def __init__(self, storage: Storage):
        self._storage = storage
        self.at_hand: Sequence[Bytes] = ()  # what is in memory at once, at most
        self._windows: list[Window] = []
        self._coming: Transfer | None = None  # the chunk that is used next

    def zeros(self, like: Sequence[Array], arrays: int) -> list[list[Array]]:
        """Return arrays in the chunks, which are there for the chunk in use alone; let the first come."""
        found: list[list[Array]] = [[] for _ in range(arrays)]
        if not like:
            return found
        sizes, kind = [array.size for array in like], like[0].dtype
        amounts = Amounts(sizes=sizes, arrays=arrays, item_bytes=kind.itemsize)
        chunks = self._mapped(amounts) if amounts.moves else _in_memory(amounts)
        for chunk, size in zip(chunks, sizes, strict=True):
            numbers = chunk.view(kind).reshape(arrays, aligned(size))
            for array in range(arrays):
                found[array].append(numbers[array, :size])
        self.at_hand = [chunks[number] for number in amounts.fullest]
        return found

    @contextmanager
    def here(self, part: int, *, changes: bool = True) -> Iterator[None]:
        """Wait for the chunk, let the next one come, and write this one behind."""
        if self._coming is None:
            yield
            return
        window = self._windows[part]
        assert self._coming.at == window.at, "chunks are used in their order"
        self._storage.wait(self._coming)
        following = (part + 1) % len(self._windows)
        changing = changes or not following  # who begins anew may go about it differently
        self._coming = self._storage.fetch(self._windows[following], writable=changing)
        yield
        self._storage.release(window, changed=changes)

    def _mapped(self, amounts: Amounts) -> list[Bytes]:
        whole = self._storage.mapped(amounts.file_bytes)
        start = 0
        for size, room in zip(amounts.sizes, amounts.rooms, strict=True):
            self._windows.append(whole.part(start, amounts.chunk_bytes(size)))
            start += room
        self._coming = self._storage.fetch(self._windows[0], writable=True)
        return [window.memory for window in self._windows]


def _in_memory(amounts: Amounts) -> list[Bytes]:
    chunks = [aligned_bytes(amounts.chunk_bytes(size)) for size in amounts.sizes]
    for chunk in chunks:
        chunk.fill(0)
    return chunks
