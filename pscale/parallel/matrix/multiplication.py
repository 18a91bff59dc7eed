"""A product C = A B on a grid, in numbers: what one rank has of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pscale.parallel.matrix.grid import Sizes


@dataclass(frozen=True, kw_only=True)
class Multiplication:
    """The elements of the blocks that a rank at `place` multiplies.

    `contraction`, `output` and `depth` are dims of the grid; on a grid of two, rows of A and B are cut over
    the first, and columns over the second.
    """

    a: int
    b: int
    c: int
    contraction: str
    output: str
    depth: str
    sizes: Sizes
    place: Sizes

    def size(self, dim: str) -> int:
        """Return the ranks along a dim."""
        return self.sizes.get(dim, 1)


class Exchanged(NamedTuple):
    """Calls of one rank, all alike."""

    dim: str
    verb: str
    elements: int  # handed to each call
    times: int = 1
    wide: bool = False  # never numbers of 16 bits
