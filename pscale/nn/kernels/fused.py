"""The kernels in C: one pass over memory each, on all threads of a rank; fused.c says how."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pscale.nn.buffers import Array, address
from pscale.nn.kernels.attention_block import AttentionGradients, AttentionOperands, DroppedScores, cut
from pscale.nn.kernels.costs import KERNELS, Declaration
from pscale.nn.kernels.reference import Kernels
from pscale.nn.kernels.tiles import scratch, upcast_pieces

_TYPES = ("float32", "float64")  # that the library has
_PART = 1 << 21  # scores x width; less would take no longer than its call and asking for progress


def data(*arrays: Array | None) -> list[ctypes.c_void_p]:
    """Return where arrays lie; nowhere for None. They have to live until the call that uses it is over."""
    for x in arrays:
        assert x is None or x.flags.c_contiguous
    return [ctypes.c_void_p(None if x is None else address(x)) for x in arrays]


def sizes(*values: int) -> list[ctypes.c_int64]:
    """Return sizes as C takes them."""
    return [ctypes.c_int64(size) for size in values]


INTERFACE = 14  # as in fused.c
_BUILT = Path(__file__).with_name("_fused.so")


def library() -> ctypes.CDLL | None:
    """Return the library built from fused.c, or None."""
    return _loaded()[0]


def obstacle() -> str:
    """Return why there is no library; empty if there is one."""
    return _loaded()[1]


@cache
def _loaded() -> tuple[ctypes.CDLL | None, str]:
    if not _BUILT.is_file():
        return None, "they were not built"
    try:
        built = ctypes.CDLL(str(_BUILT))
    except OSError as error:  # such as no runtime of OpenMP, which wheels do not bring
        return None, str(error)
    if not hasattr(built, "interface") or built.interface() != INTERFACE:
        return None, "they were built from other sources"
    return built, ""


class FusedKernels(Kernels):
    """The kernels in C on `threads` threads."""

    name = "fused"

    def __init__(self, library: ctypes.CDLL, threads: int):
        self.threads, self.library = threads, library
        library.set_threads(threads)
        for dtype in ("float32", "float64"):
            for name in ("square_norm", "factored_norm", "cross_entropy"):
                getattr(library, f"{name}_{dtype}").restype = ctypes.c_double
            getattr(library, f"attention_room_{dtype}").restype = ctypes.c_int64

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
        for part, wide in upcast_pieces(x, of_columns):
            arrays = data(wide, of_rows[part], of_columns, partial)
            total += self.function("factored_norm", wide)(*arrays, *sizes(*wide.shape))
        return total

    def factored_step(
        self, weight: Array, x: Array, of_rows: Array, of_columns: Array, *, rate: float, keep: float
    ) -> None:
        """Touch weights and gradients once."""
        reals = ctypes.c_double(rate), ctypes.c_double(keep)
        for part, wide in upcast_pieces(x, of_columns):
            arrays = data(weight[part], wide, of_rows[part], of_columns)
            self.function("factored_step", wide)(*arrays, *sizes(*wide.shape), *reals)

    def function(self, name: str, x: Array) -> Callable[..., Any]:
        """Return a function of the library for the type of `x`."""
        function: Callable[..., Any] = getattr(self.library, f"{name}_{x.dtype.name}")
        return function

    def add_to_rows(self, table: Array, rows: Array, x: Array) -> None:
        """Add row after row, without sorting."""
        self.function("add_to_rows", x)(*data(table, rows, x), *sizes(len(table), *x.shape))

    def rotate(self, x: Array, cosine: Array, sine: Array, heads: int, sign: int) -> None:
        """Read each pair once."""
        numbers = sizes(*x.shape, heads, sine.shape[1], sign)
        self.function("rotate", x)(*data(x, cosine, sine), *numbers)

    def cross_entropy(self, y: Array, targets: Array, weight: float) -> float:
        """Find a row in cache after its maximum, and after its sum."""
        partial = np.empty(self.threads)
        arrays = data(y, targets, partial)
        result: float = self.function("cross_entropy", y)(*arrays, *sizes(*y.shape), ctypes.c_double(weight))
        return result

    def attend(self, of: AttentionOperands) -> None:
        """Keep a tile of scores in cache between its products."""
        softmax = of.softmax
        views = (*of.inputs, of.y, softmax.maximum, softmax.total, softmax.factors, softmax.exponentials)
        self._attend("attend", of, views)

    def attend_backward(self, of: AttentionGradients) -> None:
        """Add to gradients in the products themselves."""
        views = (*of.inputs, of.y, of.dy, *of.grads, of.softmax.factors, of.softmax.exponentials)
        self._attend("attend_backward", of, views)

    def normalise(self, y: Array, total: Array) -> None:
        """Take the heads of a row together."""
        self.function("normalise", y)(*(ctypes.byref(_view(x)) for x in (y, total)), *sizes(*y.shape))

    def _attend(self, name: str, of: AttentionOperands, views: Sequence[Array | None]) -> None:
        """Call a function with the scratch memory that it needs for each thread."""
        like, kept = of.inputs[0], of.keeps_scores
        whole = _block_argument(of, like, None)
        numbers = self.function("attention_room", like)(ctypes.byref(whole), ctypes.c_int(kept))
        work = scratch().take((self.threads, numbers), like.dtype)
        for heads in self._parts(of):
            part = [None if x is None else x[heads] for x in views]
            assert part[0] is not None
            self.function(name, like)(
                ctypes.byref(_block_argument(of, part[0], of.dropped and of.dropped.part(*heads))),
                *(ctypes.byref(_view(x)) for x in part),
                *data(work),
                *sizes(numbers),
            )

    def _parts(self, of: AttentionOperands) -> Iterator[tuple[slice, slice]]:
        """Cut sequences and heads into parts that are worth a call, between which exchanges may go on."""
        if of.progress is None:
            yield slice(None), slice(None)
            return
        B, heads, _, width = of.inputs[0].shape
        of_head = of.block.scores(kept=of.keeps_scores) * width
        enough = math.ceil(_PART / of_head / self.threads) * self.threads  # heads
        sequences, some = max(enough // heads, 1), min(enough, heads)
        for b in range(0, B, sequences):
            for h in range(0, heads, some):
                yield slice(b, b + sequences), slice(h, h + some)
                of.progress()


class _View(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sequence", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("row", ctypes.c_int64),
    )


class _Piece(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in (
                *("sequences", "heads", "queries", "keys", "width", "first", "first_of_keys", "tile_count"),
            )
        ),
        ("tiles", ctypes.c_void_p),
        ("scale", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("drop_sequences", "drop_heads", "drop_queries", "drop_keys")),
        *((name, ctypes.c_int64) for name in ("drop_site", "drop_seed", "drop_step")),
        ("drop_rate", ctypes.c_double),
    )
    held: list[Array]


def _block_argument(of: AttentionOperands, q: Array, dropped: DroppedScores | None) -> _Piece:
    """Describe queries, (B, H, queries, width), that meet the keys of a block, and what is dropped."""
    sequences, heads, _, width = q.shape
    table = _table(*of.block.size, causal=of.block.causal, kept=of.keeps_scores)
    writes = of.first, isinstance(of, AttentionGradients) and of.first_of_keys
    found = _Piece(
        *(sequences, heads, *of.block.size, width, *writes),
        *(len(table), address(table), 1 / math.sqrt(width)),
    )
    found.held = [table]  # as long as addresses are known
    if dropped is not None:
        for name in ("sequences", "heads", "queries", "keys"):
            numbers = np.ascontiguousarray(getattr(dropped, name), np.int64)
            found.held.append(numbers)
            setattr(found, f"drop_{name}", address(numbers))
        found.drop_site, (found.drop_seed, found.drop_step) = dropped.site, dropped.key
        found.drop_rate = dropped.rate
    return found


def _view(x: Array | None) -> _View:
    """Describe (B, H, rows, width) or (B, H, rows), or nothing."""
    if x is None:
        return _View()
    assert x.strides[-1] == x.itemsize, "columns lie side by side"
    sequence, head = x.strides[0] // x.itemsize, x.strides[1] // x.itemsize
    return _View(address(x), sequence, head, x.strides[2] // x.itemsize)


@lru_cache(maxsize=64)
def _table(queries: int, keys: int, *, causal: bool, kept: bool) -> Array:
    """Return a row of integers for every tile, in the order of `struct tile`."""
    rows, offset = [], 0
    for tile in cut(queries, keys, causal=causal, kept=kept):
        (height, width), row, key = tile.size, tile.queries.start, tile.keys.start
        seen = row - key + 1 if tile.causal else width
        ends = tile.first_of_queries, tile.last_of_queries, tile.last_of_keys
        rows.append((row, height, key, width, seen, offset, *ends))
        offset += height * width
    return np.array(rows, np.int64)


def _in_c(name: str, declared: Declaration) -> Callable[..., None]:
    """Return the method that calls a kernel whose function in C takes what is declared, in one pass.

    Arrays, room for the sums of each thread if there are any, rows and columns, numbers.
    """

    def call(self: FusedKernels, *given: Any, **named: Any) -> None:
        values = declared.bind(given, named)
        like = declared.like(values)
        arrays = [value for each, value in values.items() if each in declared.modes]
        if declared.sums:
            room = self.threads, len(declared.sums), like.shape[1]
            arrays.append(np.empty(room, like.dtype))
        numbers = [ctypes.c_double(value) for each, value in values.items() if each not in declared.modes]
        self.function(name, like)(*data(*arrays), *sizes(*like.shape), *numbers)

    return call


def _update_in_c(name: str, declared: Declaration) -> Callable[..., None]:
    """Return the method that calls an update of flat memory: each number is touched once.

    Gradients are upcast as the weights are. Where sums of squares are added up, threads have room for theirs.
    """

    def call(self: FusedKernels, *given: Any, **named: Any) -> None:
        values = declared.bind(given, named)
        weight, squares = values["weight"], values.get("squares")
        room = [] if squares is None else [squares, np.empty((self.threads, 2))]
        flat = [values[each] for each in declared.arguments if each in declared.modes and each != "squares"]
        numbers = [ctypes.c_double(value) for each, value in values.items() if each not in declared.modes]
        grad = values.get("grad", weight)
        for part, wide in upcast_pieces(grad, weight):
            arrays = [wide if x is grad else x if x is None else x[part] for x in flat]
            self.function(name, weight)(*data(*arrays, *room), *sizes(wide.size), *numbers)

    return call


for _name in ("sgd", "adamw", "lamb_moments", "lamb"):
    setattr(FusedKernels, _name, _update_in_c(_name, KERNELS[_name]))
_OWN = "cross_entropy", "mean_square", "add_to_rows", "rotate"  # above, or in NumPy alone
for _name, _declared in KERNELS.items():
    if _declared.rows and _name not in _OWN:
        setattr(FusedKernels, _name, _in_c(_name, _declared))
