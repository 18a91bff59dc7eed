"""The roofline of a rank: how fast it multiplies matrices, and how fast it moves memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from numpy.typing import DTypeLike

from pscale.nn import kernels
from pscale.nn.kernels.fused import FusedKernels

_WIDTH = 1024  # numbers of a row
_LEAST_BYTES, _MOST_BYTES = 16 << 20, 64 << 20  # of one of the three arrays
_STREAM_SECONDS = 0.06
_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")
_FEWEST = 3  # repetitions, however long one takes: the first of a large size still meets cold caches


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """What a process reaches: GFLOP/s of its fastest product, and how many cores its threads kept busy."""

    gflops: float
    cores: float


def measure_gemm(size: int, dtype: DTypeLike, seconds: float) -> Gemm:
    """Multiply two `size` x `size` matrices again and again; 2 size^3 operations a product.

    Repeats for `seconds` after a warm-up, at least three times. Threads that wait spinning count as busy.
    """
    random = np.random.default_rng(0)
    a, b = (random.random((size, size)).astype(dtype) for _ in range(2))
    out = np.empty_like(a)
    np.matmul(a, b, out=out)
    best, repetitions = float("inf"), 0
    begun, spent = perf_counter(), process_time()
    while repetitions < _FEWEST or perf_counter() < begun + seconds:
        start = perf_counter()
        np.matmul(a, b, out=out)
        best = min(best, perf_counter() - start)
        repetitions += 1
    cores = (process_time() - spent) / (perf_counter() - begun)
    return Gemm(gflops=2 * size**3 / best * 1e-9, cores=cores)


def stream_gb_s(size_bytes: int | None = None) -> float:
    """Return the memory bandwidth of this process in GB/s, by STREAM's Add: a = b + c on its own threads.

    It is the kernel `add`, whose threads are those of the steps. Bytes are counted as STREAM does (McCalpin
    1995): three streams, two reads and a write, as of the Triad; a cache that reads a line before it writes
    there moves a fourth, in this kernel as in all others. Each array has `size_bytes`, by default those of
    the last-level cache within 16 to 64 MiB, so that the three exceed it. The best of some repetitions
    counts; all takes some 0.15 s.
    """
    rows = (size_bytes or _array_bytes()) // (_WIDTH * np.dtype(np.float32).itemsize)
    a, b, c = (np.full((rows, _WIDTH), value, np.float32) for value in (0, 1, 2))
    current = kernels.current()
    best, begun = float("inf"), perf_counter()
    while best == float("inf") or perf_counter() < begun + _STREAM_SECONDS:
        start = perf_counter()
        if isinstance(current, FusedKernels):
            FusedKernels.add(current, b, c, None, a)  # of its base class: those of 16 bits would convert
        else:
            kernels.Kernels.add(current, b, c, None, a)
        best = min(best, perf_counter() - start)
    return 3 * a.nbytes / best * 1e-9


def _array_bytes() -> int:
    """Return the size of the last-level cache, within limits; the least where the system does not tell."""
    sizes = [path.read_text().strip() for path in sorted(_CACHE.glob("index*/size"))]
    known = [int(size[:-1]) << {"K": 10, "M": 20}[size[-1]] for size in sizes if size[-1:] in ("K", "M")]
    return min(max([_LEAST_BYTES, *known]), _MOST_BYTES)
