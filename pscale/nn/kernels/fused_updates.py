"""The kernels of optimizers in C, and how C is called; fused_updates.h says how they work."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from pscale.nn.buffers import Array
from pscale.nn.kernels.meeting import address
from pscale.nn.kernels.updates import Updates
from pscale.nn.kernels.wide_pieces import wide_pieces

_TYPES = ("float32", "float64")  # that the library has


class FusedUpdates(Updates):
    """Updates that touch each number once, on `threads` threads."""

    threads: int
    library: ctypes.CDLL

    def sgd(self, weight: Array, grad: Array, velocity: Array | None, **factors: float) -> None:
        """Touch each of the three once."""
        reals = _reals(factors, "scale", "momentum", "rate")
        for part, wide in wide_pieces(grad, weight):
            v = None if velocity is None else velocity[part]
            self.function("sgd", weight)(*data(weight[part], wide, v), *sizes(wide.size), *reals)

    def adamw(self, weight: Array, grad: Array, m: Array, v: Array, **factors: float) -> None:
        """Touch each of the four once."""
        reals = _reals(factors, "scale", "beta1", "beta2", "rate", "epsilon", "keep")
        for part, wide in wide_pieces(grad, weight):
            arrays = data(weight[part], wide, m[part], v[part])
            self.function("adamw", weight)(*arrays, *sizes(wide.size), *reals)

    def lamb_moments(
        self, weight: Array, grad: Array, m: Array, v: Array, squares: Array, **factors: float
    ) -> None:
        """Add both sums by the way."""
        reals = _reals(factors, "scale", "beta1", "beta2", "rate", "epsilon", "decay")
        partial = np.empty((self.threads, 2))
        for part, wide in wide_pieces(grad, weight):
            arrays = data(weight[part], wide, m[part], v[part], squares, partial)
            self.function("lamb_moments", weight)(*arrays, *sizes(wide.size), *reals)

    def lamb(self, weight: Array, m: Array, v: Array, **factors: float) -> None:
        """Compute updates again rather than keep them."""
        self.function("lamb", weight)(
            *data(weight, m, v), *sizes(weight.size), *_reals(factors, "rate", "epsilon", "decay", "step")
        )

    def square_norm(self, x: Array) -> float:
        """Sum on all threads."""
        if x.dtype.name not in _TYPES:
            return super().square_norm(x)
        partial = np.empty(self.threads)
        result: float = self.function("square_norm", x)(*data(x), *sizes(x.size), *data(partial))
        return result

    def square_sums(self, x: Array, row_sums: Array, column_sums: Array) -> None:
        """Do both sums on one reading."""
        if x.dtype.name not in _TYPES:
            super().square_sums(x, row_sums, column_sums)
            return
        partial = np.empty((self.threads, x.shape[1]))
        self.function("square_sums", x)(*data(x, row_sums, column_sums, partial), *sizes(*x.shape))

    def factored_norm(self, x: Array, of_rows: Array, of_columns: Array) -> float:
        """Keep nothing of the products."""
        partial, total = np.empty(self.threads), 0.0
        for part, wide in wide_pieces(x, of_columns):
            arrays = data(wide, of_rows[part], of_columns, partial)
            total += self.function("factored_norm", wide)(*arrays, *sizes(*wide.shape))
        return total

    def factored_step(
        self, weight: Array, x: Array, of_rows: Array, of_columns: Array, **factors: float
    ) -> None:
        """Touch weights and gradients once."""
        reals = _reals(factors, "rate", "keep")
        for part, wide in wide_pieces(x, of_columns):
            arrays = data(weight[part], wide, of_rows[part], of_columns)
            self.function("factored_step", wide)(*arrays, *sizes(*wide.shape), *reals)

    def function(self, name: str, x: Array) -> Callable[..., Any]:
        """Return a function of the library for the type of `x`."""
        function: Callable[..., Any] = getattr(self.library, f"{name}_{x.dtype.name}")
        return function


def data(*arrays: Array | None) -> list[ctypes.c_void_p]:
    """Return where arrays lie; nowhere for None."""
    for x in arrays:
        assert x is None or x.flags.c_contiguous
    return [ctypes.c_void_p(None if x is None else address(x)) for x in arrays]


def sizes(*values: int) -> list[ctypes.c_int64]:
    """Return sizes as C takes them."""
    return [ctypes.c_int64(size) for size in values]


def _reals(factors: dict[str, float], *order: str) -> list[ctypes.c_double]:
    return [ctypes.c_double(factors[name]) for name in order]
