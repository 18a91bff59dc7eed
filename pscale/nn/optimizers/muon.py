"""Muon (Jordan et al., 2024): momentum made orthogonal, matrix by matrix; AdamW for all that is no matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import NamedTuple

import numpy as np

from pscale.config import Train
from pscale.nn.buffers import Array, zeros
from pscale.nn.kernels.tiles import chunks
from pscale.nn.optimizers import adamw
from pscale.nn.optimizers.base import Optimizer, ProcessGroups, Rule, shard_size
from pscale.nn.optimizers.state import Flat, Kept, Piece, Run, Slots, State
from pscale.nn.param import Param

ITERATIONS = 5
A, B, C = 3.4445, -4.7750, 2.0315  # of a x + b x^3 + c x^5, which brings singular values near 1 quickly
SMALLEST_NORM = 1e-7
SCALE = 0.2  # root mean square of an update: about AdamW's, so that one rate is right for both


class Muon(Optimizer):
    """w -= lr (0.2 sqrt(max(rows, columns)) O(g + momentum v) + decay w), where v = momentum v + g.

    O brings singular values near 1, by Newton and Schulz's iteration (kellerjordan.github.io/posts/muon); the
    scale is that of Liu et al., 2025. q, k and v are a matrix each (with several queries for a key, the first
    of all keys, and so on), so are gate and up, and each of an expert. Embedding, head, biases and gains
    follow AdamW. Every rank that has a part of a matrix gathers it and finds all of O.
    """

    def __init__(self, train: Train, flats: Sequence[Flat], states: Sequence[State], groups: ProcessGroups):
        self._train, self._flats, self._groups = train, flats, groups
        self._momentum, others = states
        self._others = adamw.RULE.make(train, flats, [others], groups)
        self._layers = [list(_layers(flat, groups.shards.size)) for flat in flats]
        layers = [layer for part in self._layers for layer in part]
        self._work = _Work(*zeros(_sizes(layers, groups.shards.size), flats[0].data.dtype))
        self.state: Sequence[Array] = [*self._momentum.at_hand, *self._others.state, *self._work]
        self._lr, self._scale = 0.0, 1.0

    def begin(self, lr: float, scale: float, number: int) -> None:
        """Remember both."""
        self._lr, self._scale = lr, scale
        self._others.begin(lr, scale, number)

    def apply(self, part: int) -> None:
        """Update the momenta, layer by layer, and follow them."""
        self._others.apply(part)
        by_layer = groupby(self._momentum.pieces(part), lambda piece: piece.flat.params[0].layer)
        coming = next(by_layer, None)
        for layer in self._layers[part]:
            if coming is not None and coming[0] == layer.number:  # else this rank owns nothing of it
                for piece in coming[1]:
                    self._advance(piece, layer)
                coming = next(by_layer, None)
            if self._groups.shards.size > 1:
                mine, whole = self._work.sent[: layer.shard], self._work.layer
                self._groups.shards.all_gather(mine, whole[: layer.shard * self._groups.shards.size])
            for run in layer.runs:
                if run.size or _is_cut(run.param):  # another rank that cuts it may have some of it
                    self._follow(run, layer.starts[run.param], self._flats[part].data)

    def kept(self, *, changes: bool) -> Iterator[Kept]:
        """Yield the momenta of matrices and the moments of all else."""
        yield from self._momentum.kept(changes=changes)
        yield from self._others.kept(changes=changes)

    def _advance(self, piece: Piece, layer: _Layer) -> None:
        """Update momenta, and write where they lead to the layer's memory, or to what is sent of it."""
        share, shards = self._train.momentum, self._groups.shards
        memory = self._work.sent if shards.size > 1 else self._work.layer
        for run in piece.flat.runs:
            start = layer.starts[run.param] + run.first - shards.rank * layer.shard
            ahead, grad = memory[start : start + run.size], piece.flat.grad[run.place]
            for part in chunks(run.size):
                np.multiply(grad[part], self._scale, out=ahead[part], dtype=ahead.dtype)
                if piece.arrays:
                    velocity = piece.arrays[0][run.place][part]
                    velocity *= share
                    velocity += ahead[part]
                    ahead[part] += share * velocity

    def _follow(self, run: Run, start: int, weights: Array) -> None:
        """Orthogonalise the matrices of a parameter, and follow them with what is here of its weights."""
        param, weight = run.param, weights[run.place]
        here = self._work.layer[start : start + param.size]
        whole = self._whole(param, here)
        rows, columns = _sides(param)
        side_by_side = whole.reshape(-1, rows, param.matrices, columns)
        for outer, number in np.ndindex(len(side_by_side), param.matrices):
            orthogonalise(side_by_side[outer, :, number], self._work.factors, self._work.squares)
        if param.cut is not None and _is_cut(param):
            part = param.cut.take(whole)
            here.reshape(part.shape)[...] = part
        step = here[run.first : run.first + run.size]
        step *= self._lr * SCALE * math.sqrt(max(rows, columns))
        weight *= 1 - self._lr * self._train.weight_decay
        weight -= step

    def _whole(self, param: Param, here: Array) -> Array:
        """Return a parameter of which `here` is this rank's part: of experts, those of this rank."""
        if param.cut is None or not _is_cut(param):
            return here
        cuts, size = self._groups.cuts, math.prod(param.whole)
        parts, whole = self._work.parts[:size], self._work.whole[:size]
        cuts.all_gather(here, parts)
        for rank, part in enumerate(parts.reshape(cuts.size, -1)):
            param.cut.put(part, whole, rank)
        return whole


