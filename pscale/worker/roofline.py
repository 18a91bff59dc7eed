"""How fast this process multiplies matrices: the roof under which a training step works."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter, process_time

import numpy as np
from numpy.typing import DTypeLike

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
