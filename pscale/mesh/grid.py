"""The grid of ranks: its dims, and the groups of ranks that exchange data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def spanned(sizes: Mapping[str, int], dims: Sequence[str]) -> tuple[str, ...]:
    """Return those of `dims` that have more than one rank, in the grid's order: an axis is known by them.

    Where hybrid sharding makes two dims of "dp", that names both.
    """
    wanted = {*dims, "replica", "shard"} if "dp" in dims else dims
    return tuple(dim for dim in sizes if dim in wanted and sizes[dim] > 1)


def groups(sizes: Mapping[str, int], wanted: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return each different group of more than one rank once, in one order on every rank."""
    spans = (spanned(sizes, dims) for dims in wanted)
    return list(dict.fromkeys(span for span in spans if span))


def axis_name(span: Sequence[str]) -> str:
    """Return the name of the axis over `span`, such as "dp" or "dp+cp"."""
    return "+".join(span)


def coordinates(sizes: Mapping[str, int], rank: int) -> dict[str, int]:
    """Return the place of `rank` along every dim; the last varies fastest."""
    places: dict[str, int] = {}
    for dim in reversed(list(sizes)):
        rank, places[dim] = divmod(rank, sizes[dim])
    return {dim: places[dim] for dim in sizes}


def members(sizes: Mapping[str, int], span: Sequence[str], rank: int) -> list[int]:
    """Return the ranks of the group over `span` that `rank` belongs to: they agree in all other dims."""

    def elsewhere(other: int) -> dict[str, int]:
        return {dim: place for dim, place in coordinates(sizes, other).items() if dim not in span}

    mine = elsewhere(rank)
    return [other for other in range(math.prod(sizes.values())) if elsewhere(other) == mine]
