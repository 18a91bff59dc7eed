"""The axes of the mesh, each declared once: what the ranks along it split, cut and share.

Everything else that depends on which axes there are follows from the table: the order of ranks, over whom
gradients are summed and norms are counted, which ranks can differ in memory, the columns of results, labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class MeshAxis:
    """One axis; `name` is that of its degree in a plan.

    Ranks that differ along it alone see other parts of what it `splits`, or the same tokens, and hold other
    parts of what it `cuts`, or the same parameters. A plan may deal it out to two axes, its `halves`: the
    ranks of the second are neighbours.
    """

    name: str
    meaning: str
    stride: int  # place in the mesh: neighbours along an axis of stride 0 are consecutive ranks
    splits: Literal["batch", "sequence"] | None = None  # which dim of the tokens
    cuts: Literal["layers", "tensors", "experts", "blocks"] | None = None  # how the parameters
    uneven: bool = False  # whether another rank than the first can hold the most
    halves: tuple[str, str] | None = None

    @property
    def of_grid(self) -> bool:
        """Whether it is an axis of the grid of matrix parallelism."""
        return self.cuts == "blocks"


# In the order in which people write a plan, and results have their columns.
AXES = (
    MeshAxis(name="dp", meaning="data", stride=6, splits="batch", halves=("replica", "shard")),
    MeshAxis(name="tp", meaning="tensor", stride=3, cuts="tensors"),
    MeshAxis(name="pp", meaning="pipeline", stride=7, cuts="layers", uneven=True),
    MeshAxis(
        name="cp",
        meaning="context",
        stride=4,
        splits="sequence",
        uneven=True,
        halves=("ring", "ulysses"),
    ),
    MeshAxis(name="ep", meaning="expert", stride=5, splits="batch", cuts="experts"),
    MeshAxis(name="tx", meaning="grid", stride=1, cuts="blocks", uneven=True),
    MeshAxis(name="ty", meaning="grid", stride=0, cuts="blocks", uneven=True),
    MeshAxis(name="tz", meaning="grid, depth", stride=2, cuts="blocks"),
)
_IN_MESH = sorted(AXES, key=lambda axis: -axis.stride)
HALVES: Mapping[str, tuple[str, str]] = {axis.name: axis.halves for axis in AXES if axis.halves}
SETS = HALVES["dp"][0]  # the sets that each have all shards: hybrid sharding

PLAN_AXES = tuple(axis.name for axis in AXES if not axis.of_grid)
GRID_AXES = tuple(axis.name for axis in AXES if axis.of_grid)
DEGREES = PLAN_AXES + GRID_AXES


def _where(holds: Callable[[MeshAxis], object] = lambda _: True) -> tuple[str, ...]:
    """Return the axes for which something holds, in the order of the mesh: the slowest varying first."""
    return tuple(axis.name for axis in _IN_MESH if holds(axis))


ALL_AXES = _where()
TOKEN_AXES = _where(lambda axis: axis.splits)  # whose ranks see other tokens
BATCH_AXES = _where(lambda axis: axis.splits == "batch")
SEQUENCE_AXES = _where(lambda axis: axis.splits == "sequence")
SAME_TOKEN_AXES = _where(lambda axis: not axis.splits and axis.cuts != "layers")  # in the same layers
PARAMETER_AXES = _where(lambda axis: axis.cuts)  # whose ranks hold other parameters
WITHIN_LAYERS = _where(  # whose ranks share the work of a layer, and not as a grid
    lambda axis: axis.splits == "sequence" or axis.cuts in ("tensors", "experts")
)
UNEVEN_AXES = _where(lambda axis: axis.uneven)


def mesh_sizes(degrees: Mapping[str, int], inner: Mapping[str, int]) -> dict[str, int]:
    """Return the size of every axis of a mesh, the slowest varying first.

    `inner` is the size of the second half of an axis that is dealt out to two, if there is one.
    """
    sizes: dict[str, int] = {}
    for name in (name for name in ALL_AXES if name in degrees):
        degree, second = degrees[name], inner.get(name, 0)
        if 0 < second < degree:
            sizes.update(zip(HALVES[name], (degree // second, second), strict=True))
        else:
            sizes[name] = degree
    return sizes
