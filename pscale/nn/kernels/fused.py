"""The kernels in C: one pass over memory each, on all threads of a rank; fused.c says how."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pscale.nn.buffers import Array
from pscale.nn.kernels.fused_updates import FusedUpdates, data, sizes
from pscale.nn.kernels.meeting import meeting, room, view
from pscale.nn.kernels.piece import Piece, Progress, Softmax
from pscale.nn.kernels.reference import CUBIC, LINEAR, Kernels
from pscale.nn.kernels.scratch import scratch

INTERFACE = 5  # as in fused.c
PREFIXES, SUFFIXES = (
    ("cblas_", "scipy_cblas_"),
    ("64_", ""),
)  # of names in builds of OpenBLAS; 64: wide integers


@dataclass(frozen=True, kw_only=True)
class Products:
    """Addresses of the matrix products of a BLAS, and whether its integers have 64 bits."""

    sgemm: int
    dgemm: int
    wide: bool


def find_products(blas_path: str | None) -> Products | None:
    """Return the products of the library at `blas_path`; None if it names them in no known way."""
    if blas_path is None:
        return None
    library = ctypes.CDLL(blas_path)
    for prefix in PREFIXES:
        for suffix in SUFFIXES:
            names = (f"{prefix}{name}{suffix}" for name in ("sgemm", "dgemm"))
            found: list[Any] = [getattr(library, name, None) for name in names]
            if None not in found:
                sgemm, dgemm = (
                    ctypes.cast(function, ctypes.c_void_p).value for function in found if function
                )
                assert sgemm
                assert dgemm
                return Products(sgemm=sgemm, dgemm=dgemm, wide=bool(suffix))
    return None


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

    def __init__(self, library: ctypes.CDLL, products: Products, threads: int):
        self.threads, self.library = threads, library
        library.set_threads(threads)
        library.set_blas(
            ctypes.c_void_p(products.sgemm), ctypes.c_void_p(products.dgemm), ctypes.c_int(products.wide)
        )
        for name in ("square_norm", "factored_norm"):
            for dtype in ("float32", "float64"):
                getattr(library, f"{name}_{dtype}").restype = ctypes.c_double

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
    ) -> None:
        """Do all four sums on one reading."""
        partial = np.empty((self.threads, 2, x.shape[1]), x.dtype)
        self.function("layer_norm_backward", x)(
            *data(x, mean, inverse, gain, dy, dx, gain_grad, bias_grad, partial), *sizes(*x.shape)
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
        kept = softmax.exponentials is not None
        self._attend("attend", piece, views, 0 if kept else room(piece, tiles=1, kept=False), first, progress)

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
        kept = softmax.exponentials is not None
        numbers = room(piece, tiles=1 if kept else 2, rows_of=y.shape[-1], kept=kept)
        self._attend("attend_backward", piece, views, numbers, first, progress)

    def _attend(
        self,
        name: str,
        piece: Piece,
        views: Sequence[Array | None],
        numbers: int,
        first: bool,
        progress: Progress | None,
    ) -> None:
        """Call a function with `numbers` of scratch memory for each thread."""
        like, kept = views[0], views[-1] is not None
        assert like is not None
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
