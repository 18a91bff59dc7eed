"""A series of times as a line of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

CELLS = 10
_BLOCKS = "▁▂▃▄▅▆▇█"
_MEDIAN = 3  # the block of the median, and of what is less than 6 % away
_PER_BLOCK = 1 / 8  # of the median


def sparkline(values: Sequence[float], cells: int = CELLS) -> str:
    """Return at most `cells` blocks, each as high as the largest of its values beside the median of all.

    Heights mean the same in every line: the median is ▄, half more and beyond █.
    """
    middle = median(values) if values else 0.0
    if not middle > 0:
        return ""
    count = min(cells, len(values))
    edges = [place * len(values) // count for place in range(count + 1)]
    tops = [max(values[start:stop]) for start, stop in pairwise(edges)]
    return "".join(_block(top / middle) for top in tops)


def _block(share: float) -> str:
    height = _MEDIAN + round((share - 1) / _PER_BLOCK)
    return _BLOCKS[min(len(_BLOCKS) - 1, max(0, height))]
