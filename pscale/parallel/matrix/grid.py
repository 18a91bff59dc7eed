"""Where matrices lie on a grid of ranks: which axes cut rows and columns, which parameters a rank has.

A transformer block is two pairs of products. What lies `outside` of the pairs goes `into` the first product,
whose result is `inside`: heads, or the wide part of an MLP; the second leads `out_of` it. Three axes: tx and
ty cut columns, in turns contraction and output of a product; tz cuts rows and, within each block of
weights, who keeps which part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pscale.config import Plan
from pscale.config.choices import MatrixAlgorithm
from pscale.mesh.axis import Mesh
from pscale.mesh.grid import coordinates, spanned
from pscale.nn.param import Cut, share

Sizes = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Partition:
    """The axes over which rows and columns of a matrix are cut, the slowest first; other axes repeat it."""

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def parts(self, sizes: Sizes) -> tuple[int, int]:
        """Return into how many parts rows and columns are cut."""
        return count(self.rows, sizes), count(self.columns, sizes)

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes that cut it."""
        return self.rows + self.columns


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Where everything lies. Rows of activations are sequences, rows of the table tokens of the vocabulary.

    `looked_up` are the rows for which a rank looks in its part of the table. What `experts` have lies by
    their number, and what no product of a pair has, is `whole`.
    """

    outside: Partition
    inside: Partition
    into: Partition
    out_of: Partition
    table: Partition
    looked_up: tuple[str, ...] = ()
    whole: Partition = field(default_factory=Partition)
    experts: Partition = field(default_factory=lambda: Partition(rows=("ep",)))

    @property
    def positions(self) -> Partition:
        """The table of positions, of which every rank that has rows needs all."""
        return Partition(columns=self.outside.columns)


def _square() -> Scheme:
    block = Partition(rows=("tx",), columns=("ty",))
    return Scheme(outside=block, inside=block, into=block, out_of=block, table=block)


SCHEMES: dict[MatrixAlgorithm, Scheme] = {
    "cannon": _square(),
    "summa": _square(),
    "agarwal": Scheme(
        outside=Partition(rows=("tz", "ty"), columns=("tx",)),
        inside=Partition(rows=("tz", "tx"), columns=("ty",)),
        into=Partition(rows=("tx", "tz"), columns=("ty",)),
        out_of=Partition(rows=("ty", "tz"), columns=("tx",)),
        table=Partition(rows=("ty",), columns=("tx",)),
        looked_up=("tz",),
    ),
    "axonn": Scheme(
        outside=Partition(rows=("tz",), columns=("tx",)),
        inside=Partition(rows=("tz",), columns=("ty",)),
        into=Partition(rows=("tx", "tz"), columns=("ty",)),
        out_of=Partition(rows=("ty", "tz"), columns=("tx",)),
        table=Partition(rows=("ty",), columns=("tx",)),
        looked_up=("tz",),
    ),
}


_COLUMNS, _ROWS = Partition(columns=("tp",)), Partition(rows=("tp",))
_TENSOR = {  # as in Megatron-LM, by how the embedding is cut
    embedding: Scheme(outside=Partition(), inside=_COLUMNS, into=_COLUMNS, out_of=_ROWS, table=table)
    for embedding, table in (("row", _ROWS), ("column", _COLUMNS))
}


def scheme_of(plan: Plan) -> Scheme:
    """Return where the plan puts everything: on its grid, or on the ranks of the tensor axis."""
    return SCHEMES[plan.matrix.algorithm] if plan.matrix.ranks > 1 else _TENSOR[plan.embedding]


def activation_parts(plan: Plan) -> tuple[int, int]:
    """Return into how many parts sequences and features of activations between layers are cut."""
    return scheme_of(plan).outside.parts(plan.sizes)


def attention_copies(plan: Plan) -> int:
    """Return how many ranks of a grid compute the same attention: they cut neither its rows nor its heads."""
    return plan.matrix.ranks // count(SCHEMES[plan.matrix.algorithm].inside.axes, plan.sizes)


def count(axes: Sequence[str], sizes: Sizes) -> int:
    """Return how many ranks the axes span."""
    return math.prod(sizes.get(axis, 1) for axis in axes)


def share_of(total: int, axes: Sequence[str], sizes: Sizes, place: Sizes) -> slice:
    """Return which of `total` things, cut over the axes, the rank at `place` has."""
    part = 0
    for axis in axes:
        part = part * sizes.get(axis, 1) + place.get(axis, 0)
    return share(total, count(axes, sizes), part)


def cut(
    whole: tuple[int, ...], partition: Partition, mesh: Mesh, *, groups: int = 1
) -> tuple[Cut | None, tuple[int, ...]]:
    """Return this rank's part of a tensor, None where it has all, and the shape of that.

    Of more dims than two the first are rows; a vector has columns alone. `groups` things side by side in the
    columns, such as q, k and v, are cut each for itself.
    """
    over = (partition.rows, *[()] * (len(whole) - 2), partition.columns)[-len(whole) :]
    axes = tuple(axis for each in over for axis in each)
    sizes = {axis: mesh.sizes[axis] for axis in spanned(mesh.sizes, axes)}
    if not sizes:
        return None, whole
    view = (*whole[:-1], groups, whole[-1] // groups)
    index, rank = partial(_index, view, over, sizes), mesh.axis(*axes).rank
    *rows, _, each = index(rank)
    shape = (*(part.stop - part.start for part in rows), groups * (each.stop - each.start))
    return Cut(whole=whole, view=view, index=index, rank=rank, axes=axes), shape


def _index(
    view: Sequence[int], over: Sequence[tuple[str, ...]], sizes: Sizes, rank: int
) -> tuple[slice, ...]:
    """Return which part of a view a rank has of those that axes of these `sizes` number."""
    place, dims = coordinates(sizes, rank), (*view[:-2], view[-1])
    *rows, columns = (share_of(size, axes, sizes, place) for size, axes in zip(dims, over, strict=True))
    return (*rows, slice(None), columns)
