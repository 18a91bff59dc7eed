"""Adafactor: of the second moments of a matrix only the means of its rows and columns are kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from pscale.config import Train
from pscale.nn import kernels
from pscale.nn.buffers import Array
from pscale.nn.optimizers.adam import DECAY
from pscale.nn.optimizers.base import Optimizer, ProcessGroups, Rule
from pscale.nn.optimizers.state import Flat, Kept, Run, Slots, State
from pscale.nn.param import Param
from pscale.runs.tensor_files import Elements

SMALLEST_SCALE = 1e-3  # of a tensor's weights: the least that a relative step is relative to
LARGEST_UPDATE = 1.0  # root mean square of an update, beyond which it is made smaller
FORGETTING = -0.8  # step^FORGETTING is the share of the newest squares in the means

_SUMS = np.dtype(np.float64)

Lines = slice | NDArray[np.intp]  # rows or columns of a matrix


class Adafactor(Optimizer):
    """u = g / sqrt(v), at most 1 in root mean square; w -= max(1e-3, rms(w)) min(lr, 1 / sqrt(step)) u.

    Shazeer and Stern, 2018, without first moment, with the weight decay of AdamW. For a matrix v is the
    product of the means of its rows and columns over the mean of all; of more dims the last two are those of
    matrices. The means are of squares of gradients plus epsilon^2, over whole tensors wherever they lie:
    whoever has a part of a matrix has the means of its rows and columns, and where it is cut along both, as
    on a grid, of all rows and columns of the whole; of a vector v is kept where its weights are.
    """

    def __init__(self, train: Train, flats: Sequence[Flat], states: Sequence[State], groups: ProcessGroups):
        self._train, self._groups = train, groups
        kept = dict(_of_vectors(*states, parts=len(flats)))
        self._parts = [
            [
                _Vector(flat, run, kept[run.param]) if _is_vector(run.param) else _Matrices(flat, run)
                for run in flat.runs
            ]
            for flat in flats
        ]
        self._tensors = [tensor for part in self._parts for tensor in part]
        self._sums = _Sums(self._tensors)
        self.state: Sequence[Array] = [state for tensor in self._tensors for state in tensor.state]
        self._lr = 0.0
        self._rates: list[list[float]] = []

    def begin(self, lr: float, scale: float, number: int) -> None:
        """Update the means, and find how far to go with each tensor: two sums over what lies elsewhere."""
        self._lr = lr
        weights = self._sums.added_up(self._tensors, self._groups)
        for tensor in self._tensors:
            tensor.remember(number**FORGETTING, scale, self._train.epsilon**2)
        updates = np.array([tensor.update_square() for tensor in self._tensors], _SUMS)
        self._groups.shards.all_reduce(updates)
        self._groups.cuts.all_reduce(updates)
        relative = min(lr, 1 / math.sqrt(number))
        rates = iter(
            [
                relative * _step(tensor.whole_size, weight, update)
                for tensor, weight, update in zip(self._tensors, weights, updates, strict=True)
            ]
        )
        self._rates = [[next(rates) for _ in part] for part in self._parts]

    def apply(self, part: int) -> None:
        """Go as far; updates are computed again, so that no memory holds them."""
        for tensor, rate in zip(self._parts[part], self._rates[part], strict=True):
            decay = self._train.weight_decay if tensor.run.param.decay else 0.0
            tensor.step(rate, keep=1 - self._lr * decay)

    def kept(self, *, changes: bool) -> Iterator[Kept]:  # noqa: ARG002 - a step writes where they lie
        """Yield the means."""
        return chain.from_iterable(tensor.kept() for tensor in self._tensors)


def _step(size: int, weight: float, update: float) -> float:
    """Return how far to go relative to the learning rate, from sums of squares over `size` elements."""
    root = math.sqrt(update / size)
    return max(SMALLEST_SCALE, math.sqrt(weight / size)) / max(1.0, root / LARGEST_UPDATE)


class _Vector:
    """What is here of a tensor of one dim."""

    def __init__(self, flat: Flat, run: Run, state: Array):
        self.run, self.whole_size = run, math.prod(run.param.whole)
        self.data, self.grad = flat.data[run.place], flat.grad[run.place]
        self.state = [state]
        self._scale = 1.0

    def remember(self, fresh: float, scale: float, least: float) -> None:
        """Mix squares of gradients times `scale`, plus `least`, into the state: a share of `fresh`."""
        (v,) = self.state
        self._scale = scale
        v += fresh * (np.square(self._scaled()) + least - v)

    def update_square(self) -> float:
        """Return the sum of squares of the update."""
        return kernels.current().square_norm(self._update())

    def step(self, rate: float, *, keep: float) -> None:
        """Change the weights."""
        self.data *= keep
        self.data -= rate * self._update()

    def kept(self) -> Iterator[Kept]:
        """Yield what is here of the means."""
        run = self.run
        yield Kept(run.param, "0", run.param.elements(run.first, run.size), self.state[0])

    def _update(self) -> Array:
        return self._scaled() / np.sqrt(self.state[0])

    def _scaled(self) -> Array:
        """Return the gradient times the scale, in the type of the weights."""
        return np.multiply(self.grad, self._scale, dtype=self.data.dtype)


class _Matrices:
    """What is here of a tensor of two dims or more."""

    def __init__(self, flat: Flat, run: Run):
        *outer, rows, columns = run.param.shape
        self.run, self.whole = run, run.param.whole
        self.whole_size = math.prod(self.whole)
        self.data, self.grad = flat.data[run.place], flat.grad[run.place]
        *_, height, width = self.whole  # ranks share in sums over rows and columns whose elements are cut
        lines = (rows, height, columns != width), (columns, width, rows != height)
        self.partial = [partial for _, _, partial in lines]
        self._here = [np.zeros((math.prod(outer), size)) for size in (rows, columns)]  # sums of squares
        self._places: tuple[Lines, Lines] = _lines(run) if all(self.partial) else (slice(None), slice(None))
        self.rows, self.columns = (
            np.zeros((math.prod(outer), whole if partial else here)) for here, whole, partial in lines
        )
        self.state = [self.rows, self.columns]
        self.sums = [np.empty(0)] * 2  # of squares, as the state; set by `_Sums`
        self._blocks = list(_blocks(run, rows, columns))
        self._of_rows, self._of_columns = self._here[0].ravel(), self._here[1]

    def add_up(self) -> None:
        """Write the sums of what is here."""
        rows, columns = self._here
        for here in self._here:
            here.fill(0)
        for block in self._blocks:
            kernels.current().square_sums(
                block.of(self.grad), rows.ravel()[block.rows], columns[block.matrix, block.columns]
            )
        for sums, here, place in zip(self.sums, self._here, self._places, strict=True):
            sums[:, place] = here

    def remember(self, fresh: float, scale: float, least: float) -> None:
        """Mix means of squares of gradients times `scale`, plus `least`, into the state.

        Both have the same mean; that of all is taken of a vector that is whole.
        """
        sizes = self.whole[-1], self.whole[-2]
        for state, sums, size in zip(self.state, self.sums, sizes, strict=True):
            np.add(state, fresh * (sums * (scale**2 / size) + least - state), out=state)
        mean = (self.columns if self.partial[1] else self.rows).mean(axis=1, keepdims=True)
        kind, (rows, columns) = self.data.dtype, self._places
        self._of_rows = np.sqrt(mean / self.rows[:, rows]).astype(kind).ravel()
        self._of_columns = (scale / np.sqrt(self.columns[:, columns])).astype(kind)

    def update_square(self) -> float:
        """Return the sum of squares of what is here of the update."""
        computing = kernels.current()
        return sum(computing.factored_norm(block.of(self.grad), *self._of(block)) for block in self._blocks)

    def step(self, rate: float, *, keep: float) -> None:
        """Change the weights."""
        for block in self._blocks:
            kernels.current().factored_step(
                block.of(self.data), block.of(self.grad), *self._of(block), rate=rate, keep=keep
            )

    def kept(self) -> Iterator[Kept]:
        """Yield the means of rows and of columns, as runs of those of the whole tensor."""
        param = self.run.param
        *_, height, width = self.whole
        numbers = param.elements(0, param.size).numbers(slice(0, param.size)).reshape(param.shape)
        rows = numbers[..., :, 0] // width
        columns = numbers[..., 0, :] // (height * width) * width + numbers[..., 0, :] % width
        for kind, state, here, whole in zip(
            ("rows", "columns"), self.state, (rows, columns), (height, width), strict=True
        ):
            firsts = here.reshape(len(state), -1)[:, :1] // whole * whole  # of each matrix
            is_whole = state.shape[-1] == whole  # also where a part of the matrix is here
            places = (firsts + np.arange(whole) if is_whole else here).ravel()
            cuts = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), places.size]
            for start, stop in pairwise(cuts):
                elements = Elements(((int(places[start]), stop - start, 1),), 0, stop - start)
                yield Kept(param, kind, elements, state.ravel()[start:stop], everywhere=True)

    def _of(self, block: _Block) -> tuple[Array, Array]:
        return self._of_rows[block.rows], self._of_columns[block.matrix, block.columns]


_Tensor = _Vector | _Matrices


def _is_vector(tensor: Param) -> bool:
    return len(tensor.shape) == 1


def _of_vectors(state: State, *, parts: int) -> Iterator[tuple[Param, Array]]:
    """Yield the state of each vector."""
    for part in range(parts):
        for flat, [v] in state.pieces(part):
            yield from ((run.param, v[run.place]) for run in flat.runs)


def _lines(run: Run) -> tuple[Lines, Lines]:
    """Return which rows and columns of the whole matrix a part of it has."""
    cut = run.param.cut
    assert cut is not None
    rows, columns = cut.whole
    numbers = cut.take(np.arange(rows * columns)).reshape(run.param.shape)
    return numbers[:, 0] // columns, numbers[0] % columns


@dataclass(frozen=True)
class _Block:
    """A rectangle of a matrix that lies in one piece: whole rows, or a part of one."""

    place: slice  # in the memory of the run
    rows: slice  # of all matrices
    columns: slice
    matrix: int

    def of(self, memory: Array) -> Array:
        return memory[self.place].reshape(self.rows.stop - self.rows.start, -1)


def _blocks(run: Run, rows: int, columns: int) -> Iterator[_Block]:
    """Cut a run of elements of matrices, of `rows` by `columns` each, into rectangles."""
    at, stop = run.first, run.first + run.size
    while at < stop:
        row, column = divmod(at, columns)
        matrix = row // rows
        height = min((stop - at) // columns, (matrix + 1) * rows - row) if column == 0 else 0
        end = at + height * columns if height else min(stop, (row + 1) * columns)
        width = slice(0, columns) if height else slice(column, column + end - at)
        place = slice(at - run.first, end - run.first)
        yield _Block(place, slice(row, row + max(height, 1)), width, matrix)
        at = end


class _Sums:
    """Sums of squares of all tensors in one array: what parts of cut tensors share in lies at its start."""

    def __init__(self, tensors: Sequence[_Tensor]):
        matrices = [tensor for tensor in tensors if isinstance(tensor, _Matrices)]
        order = [
            (matrix, which)
            for partial in (True, False)
            for matrix in matrices
            for which in range(2)
            if matrix.partial[which] == partial
        ]
        self._all = np.zeros(len(tensors) + sum(matrix.state[which].size for matrix, which in order))
        self._weights, stop = self._all[: len(tensors)], len(tensors)
        self._crossing = self._weights
        for matrix, which in order:
            start, stop = stop, stop + matrix.state[which].size
            sums = list(matrix.sums)
            sums[which] = self._all[start:stop].reshape(matrix.state[which].shape)
            matrix.sums = sums
            if matrix.partial[which]:
                self._crossing = self._all[:stop]

    def added_up(self, tensors: Sequence[_Tensor], groups: ProcessGroups) -> Array:
        """Fill the sums of all matrices, here and elsewhere; return those of the squares of weights."""
        self._all.fill(0)
        for number, tensor in enumerate(tensors):
            self._weights[number] = kernels.current().square_norm(tensor.data)
            if isinstance(tensor, _Matrices):
                tensor.add_up()
        groups.shards.all_reduce(self._all)
        groups.cuts.all_reduce(self._crossing)
        return self._weights


RULE = Rule(
    make=Adafactor,
    hyperparameters={"epsilon": "its square is added to squared gradients"} | DECAY,
    slots=lambda _: [Slots(arrays=1, of=_is_vector)],
    factored=True,
)
