"""Where matrices lie on a grid of ranks: which dims cut their rows, and which their columns.

A transformer block is two pairs of products. What lies `outside` of the pairs goes `into` the first product,
whose result is `inside`: heads, or the wide part of an MLP; the second leads `out_of` it. Three dims: tx and
ty cut columns, in turns contraction and output of a product; tz cuts rows and, within each block of
weights, who keeps which part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pscale.config import Plan
from pscale.config.choices import MatrixAlgorithm
from pscale.mesh.axis import Mesh
from pscale.nn.param import Cut, share

Sizes = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The dims over which rows and columns of a matrix are cut, the slowest first; other dims repeat it."""

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def parts(self, sizes: Sizes) -> tuple[int, int]:
        """Return into how many parts rows and columns are cut."""
        return count(self.rows, sizes), count(self.columns, sizes)

    @property
    def dims(self) -> tuple[str, ...]:
        """All dims that cut it."""
        return self.rows + self.columns


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Where everything lies. Rows of activations are sequences, rows of the table tokens of the vocabulary.

    `looked_up` are the rows for which a rank looks in its part of the table.
    """

    outside: Spread
    inside: Spread
    into: Spread
    out_of: Spread
    table: Spread
    looked_up: tuple[str, ...] = ()

    @property
    def positions(self) -> Spread:
        """The table of positions, of which every rank that has rows needs all."""
        return Spread(columns=self.outside.columns)


def _square() -> Scheme:
    block = Spread(rows=("tx",), columns=("ty",))
    return Scheme(outside=block, inside=block, into=block, out_of=block, table=block)


SCHEMES: dict[MatrixAlgorithm, Scheme] = {
    "cannon": _square(),
    "summa": _square(),
    "agarwal": Scheme(
        outside=Spread(rows=("tz", "ty"), columns=("tx",)),
        inside=Spread(rows=("tz", "tx"), columns=("ty",)),
        into=Spread(rows=("tx", "tz"), columns=("ty",)),
        out_of=Spread(rows=("ty", "tz"), columns=("tx",)),
        table=Spread(rows=("ty",), columns=("tx",)),
        looked_up=("tz",),
    ),
    "axonn": Scheme(
        outside=Spread(rows=("tz",), columns=("tx",)),
        inside=Spread(rows=("tz",), columns=("ty",)),
        into=Spread(rows=("tx", "tz"), columns=("ty",)),
        out_of=Spread(rows=("ty", "tz"), columns=("tx",)),
        table=Spread(rows=("ty",), columns=("tx",)),
        looked_up=("tz",),
    ),
}


def scheme_of(plan: Plan) -> Scheme:
    """Return where the plan puts everything; a grid of one rank cuts nothing."""
    return SCHEMES[plan.matrix.algorithm]


def activation_parts(plan: Plan) -> tuple[int, int]:
    """Return into how many parts sequences and features of activations between layers are cut."""
    return scheme_of(plan).outside.parts(plan.sizes)


def dealt_in(plan: Plan) -> int:
    """Return by what the sequences of a micro-batch have to divide."""
    scheme = scheme_of(plan)
    return math.lcm(*(count(spread.rows, plan.sizes) for spread in (scheme.outside, scheme.inside)))


def attending(plan: Plan) -> int:
    """Return how many ranks compute the same attention: those that cut neither its rows nor its heads."""
    return plan.matrix.ranks // count(scheme_of(plan).inside.dims, plan.sizes)


def count(dims: Sequence[str], sizes: Sizes) -> int:
    """Return how many ranks the dims span."""
    return math.prod(sizes.get(dim, 1) for dim in dims)


def share_of(total: int, dims: Sequence[str], sizes: Sizes, place: Sizes) -> slice:
    """Return which of `total` things, cut over the dims, the rank at `place` has."""
    part = 0
    for dim in dims:
        part = part * sizes.get(dim, 1) + place.get(dim, 0)
    return share(total, count(dims, sizes), part)


def cut(
    whole: tuple[int, ...], spread: Spread, mesh: Mesh, *, groups: int = 1
) -> tuple[Cut, tuple[int, ...]]:
    """Return this rank's part of a matrix, or of a vector, which has columns alone, and its shape.

    `groups` things side by side in the columns, such as q, k and v, are cut each for itself.
    """
    *rows, columns = whole
    mine = [share_of(size, spread.rows, mesh.sizes, mesh.coordinates) for size in rows]
    each = share_of(columns // groups, spread.columns, mesh.sizes, mesh.coordinates)
    view = (*rows, groups, columns // groups)
    index = (*mine, slice(None), each)
    shape = (*(part.stop - part.start for part in mine), groups * (each.stop - each.start))
    dims = spread.dims if rows else spread.columns
    return Cut(whole=whole, view=view, index=index, dims=dims), shape
