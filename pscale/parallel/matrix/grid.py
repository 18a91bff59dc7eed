"""Where matrices lie on a grid of ranks: which axes cut rows and columns, which parameters a rank has.

A transformer block is two pairs of products. What lies `outside` of the pairs goes `into` the first product,
whose result is `inside`: heads, or the wide part of an MLP; the second leads `out_of` it. Three axes: tx and
ty cut columns, in turns contraction and output of a product; tz cuts rows and, within each block of
weights, who keeps which part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

    `looked_up` are the rows for which a rank looks in its part of the table.
    """

    outside: Partition
    inside: Partition
    into: Partition
    out_of: Partition
    table: Partition
    looked_up: tuple[str, ...] = ()

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


def scheme_of(plan: Plan) -> Scheme:
    """Return where the plan puts everything; a grid of one rank cuts nothing."""
    return SCHEMES[plan.matrix.algorithm]


def activation_parts(plan: Plan) -> tuple[int, int]:
    """Return into how many parts sequences and features of activations between layers are cut."""
    return scheme_of(plan).outside.parts(plan.sizes)


def attention_copies(plan: Plan) -> int:
    """Return how many ranks compute the same attention: those that cut neither its rows nor its heads."""
    return plan.matrix.ranks // count(scheme_of(plan).inside.axes, plan.sizes)


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
) -> tuple[Cut, tuple[int, ...]]:
    """Return this rank's part of a matrix, or of a vector, which has columns alone, and its shape.

    `groups` things side by side in the columns, such as q, k and v, are cut each for itself.
    """
    *rows, columns = whole
    axes, view = partition.axes if rows else partition.columns, (*rows, groups, columns // groups)
    index = partial(_index, view, partition, {axis: mesh.sizes[axis] for axis in spanned(mesh.sizes, axes)})
    rank = mesh.axis(*axes).rank
    *mine, _, each = index(rank)
    shape = (*(part.stop - part.start for part in mine), groups * (each.stop - each.start))
    return Cut(whole=whole, view=view, index=index, rank=rank, axes=axes), shape


def _index(view: Sequence[int], partition: Partition, sizes: Sizes, rank: int) -> tuple[slice, ...]:
    """Return which part of a matrix, or vector, a rank has of those that axes of these `sizes` number."""
    *rows, _, columns = view
    place = coordinates(sizes, rank)
    parts = (share_of(size, partition.rows, sizes, place) for size in rows)
    return (*parts, slice(None), share_of(columns, partition.columns, sizes, place))
