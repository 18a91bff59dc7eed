"""Float32 copies in scratch memory of what has 16 bits."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import numpy as np

from pscale.nn.buffers import Array
from pscale.nn.kernels.scratch import scratch
from pscale.number import is_narrow, wide


class Copies:
    """Float32 copies of arrays of 16 bits while something computes; other arrays stand for themselves."""

    def __init__(self) -> None:
        self._pool = scratch()
        self._taken: list[Array] = []
        self._results: list[tuple[Array, Array]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Round what was written."""
        for copy, x in self._results:
            np.copyto(x, copy, casting="unsafe")
        for copy in self._taken:
            self._pool.give(copy)

    def read(self, x: Array) -> Array:
        """Return `x` for reading, laid out alike: a transposed matrix stays one."""
        if not is_narrow(x.dtype):
            return x
        if x.ndim > 1 and x.strides[-2] < x.strides[-1]:
            return self.read(x.swapaxes(-1, -2)).swapaxes(-1, -2)
        copy = self._take(x)
        np.copyto(copy, x)
        return copy

    def write(self, x: Array) -> Array:
        """Return what is to be written in place of `x`."""
        if not is_narrow(x.dtype):
            return x
        copy = self._take(x)
        self._results.append((copy, x))
        return copy

    def change(self, x: Array) -> Array:
        """Return what is to be changed in place of `x`."""
        copy = self.write(x)
        if copy is not x:
            np.copyto(copy, x)
        return copy

    def _take(self, x: Array) -> Array:
        copy = self._pool.take(x.shape, wide(x.dtype))
        self._taken.append(copy)
        return copy
