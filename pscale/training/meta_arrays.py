"""Arrays that have a shape and a type and no memory: what is done with them costs next to nothing.

A program of NumPy runs on them as it is and allocates, shares and sends what it would: shapes and sizes are
those of a real run, values are not. Choices that depend on values are made as if all values were zero; in
place of the number of elements that a condition selects, which only values tell, all of them are selected.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple
from numpy.typing import DTypeLike

from pscale.nn import kernels
from pscale.nn.buffers import Array, Lease, Source, memory_from
from pscale.nn.kernels import Kernels
from pscale.nn.kernels.attention_block import AttentionOperands
from pscale.nn.kernels.costs import KERNELS

_ITEM_BYTES = 16  # at least those of an element of any type

_YES_OR_NO = {
    *(np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal),
    *(np.logical_and, np.logical_or, np.logical_not, np.isfinite),
}
_BASIC = (int, np.integer, slice, type(None), type(...))  # indices that make views


@dataclass(frozen=True, slots=True)
class Compute:
    """Work on this rank's own memory: a kernel, or a function of NumPy on whole arrays.

    `kernel` is its class, and FLOPs and bytes are counted, as in `nn.kernels.costs`; what is no kernel is
    "elementwise". `sizes` are those of what is written; of a product ((stack,) m, k, n) for m × k and k × n
    matrices; of attention sequences, heads, scores of a head that are computed, and the width of a head.
    """

    function: str
    kernel: str
    sizes: tuple[int, ...]
    flops: int
    bytes: int


Note = Callable[[Compute], None]


class MetaArray(np.ndarray):
    """An array whose elements all lie on the same few bytes; those are its identity, as an address is."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **given: Any) -> Any:
        """Return an array of the result's shape, or `out` as it is."""
        outs = given.get("out")
        out = outs[0] if outs else _result(ufunc, method, inputs, given)
        if (note := _listener()) is not None:
            if ufunc is np.matmul:
                _noted(note, "multiply", *inputs, out)
            else:
                read = [x for x in inputs if isinstance(x, np.ndarray)]
                flops = max(x.size for x in (*read, out))
                moved = sum(x.nbytes for x in (*read, out))
                note(Compute(ufunc.__name__, "elementwise", out.shape, flops, moved))
        return out

    def __array_function__(self, function: Any, types: Any, given: Any, named: Any) -> Any:
        """Return what has the result's shape."""
        if function not in _RESULTS:
            return super().__array_function__(function, types, given, named)
        result = named["out"] if named.get("out") is not None else _RESULTS[function](*given, **named)
        if (note := _listener()) is not None and function not in _FREE:
            written = result if isinstance(result, np.ndarray) else given[0]
            note(Compute(function.__name__, "elementwise", written.shape, 0, 2 * written.nbytes))
        return result

    def __getitem__(self, index: Any) -> Any:
        """Return a view, or what has the shape of a selection."""
        if type(index) is slice:
            return super().__getitem__(index)
        parts = index if type(index) is tuple else (index,)
        if all(isinstance(part, _BASIC) for part in parts):
            return super().__getitem__(index)
        return meta_array(_selected(self.shape, parts), self.dtype)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Note what is written."""
        if (note := _listener()) is not None:
            part = self[index]
            note(Compute("copyto", "elementwise", part.shape, 0, 2 * part.nbytes))

    @property
    def data(self) -> Any:
        """The few bytes."""
        base: Any = self
        while isinstance(base, np.ndarray):
            base = base.base
        return base

    def view(self, dtype: DTypeLike) -> MetaArray:  # type: ignore[override]
        """Return the same bytes as other numbers."""
        kind = np.dtype(dtype)
        shape = (*self.shape[:-1], self.shape[-1] * self.itemsize // kind.itemsize)
        return _over(self.data, shape, kind)

    def astype(self, dtype: DTypeLike, **_: Any) -> MetaArray:  # type: ignore[override]
        """Return a new array."""
        return meta_array(self.shape, dtype)

    def copy(self, order: Any = "C") -> MetaArray:  # noqa: ARG002
        """Return a new array."""
        return meta_array(self.shape, self.dtype)

    def ravel(self, order: Any = "C") -> MetaArray:  # noqa: ARG002
        """Return a flat view."""
        return _over(self.data, (self.size,), self.dtype)

    def fill(self, value: Any) -> None:  # noqa: ARG002
        """Note what is written."""
        self[...] = 0

    def partition(self, kth: Any, **_: Any) -> None:  # type: ignore[override]  # noqa: ARG002
        """Note what is written."""
        self[...] = 0


def meta_array(shape: tuple[int, ...], dtype: DTypeLike) -> MetaArray:
    """Return an array that shares its bytes with no other."""
    return _over(bytearray(_ITEM_BYTES), shape, np.dtype(dtype))


def _over(memory: Any, shape: tuple[int, ...], kind: np.dtype[Any]) -> MetaArray:
    return np.ndarray.__new__(MetaArray, shape, kind, memory, 0, (0,) * len(shape))


def _result(ufunc: np.ufunc, method: str, inputs: Any, given: Any) -> MetaArray:
    """Return what has the shape and the type of a function's result."""
    shapes = [np.shape(x) for x in inputs]
    kinds = [x.dtype for x in inputs if isinstance(x, np.ndarray | np.generic)]
    kind = np.dtype(bool) if ufunc in _YES_OR_NO else np.dtype(given.get("dtype") or np.result_type(*kinds))
    if method == "reduce":
        return meta_array(_reduced(shapes[0], given.get("axis", 0), bool(given.get("keepdims"))), kind)
    if method != "__call__":
        raise NotImplementedError(f"{ufunc.__name__}.{method} of arrays without memory")
    if ufunc is np.matmul:
        *stack, m, _, n = _product(*inputs)
        return meta_array((*stack, *[m][: len(shapes[0]) - 1], *[n][: len(shapes[1]) - 1]), kind)
    whole = np.broadcast_shapes(*shapes)
    return meta_array(whole[:-1] if ufunc is np.vecdot else whole, kind)


