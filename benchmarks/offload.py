"""State in a file: what an update costs, by folder and size of a chunk, beside state in memory.

For each it prints the median update, what of it was a stall, and the rate at which the thread moves bytes.

    python benchmarks/offload.py [--folders /tmp /dev/shm] [--millions 8] [--steps 9]
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from time import perf_counter

import numpy as np

from pscale.config import Train
from pscale.nn.offload.storage import Storage
from pscale.nn.optim import Flat, update
from pscale.nn.optimizers import make_optimizer
from pscale.nn.param import Arena, Param, normal

CHUNKS = [256 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20]


class Account:
    """Notes of one step after another, added up."""

    def __init__(self) -> None:
        self.bytes, self.stalled_ns, self.moving_ns = 0, 0, 0

    def handed(self, verb: str, size_bytes: int) -> None:  # noqa: ARG002
        """Count bytes."""
        self.bytes += size_bytes

    def stalled(self, verb: str, enter: int, leave: int) -> None:  # noqa: ARG002
        """Count waits."""
        self.stalled_ns += leave - enter

    def moved(self, verb: str, size_bytes: int, enter: int, leave: int) -> None:  # noqa: ARG002
        """Count what the thread takes."""
        self.moving_ns += leave - enter


def measure(arena: Arena, storage: Storage | None, steps: int) -> float:
    """Return the median time of an update in s, gradients being new each time."""
    flat = Flat(arena.data, arena.grad, arena.params)
    optimizer, times = make_optimizer(Train(), [flat], storage=storage), []
    for _ in range(steps + 2):
        np.multiply(arena.grad, 0.9, out=arena.grad)
        start = perf_counter()
        update(optimizer, 1, 1e-3)
        times.append(perf_counter() - start)
    return statistics.median(times[2:])


def main() -> None:
    """Measure every folder with every chunk."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folders", nargs="+", type=Path, default=[Path("/tmp"), Path("/dev/shm")])
    parser.add_argument("--millions", type=int, default=8)
    parser.add_argument("--steps", type=int, default=9)
    given = parser.parse_args()
    arena = Arena([Param("w", (given.millions * 1_000_000,), layer=0, draw=normal(1.0))], "float32")
    arena.fill(1)
    arena.grad[...] = arena.data
    print(f"{'in memory':24} {1e3 * measure(arena, None, given.steps):8.2f} ms")
    for folder in given.folders:
        for chunk_bytes in CHUNKS:
            account = Account()
            storage = Storage(folder, chunk_bytes=chunk_bytes, notes=account)
            update_s = measure(arena, storage, given.steps)
            storage.close()
            stalled_ms = account.stalled_ns * 1e-6 / (given.steps + 2)
            rate = account.bytes / account.moving_ns
            name = f"{folder} {chunk_bytes >> 10} KiB"
            print(f"{name:24} {1e3 * update_s:8.2f} ms, stalled {stalled_ms:8.2f} ms, {rate:5.2f} GB/s")


if __name__ == "__main__":
    main()
