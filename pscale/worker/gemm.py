"""How fast this process multiplies matrices: the roof under which a training step works."""

from __future__ import annotations

from time import perf_counter

import numpy as np

_FEWEST = 3  # repetitions, however long one takes: the first of a large size still meets cold caches


def gemm_gflops(size: int, dtype: str, seconds: float) -> float:
    """Return GFLOP/s of the fastest of many products of two `size` x `size` matrices.

    Repeats for `seconds` after a warm-up, at least three times; 2 size^3 operations a product.
    """
    random = np.random.default_rng(0)
    a, b = (random.random((size, size)).astype(dtype) for _ in range(2))
    out = np.empty_like(a)
    np.matmul(a, b, out=out)
    best, repetitions = float("inf"), 0
    end = perf_counter() + seconds
    while repetitions < _FEWEST or perf_counter() < end:
        start = perf_counter()
        np.matmul(a, b, out=out)
        best = min(best, perf_counter() - start)
        repetitions += 1
    return 2 * size**3 / best * 1e-9
