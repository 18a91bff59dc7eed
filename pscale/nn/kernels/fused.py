"""The kernels in C: one pass over memory each, on all threads of a rank; fused.c says how."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from pscale.nn.buffers import Array
from pscale.nn.kernels.fused_updates import FusedUpdates, data, sizes
from pscale.nn.kernels.meeting import meeting, view
from pscale.nn.kernels.piece import Piece, Progress, Softmax
from pscale.nn.kernels.reference import CUBIC, LINEAR, Kernels
from pscale.nn.kernels.scratch import scratch

INTERFACE = 8  # as in fused.c


@cache
def library() -> ctypes.CDLL | None:
    """Return the library built from fused.c; None if there is none, or one of other sources."""
    spec = importlib.util.find_spec("pscale.nn.kernels._fused")
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    built = ctypes.CDLL(spec.origin)
    same = hasattr(built, "interface") and built.interface() == INTERFACE
    return built if same else None


class FusedKernels(FusedUpdates, Kernels):
    """The kernels in C on `threads` threads."""

    name = "fused"

    def __init__(self, library: ctypes.CDLL, threads: int):
        self.threads, self.library = threads, library
        library.set_threads(threads)
        for dtype in ("float32", "float64"):
            for name in ("square_norm", "factored_norm"):
                getattr(library, f"{name}_{dtype}").restype = ctypes.c_double
            getattr(library, f"attention_room_{dtype}").restype = ctypes.c_int64

    def bias_gelu(self, x: Array, bias: Array, y: Array, slope: Array) -> None:
        """Read once, write twice."""
        self.function("bias_gelu", x)(
            *data(x, bias, y, slope), *sizes(*x.shape), ctypes.c_double(LINEAR), ctypes.c_double(CUBIC)
        )

    def bias_gelu_backward(self, dy: Array, slope: Array, dx: Array, bias_grad: Array) -> None:
        """Sum columns by the way."""
        partial = np.empty((self.threads, dy.shape[-1]), dy.dtype)
        self.function("bias_gelu_backward", dy)(*data(dy, slope, dx, bias_grad, partial), *sizes(*dy.shape))

    def layer_norm(
        self, x: Array, gain: Array, bias: Array, y: Array, mean: Array, inverse: Array, epsilon: float
    ) -> None:
        """Find a row in cache after its mean."""
        self.function("layer_norm", x)(
            *data(x, gain, bias, y, mean, inverse), *sizes(*x.shape), ctypes.c_double(epsilon)
        )

    def layer_norm_backward(
        self,
        x: Array,
        mean: Array,
        inverse: Array,
        gain: Array,
        dy: Array,
        dx: Array,
        gain_grad: Array,
        bias_grad: Array,
        skip: Array | None = None,
    ) -> None:
        """Do all four sums on one reading."""
        partial = np.empty((self.threads, 2, x.shape[1]), x.dtype)
        self.function("layer_norm_backward", x)(
            *data(x, mean, inverse, gain, dy, skip, dx, gain_grad, bias_grad, partial), *sizes(*x.shape)
        )

    def add(self, x: Array, skip: Array | None, bias: Array | None, y: Array) -> None:
        """Add in one pass."""
        self.function("add", x)(*data(x, skip, bias, y), *sizes(*x.shape))

    def add_to_rows(self, table: Array, rows: Array, x: Array) -> None:
        """Add row after row, without sorting."""
        self.function("add_to_rows", x)(*data(table, rows, x), *sizes(len(table), *x.shape))

    def attend(
        self,
        piece: Piece,
        inputs: Sequence[Array],
        y: Array,
        softmax: Softmax,
        *,
        first: bool,
        progress: Progress | None = None,
    ) -> None:
        """Keep a tile of scores in cache between its products."""
        views = (*inputs, y, softmax.maximum, softmax.total, softmax.factors, softmax.exponentials)
        self._attend("attend", piece, views, first, progress)

    def attend_backward(
        self,
        piece: Piece,
        inputs: Sequence[Array],
        y: Array,
        dy: Array,
        grads: Sequence[Array],
        softmax: Softmax,
        *,
        first: bool,
        progress: Progress | None = None,
    ) -> None:
        """Add to gradients in the products themselves."""
        views = (*inputs, y, dy, *grads, softmax.factors, softmax.exponentials)
        self._attend("attend_backward", piece, views, first, progress)

    def normalise(self, y: Array, total: Array) -> None:
        """Take the heads of a row together."""
        self.function("normalise", y)(*(ctypes.byref(view(x)) for x in (y, total)), *sizes(*y.shape))

    def _attend(
        self,
        name: str,
        piece: Piece,
        views: Sequence[Array | None],
        first: bool,
        progress: Progress | None,
    ) -> None:
        """Call a function with the scratch memory that it needs for each thread."""
        like, kept = views[0], views[-1] is not None
        assert like is not None
        whole = meeting(piece, like, first=first, kept=kept)
        numbers = self.function("attention_room", like)(ctypes.byref(whole), ctypes.c_int(kept))
        work = scratch().take((self.threads, numbers), like.dtype)
        for part in self._parts(views, progress):
            assert part[0] is not None
            self.function(name, like)(
                ctypes.byref(meeting(piece, part[0], first=first, kept=kept)),
                *(ctypes.byref(view(x)) for x in part),
                *data(work),
                *sizes(numbers),
            )
        scratch().give(work)

    def _parts(
        self, views: Sequence[Array | None], progress: Progress | None
    ) -> Iterator[Sequence[Array | None]]:
        """Cut sequences and heads into parts, between which exchanges under way may go on."""
        if progress is None:
            yield views
            return
        assert views[0] is not None
        B, heads = views[0].shape[:2]
        for b in range(B):
            for h in range(0, heads, self.threads):
                yield [None if x is None else x[b : b + 1, h : h + self.threads] for x in views]
                progress()
