"""State in a file: what an update costs, by folder and size of a chunk, beside state in memory.

The state is mapped and updated where it lies, as pscale has it, or copied by reads and writes; the steps of
all ways are done in turns. For each: the median update, what of it was a stall, how long the thread beside it
took, page faults of the step, which no clock shows, and by how much resident memory grew.

    python benchmarks/offload.py [--folders /tmp /dev/shm] [--millions 8] [--rounds 5]
"""

from __future__ import annotations

import argparse
import resource
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import numpy as np

from pscale.config import Train
from pscale.nn.buffers import Array, aligned
from pscale.nn.offload.chunks import whole_pages
from pscale.nn.offload.optimizer import cut
from pscale.nn.offload.pages import Bytes
from pscale.nn.offload.state import IN_MEMORY, InChunks, StateMemory
from pscale.nn.offload.storage import Storage, Transfer
from pscale.nn.optim import Adam, Flat, update
from pscale.nn.param import Arena, Param, normal
from pscale.worker.resident import peak_resident_bytes, reset_peak, resident_bytes

CHUNKS = [256 << 10, 1 << 20, 4 << 20]
STEPS = 4  # of one way before the next has its turn; the first is not counted
SLOTS = 3


class Account:
    """Notes of one step after another, added up."""

    def __init__(self) -> None:
        self.stalled_ns, self.moving_ns = 0, 0

    def handed(self, verb: str, size_bytes: int) -> None:
        """Know how much."""

    def stalled(self, verb: str, enter: int, leave: int) -> None:  # noqa: ARG002
        """Count waits."""
        self.stalled_ns += leave - enter

    def moved(self, verb: str, size_bytes: int, enter: int, leave: int) -> None:  # noqa: ARG002
        """Count what the thread takes."""
        self.moving_ns += leave - enter


class Copied:
    """State in chunks that are read into slots of memory, and written from there."""

    def __init__(self, storage: Storage):
        self._storage = storage
        self._chunks: list[Bytes] = []  # the memory of each, in its slot
        self._places: list[int] = []
        self._coming: Transfer | None = None

    def zeros(self, like: Sequence[Array], arrays: int) -> list[list[Array]]:
        """Return arrays in the slots."""
        sizes = [arrays * whole_pages(array.nbytes) for array in like]
        slots = [aligned(max(sizes)) for _ in range(SLOTS)]
        found: list[list[Array]] = [[] for _ in range(arrays)]
        for number, (array, size) in enumerate(zip(like, sizes, strict=True)):
            chunk = slots[number % SLOTS][:size]
            for part, memory in zip(found, np.split(chunk, arrays), strict=True):
                part.append(memory[: array.nbytes].view(array.dtype))
            self._chunks.append(chunk)
            self._places.append(self._storage.reserve(size))
        self._read(0)
        return found

    @contextmanager
    def here(self, part: int, *, changes: bool = True) -> Iterator[None]:
        """Wait for the chunk, begin to read the next, and write this one."""
        assert changes, "AdamW looks at its state once"
        assert self._coming, "there are zeros"
        self._storage.wait(self._coming)
        following = (part + 1) % len(self._chunks)
        apart = following % SLOTS != part % SLOTS
        if apart:
            self._read(following)
        yield
        self._storage.write([self._chunks[part]], self._places[part])
        if not apart:
            self._read(following)

    def _read(self, part: int) -> None:
        self._coming = self._storage.read([self._chunks[part]], self._places[part])


class Way:
    """One place for the state of AdamW, and what its steps took."""

    def __init__(
        self,
        arena: Arena,
        storage: Storage | None,
        memory: Callable[[Storage], StateMemory],
        account: Account,
    ):
        self.account, self._arena, self._storage = account, arena, storage
        flat = Flat(arena.data, arena.grad, arena.params)
        chunks = cut([flat], storage.chunk_bytes, whole_tensors=False)[0] if storage else [flat]
        before = resident_bytes()
        reset_peak()
        held = memory(storage) if storage else IN_MEMORY
        self._optimizer, self._parts = Adam(chunks, Train(), decay=0.1, memory=held), len(chunks)
        self.times, self.faults = list[float](), list[int]()
        self.turn()
        self.grown_bytes = peak_resident_bytes() - before

    def turn(self) -> None:
        """Do some steps, gradients being new each time."""
        for step in range(STEPS):
            np.negative(self._arena.grad, out=self._arena.grad)
            faults, start = _faults(), perf_counter()
            update(self._optimizer, self._parts, 1e-3)
            if step:
                self.times.append(perf_counter() - start)
                self.faults.append(_faults() - faults)

    def close(self) -> None:
        """Give the file back."""
        if self._storage:
            self._storage.close()

    def line(self) -> str:
        """Return what was found."""
        steps = len(self.times) / (STEPS - 1) * STEPS
        spent_ns = self.account.stalled_ns, self.account.moving_ns
        stalled_ms, moving_ms = (1e-6 * each / steps for each in spent_ns)
        return (
            f"{1e3 * statistics.median(self.times):8.2f} ms, stalled {stalled_ms:7.2f}, "
            f"moving {moving_ms:7.2f}, {statistics.median(self.faults):6.0f} faults, "
            f"resident + {self.grown_bytes / 1e6:6.1f} MB"
        )


def _faults() -> int:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_minflt + usage.ru_majflt


def compare(arena: Arena, folder: Path, chunk_bytes: int, rounds: int) -> dict[str, str]:
    """Let all ways have their turns; return what was found of each."""
    ways: dict[str, Way] = {}
    for name, memory in {"in memory": None, "mapped": InChunks, "copied": Copied}.items():
        account = Account()
        storage = Storage(folder, chunk_bytes=chunk_bytes, notes=account) if memory else None
        ways[name] = Way(arena, storage, memory or InChunks, account)
    for _ in range(rounds):
        for way in ways.values():
            way.turn()
    for way in ways.values():
        way.close()
    return {name: way.line() for name, way in ways.items()}


def main() -> None:
    """Measure every folder with every chunk."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folders", nargs="+", type=Path, default=[Path("/tmp"), Path("/dev/shm")])
    parser.add_argument("--millions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    arena = Arena([Param("w", (given.millions * 1_000_000,), layer=0, draw=normal(1.0))], "float32")
    arena.fill(1)
    arena.grad[...] = arena.data
    for folder in given.folders:
        for chunk_bytes in CHUNKS:
            for name, line in compare(arena, folder, chunk_bytes, given.rounds).items():
                print(f"{folder!s:10} {chunk_bytes >> 10:5} KiB {name:10} {line}", flush=True)


if __name__ == "__main__":
    main()