def _product(a: Array, b: Array) -> tuple[int, ...]:
    """Return the sizes of a product: those of a stack, m, k and n."""
    m, n = (1 if a.ndim == 1 else a.shape[-2]), (1 if b.ndim == 1 else b.shape[-1])
    return (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), m, a.shape[-1], n)


def _reduced(shape: tuple[int, ...], axis: Any, keepdims: bool) -> tuple[int, ...]:
    """Return a shape without some axes; None: without any."""
    gone = range(len(shape)) if axis is None else normalize_axis_tuple(axis, len(shape))
    return tuple(1 if at in gone else size for at, size in enumerate(shape) if keepdims or at not in gone)


def _selected(shape: tuple[int, ...], parts: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the shape of a selection by some arrays among the indices; a condition selects everything."""
    indices: list[Any] = []
    for part in parts:
        array = part if isinstance(part, _BASIC) else np.asanyarray(part)
        if isinstance(array, np.ndarray) and array.dtype == bool:
            indices += [np.broadcast_to(np.int8(0), (array.size,))] * array.ndim
        else:
            indices.append(array)
    left = len(shape) - sum(index is not None and index is not ... for index in indices)
    if ... not in [index for index in indices if isinstance(index, type(...))]:
        indices.append(...)
    found: list[int] = []
    places: list[int] = []  # of arrays, and of numbers beside them, in the order of the indices
    at = 0  # where the first of them would be in what is found
    dims = iter(shape)
    for place, index in enumerate(indices):
        if index is None:
            found.append(1)
        elif index is ...:
            found += [next(dims) for _ in range(left)]
        elif isinstance(index, slice):
            found.append(len(range(*index.indices(next(dims)))))
        else:
            next(dims)
            at = at if places else len(found)
            places.append(place)
    together = places[-1] - places[0] + 1 == len(places)
    chosen = np.broadcast_shapes(*(np.shape(indices[place]) for place in places))
    at = at if together else 0
    return (*found[:at], *chosen, *found[at:])


def _along(x: Array, axis: int | None = None, **_: Any) -> MetaArray:
    """Return numbers of elements along an axis."""
    return meta_array(_reduced(x.shape, axis, keepdims=False), np.intp)


# What functions of NumPy return that are no ufuncs and make no views.
_RESULTS: dict[Any, Callable[..., Any]] = {
    np.copyto: lambda *_, **__: None,
    np.put_along_axis: lambda *_, **__: None,
    np.may_share_memory: lambda *_: False,
    np.argmax: _along,
    np.argsort: lambda x, **_: meta_array(x.shape, np.intp),
    np.bincount: lambda _, minlength: meta_array((minlength,), np.intp),
    np.concatenate: lambda *_, **__: None,
    np.count_nonzero: lambda x: x.size,
    np.cumsum: lambda x: meta_array(x.shape, x.dtype),
    np.dot: lambda *_: 0.0,
    np.empty_like: lambda x, shape=None, **_: meta_array(x.shape if shape is None else shape, x.dtype),
    np.flatnonzero: lambda _: np.zeros(0, np.intp),
    np.linalg.qr: lambda x: (x, x[: x.shape[1]]),
    np.nonzero: lambda x: tuple(meta_array((x.size,), np.intp) for _ in x.shape),
    np.repeat: lambda *_: meta_array((1,), np.intp),  # as often as values say
    np.take: lambda *_, **__: None,
    np.take_along_axis: lambda x, indices, **_: meta_array(indices.shape, x.dtype),
    np.tensordot: lambda a, b, axes: meta_array((*a.shape[:-axes], *b.shape[axes:]), b.dtype),
    np.vdot: lambda *_: 0.0,
    np.zeros_like: lambda x, **_: meta_array(x.shape, x.dtype),
}


# Those that move no data.
_FREE = {np.may_share_memory, np.empty_like}


class DryKernels(Kernels):
    """Kernels that note what is asked of them and compute nothing; every norm is 0."""

    name = "dry"

    def __init__(self, note: Note | None):
        self.note = note
        for name in KERNELS:
            setattr(self, name, partial(_noted, note, name))


def _listener() -> Note | None:
    return getattr(kernels.current(), "note", None)


def _noted(note: Note | None, name: str, x: Any, /, *rest: Any, **named: Any) -> float:
    if note is None:
        return 0.0
    sizes = x.shape if isinstance(x, np.ndarray) else ()
    if isinstance(x, AttentionOperands):
        sequences, heads, _, width = x.inputs[0].shape
        sizes = (sequences, heads, x.block.scores(kept=x.keeps_scores), width)
    elif name in ("multiply", "multiply_add"):
        sizes = _product(x, rest[0])
    elif name == "take_rows":
        sizes = rest[1].shape
    cost = KERNELS[name].cost(x, *rest, **named)
    note(Compute(name, cost.kernel, sizes, cost.flops, cost.bytes))
    return 0.0


@contextmanager
def meta_arrays(note: Note | None = None) -> Iterator[None]:
    """Let memory that this thread takes have no weight, and kernels not compute; `note` is told of work."""
    with kernels.in_this_thread(DryKernels(note)), memory_from(_SOURCE), _without_collections():
        yield


@contextmanager
def _without_collections() -> Iterator[None]:
    """Collect no garbage: the small objects of a step live to its end, and looking at them takes long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _MetaLease(Lease, bytearray):
    """The few bytes of arrays of a pool."""

    def array(self, shape: tuple[int, ...], kind: np.dtype[Any]) -> MetaArray:
        """Return an array on them."""
        return _over(self, shape, kind)

    def offset(self, array: Array) -> int:  # noqa: ARG002
        """Return 0, where all bytes are."""
        return 0


_SOURCE = Source(lambda size_bytes: meta_array((size_bytes,), np.uint8), lambda _: _MetaLease(_ITEM_BYTES))
