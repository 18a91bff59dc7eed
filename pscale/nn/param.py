"""Parameters, and the flat memory that holds all of a stage's."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from pscale.nn import kernels
from pscale.nn.buffers import Array
from pscale.nn.kernels.tiles import ones
from pscale.runs.tensor_files import Elements

Draw = Callable[["np.random.Generator", tuple[int, ...]], Array]
Progress = Callable[[], object]  # lets exchanges that are under way move on
_PARTS, _LEAST_ROWS = 4, 64  # of a product beside which data travel; smaller ones cost more than they hide


def normal(deviation: float) -> Draw:
    """Draw from a normal distribution around zero."""
    return lambda random, shape: random.normal(0.0, deviation, shape)


def constant(value: float) -> Draw:
    """Set every element to `value`."""
    return lambda _, shape: np.full(shape, value)


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Which part of a whole parameter each rank holds.

    The whole, of shape `whole`, is seen as `view`; the part of a rank is `view[index(rank)]`, and `rank` is
    this one. `axes` are those of the mesh whose ranks hold different parts, and are counted so.
    """

    whole: tuple[int, ...]
    view: tuple[int, ...]
    index: Callable[[int], tuple[slice, ...]]
    rank: int
    axes: tuple[str, ...]

    def take(self, whole: Array) -> Array:
        """Return this rank's part of `whole`, in the shape of the view."""
        return whole.reshape(self.view)[self.index(self.rank)]

    def put(self, part: Array, whole: Array, rank: int | None = None) -> None:
        """Write this rank's part, or that of another `rank`, to its place in the contiguous `whole`."""
        place = whole.reshape(self.view)[self.index(self.rank if rank is None else rank)]
        place[...] = part.reshape(place.shape)

    @property
    def dims(self) -> tuple[tuple[int, int, int], ...]:
        """Return start, count and stride of every dim of this rank's part, in elements of the whole."""
        strides = [math.prod(self.view[dim + 1 :]) for dim in range(len(self.view))]
        ranges = self._ranges(self.rank)
        return tuple((each.start, len(each), stride) for each, stride in zip(ranges, strides, strict=True))

    @property
    def before(self) -> int:
        """Return how many elements the ranks before this one hold."""
        return sum(math.prod(map(len, self._ranges(rank))) for rank in range(self.rank))

    def _ranges(self, rank: int) -> list[range]:
        index = self.index(rank)
        slices = (*index, *(slice(None) for _ in self.view[len(index) :]))
        return [range(size)[part] for part, size in zip(slices, self.view, strict=True)]


def share(total: int, parts: int, part: int) -> slice:
    """Return the part of `total` things; the first parts have one more where it does not divide."""
    each, more = divmod(total, parts)
    start = part * each + min(part, more)
    return slice(start, start + each + (part < more))


class Param:
    """A weight and its gradient, both views into an arena once bound.

    `layer` and `name` (unique within the layer) choose the random numbers, `sync` names the axes of the mesh
    over which the gradient is a partial sum, `decay` says whether weight decay applies, `cut` which part of
    the whole this is; without it, all. `matrices` counts those of a hidden layer that lie side by side in its
    columns: three for q, k and v, none in the embedding and the head. Of a `tied` one there is another copy,
    of the same name: gradients of both are to be added.
    """

    data: Array
    grad: Array

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        layer: int,
        draw: Draw,
        sync: tuple[str, ...] = (),
        decay: bool = False,
        cut: Cut | None = None,
        matrices: int = 0,
    ):
        self.name, self.shape, self.layer = name, shape, layer
        self.draw, self.sync, self.decay, self.cut, self.matrices = draw, sync, decay, cut, matrices
        self.size = math.prod(shape)
        self.whole = cut.whole if cut else shape
        self.tied = False
        self.stale = False  # the gradient belongs to an earlier step
        self.claim: Callable[[], None] | None = None  # gives a stale gradient memory, if it has none
        self.deferred: list[Callable[[], None]] | None = None  # to which products go that are done later

    def initial(self, seed: int) -> Array:
        """Draw the whole value in float64, the same for every plan, dtype and order; return this part."""
        random = np.random.default_rng([seed, self.layer, zlib.crc32(self.name.encode())])
        whole = self.draw(random, self.whole)
        return self.cut.take(whole).reshape(self.shape) if self.cut else whole

    @property
    def key(self) -> str:
        """Return its name among those of all layers."""
        return f"{self.layer}/{self.name}"

    def elements(self, first: int, size: int) -> Elements:
        """Return which elements of the whole are `size` of this part, from element `first` on."""
        return Elements(self.cut.dims if self.cut else ((0, self.size, 1),), first, size)

    def add_grad(self, values: Array) -> None:
        """Add to the gradient."""
        if self.stale:
            self._begin()
            np.copyto(self.grad, values)
        else:
            self.grad += values

    def add_product(self, a: Array, b: Array, progress: Progress | None = None) -> None:
        """Add `a @ b` to the gradient, now or later; now with `progress` between parts of the rows."""
        if self.deferred is None:
            self.multiply_add(a, b, progress)
        else:
            self.deferred.append(partial(self.multiply_add, a, b))

    def add_column_sums(self, rows: Array) -> None:
        """Add the sums of the columns of a matrix to the gradient, as `add_product` does."""
        self.add_product(ones(len(rows), rows.dtype), rows)

    def multiply_add(self, a: Array, b: Array, progress: Progress | None = None) -> None:
        """Add `a @ b` to the gradient now; the first of a step is written."""
        multiply = kernels.current().multiply if self.stale else kernels.current().multiply_add
        if self.stale:
            self._begin()
        if progress is None:
            multiply(a, b, self.grad)
            return
        for rows in parts_of(len(a), progress):
            multiply(a[rows], b, self.grad[rows])

    def accumulator(self) -> Array:
        """Return the gradient for adding to, zero if nothing was added in this step."""
        if self.stale:
            self._begin()
            self.grad.fill(0)
        return self.grad

    def _begin(self) -> None:
        """Be about to write the first contribution."""
        if self.claim is not None:
            self.claim()
        self.stale = False


Share = Callable[[Param], None]


def parts_of(rows: int, progress: Progress | None) -> Iterator[slice]:
    """Yield parts of the rows of a product, with `progress` after each; without it, all of them at once."""
    parts = 1 if progress is None else min(_PARTS, -(-rows // _LEAST_ROWS))
    for part in range(parts):
        yield share(rows, parts, part)
        if progress is not None:
            progress()


def views(params: Iterable[Param], memory: Array) -> Iterator[tuple[Param, Array]]:
    """Yield parameters with what is theirs of flat `memory`, in which they lie one after another."""
    start = 0
    for param in params:
        yield param, memory[start : start + param.size].reshape(param.shape)
        start += param.size


def fill(params: Iterable[Param], seed: int, share: Share | None = None) -> None:
    """Give parameters their initial values, which `share` replaces by those of the first rank."""
    for param in params:
        param.data[...] = param.initial(seed)
        if share is not None:
            share(param)