def orthogonalise(matrix: Array, factors: Array, squares: Array) -> None:
    """Bring the singular values of a matrix near 1; the smallest of all stay small.

    `factors` has room for two of its size, `squares` for two squares of its shorter side.
    """
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    rows = len(wide)
    x, product = factors[: 2 * wide.size].reshape(2, *wide.shape)
    square, mixed = squares[: 2 * rows * rows].reshape(2, rows, rows)
    np.copyto(x, wide)
    x /= np.linalg.norm(x) + SMALLEST_NORM
    for _ in range(ITERATIONS):
        np.matmul(x, x.T, out=square)
        np.matmul(square, square, out=mixed)
        mixed *= C
        square *= B
        mixed += square
        np.matmul(mixed, x, out=product)
        x *= A
        x += product
    np.copyto(wide, x)


@dataclass(frozen=True)
class _Layer:
    """A layer that has hidden matrices: their runs, where each parameter starts, the size of a shard."""

    number: int
    runs: Sequence[Run]
    starts: Mapping[Param, int]
    shard: int


class _Work(NamedTuple):
    """The memory for one layer and one parameter after another."""

    layer: Array
    sent: Array
    parts: Array
    whole: Array
    factors: Array
    squares: Array


def _layers(flat: Flat, shards: int) -> Iterator[_Layer]:
    for number, group in groupby(flat.runs, lambda run: run.param.layer):
        runs = list(group)
        sizes = [run.param.size for run in runs]
        starts = dict(zip((run.param for run in runs), accumulate([0, *sizes]), strict=False))
        if hidden := [run for run in runs if run.param.matrices]:
            yield _Layer(number, hidden, starts, shard_size(sum(sizes), shards))


def _sides(tensor: Param) -> tuple[int, int]:
    """Return rows and columns of each matrix of a tensor, whole."""
    *_, rows, columns = tensor.whole
    return rows, columns // tensor.matrices


def _is_cut(tensor: Param) -> bool:
    """Tell whether ranks have parts of the same matrix."""
    return tensor.shape[-2:] != tensor.whole[-2:]


def _sizes(layers: Sequence[_Layer], shards: int) -> list[int]:
    """Return the numbers of `_Work`."""
    tensors = [run.param for layer in layers for run in layer.runs]
    shard = max((layer.shard for layer in layers), default=0)
    whole = max((math.prod(tensor.whole) for tensor in tensors if _is_cut(tensor)), default=0)
    factors = max((math.prod(_sides(tensor)) for tensor in tensors), default=0)
    squares = max((min(_sides(tensor)) ** 2 for tensor in tensors), default=0)
    return [shard * shards, shard if shards > 1 else 0, whole, whole, 2 * factors, 2 * squares]


RULE = Rule(
    make=Muon,
    hyperparameters={
        **adamw.RULE.hyperparameters,
        "momentum": "decay rate of the momentum of matrices, 0.95 is usual",
    },
    slots=lambda train: [
        Slots(arrays=1 if train.momentum else 0, of=lambda tensor: tensor.matrices > 0),
        Slots(arrays=2, of=lambda tensor: tensor.matrices == 0),
    ],
)
