"""Which parameters a rank of the grid holds, in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from pscale.config import Case
from pscale.parallel.matrix.grid import Partition, scheme_of


class Block(NamedTuple):
    """What a rank has of a parameter; the axes `seen` split its layer's sequences, and not itself."""

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    seen: tuple[str, ...]
    cut: tuple[str, ...]
    matrices: int = 0  # of a hidden layer, side by side in its columns

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def blocks(name: str, case: Case) -> Iterator[Block]:
    """Yield the parameters of a unit, in the order of its layers."""
    model, h, scheme = case.model, case.model.width, scheme_of(case.plan)
    outside, inside = Partition(columns=scheme.outside.columns), Partition(columns=scheme.inside.columns)

    def block(partition: Partition, layer: Partition, *whole: int, matrices: int = 0) -> Block:
        parts = partition.parts(case.plan.sizes)[-len(whole) :]
        shape = tuple(size // part for size, part in zip(whole, parts, strict=True))
        seen = tuple(axis for axis in layer.rows if axis not in partition.axes)
        return Block(whole, shape, seen, partition.axes, matrices)

    def vectors(count: int) -> Iterator[Block]:
        return (block(outside, scheme.outside, h) for _ in range(count))

    match name.partition(".")[0]:
        case "embedding":
            yield block(scheme.table, scheme.outside, model.vocabulary, h)
            yield block(scheme.positions, scheme.outside, model.sequence, h)
        case "block":
            yield from vectors(2)
            yield block(scheme.into, scheme.outside, h, 3 * h, matrices=3)
            yield block(inside, scheme.inside, 3 * h)
            yield block(scheme.out_of, scheme.inside, h, h, matrices=1)
            yield from vectors(3)
            yield block(scheme.into, scheme.outside, h, 4 * h, matrices=1)
            yield block(inside, scheme.inside, 4 * h)
            yield block(scheme.out_of, scheme.inside, 4 * h, h, matrices=1)
            yield from vectors(1)
        case "head":
            yield from vectors(2)
            yield block(scheme.into, scheme.outside, h, model.vocabulary)
