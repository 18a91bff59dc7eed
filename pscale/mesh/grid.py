"""The grid of ranks: its axes, and the groups of ranks that exchange data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pscale.config.axes import HALVES


def spanned(sizes: Mapping[str, int], axes: Sequence[str]) -> tuple[str, ...]:
    """Return those of `axes` that have more than one rank, in the grid's order: an axis is known by them.

    Where an axis is dealt out to two, its name stands for both.
    """
    wanted = {*axes, *(half for axis in axes for half in HALVES.get(axis, ()))}
    return tuple(axis for axis in sizes if axis in wanted and sizes[axis] > 1)


def groups(sizes: Mapping[str, int], wanted: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return each different group of more than one rank once, in one order on every rank."""
    spans = (spanned(sizes, axes) for axes in wanted)
    return list(dict.fromkeys(span for span in spans if span))


def axis_name(span: Sequence[str]) -> str:
    """Return the name of the axis over `span`, such as "dp" or "dp+cp"."""
    return "+".join(span)


def coordinates(sizes: Mapping[str, int], rank: int) -> dict[str, int]:
    """Return the place of `rank` along every axis; the last varies fastest."""
    places: dict[str, int] = {}
    for axis in reversed(list(sizes)):
        rank, places[axis] = divmod(rank, sizes[axis])
    return {axis: places[axis] for axis in sizes}


def rank_at(sizes: Mapping[str, int], places: Mapping[str, int]) -> int:
    """Return the rank at a place along every axis of `sizes`: the inverse of `coordinates`."""
    rank = 0
    for axis, size in sizes.items():
        rank = rank * size + places[axis]
    return rank


def members(sizes: Mapping[str, int], span: Sequence[str], rank: int) -> list[int]:
    """Return the ranks of the group over `span` that `rank` belongs to: they agree in all other axes."""

    def elsewhere(other: int) -> dict[str, int]:
        return {axis: place for axis, place in coordinates(sizes, other).items() if axis not in span}

    mine = elsewhere(rank)
    return [other for other in range(math.prod(sizes.values())) if elsewhere(other) == mine]
