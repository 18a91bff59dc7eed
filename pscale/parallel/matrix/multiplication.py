"""A product C = A B on a grid, in numbers: what one rank has of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pscale.parallel.matrix.grid import Sizes


@dataclass(frozen=True, kw_only=True)
class Multiplication:
    """The blocks that a rank at `place` multiplies: `rows` x `inputs` by `inputs` x `outputs`.

    `contraction`, `output` and `depth` are dims of the grid; on a square, rows of B are cut over the first
    and columns of A and B over the second.
    """

    rows: int
    inputs: int
    outputs: int
    contraction: str
    output: str
    depth: str
    sizes: Sizes
    place: Sizes

    @property
    def weights(self) -> int:
        """Elements of the block of B."""
        return self.inputs * self.outputs

    def size(self, dim: str) -> int:
        """Return the ranks along a dim."""
        return self.sizes.get(dim, 1)


class Exchanged(NamedTuple):
    """Calls of one rank, all alike."""

    dim: str
    verb: str
    elements: int  # handed to each call
    count: int = 1
