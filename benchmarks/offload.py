"""Measure what an update costs with its state in a file, by folder and chunk size, against memory.

    python benchmarks/offload.py [--folders /tmp /dev/shm] [--millions 8] [--rounds 5]

The state is mapped and updated in place, as pscale does, or copied by reads and writes; steps of all variants
alternate. For each: the median update, its stalls, the time of the thread beside it, page faults of the step
(which no clock shows), and the growth of resident memory.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from arena import Arena

from pscale.config import Train
from pscale.nn.buffers import Array, aligned
from pscale.nn.offload.scratch import Bytes, whole_pages
from pscale.nn.offload.storage import Storage
from pscale.nn.optimizers.adamw import RULE
from pscale.nn.optimizers.base import ALONE, update
from pscale.nn.optimizers.state import Flat, Piece, Slots, State
from pscale.nn.param import Param, normal
from pscale.worker.usage import peak_resident_bytes, reset_peak, resident_bytes

CHUNKS = [256 << 10, 1 << 20, 4 << 20]
STEPS = 4  # of one way before the next has its turn; the first is not counted
PLACES = 3  # of chunks in memory


class Account:
    """Sums of the I/O events of steps."""

    def __init__(self) -> None:
        self.stalled_ns, self.moving_ns = 0, 0

    def io_submitted(self, verb: str, size_bytes: int) -> None:
        """Know how much."""

    def io_waited(self, verb: str, enter: int, leave: int) -> None:  # noqa: ARG002
        """Count waits."""
        self.stalled_ns += leave - enter

    def io_done(self, verb: str, size_bytes: int, enter: int, leave: int) -> None:  # noqa: ARG002
        """Count what the thread takes."""
        self.moving_ns += leave - enter


class Copied(State):
    """State in chunks that are read into places in memory, and written from there."""

    def pieces(self, part: int, *, changes: bool = True) -> Iterator[Piece]:
        """Wait for each chunk, begin to read the next, and write this one."""
        assert changes, "AdamW uses its state once"
        assert self._coming, "there are zeros"
        for number, piece in enumerate(self._pieces[part]):
            self._storage.wait(self._coming)
            following = (number + 1) % len(self._chunks)
            apart = following % PLACES != number % PLACES
            if apart:
                self._read(following)
            yield piece
            self._storage.write([self._chunks[number]], self._starts[number])
            if not apart:
                self._read(following)

    def _zeros(self, flats: Sequence[Flat], arrays: int) -> tuple[Sequence[Sequence[Array]], Sequence[Array]]:
        """Return arrays in the places."""
        sizes = [arrays * whole_pages(flat.data.nbytes) for flat in flats]
        places = [aligned(max(sizes)) for _ in range(PLACES)]
        self._chunks: list[Bytes] = [places[number % PLACES][:size] for number, size in enumerate(sizes)]
        self._starts = [self._storage.reserve(size) for size in sizes]
        self._read(0)
        return [
            [memory[: flat.data.nbytes].view(flat.data.dtype) for memory in np.split(chunk, arrays)]
            for flat, chunk in zip(flats, self._chunks, strict=True)
        ], places

    def _read(self, number: int) -> None:
        self._coming = self._storage.read([self._chunks[number]], self._starts[number])


class Way:
    """One place for the state of AdamW, and what its steps took."""

    def __init__(
        self,
        arena: Arena,
        storage: Storage | None,
        make_state: type[State],
        account: Account,
    ):
        self.account, self._arena, self._storage = account, arena, storage
        flat = Flat(arena.data, arena.grad, arena.params)
        before = resident_bytes()
        reset_peak()
        state = make_state([flat], Slots(arrays=2), storage)
        self._optimizer = RULE.make(Train(), [flat], [state], ALONE)
        self.times, self.faults = list[float](), list[int]()
        self.turn()
        self.grown_bytes = peak_resident_bytes() - before

    def turn(self) -> None:
        """Do some steps, gradients being new each time."""
        for step in range(STEPS):
            np.negative(self._arena.grad, out=self._arena.grad)
            faults, start = _faults(), perf_counter()
            update(self._optimizer, 1, 1e-3)
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
    for name, make_state in {"in memory": State, "mapped": State, "copied": Copied}.items():
        account = Account()
        in_file = name != "in memory"
        storage = Storage(folder, chunk_bytes=chunk_bytes, recorder=account) if in_file else None
        ways[name] = Way(arena, storage, make_state, account)
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
