"""Which queries and keys of attention meet, and in which blocks their scores are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import DTypeLike

from pscale.nn.buffers import Array

Progress = Callable[[], object]  # called between blocks: exchanges under way may go on

ROWS = 64  # queries of a block; keys after the block's last query are never multiplied


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some queries and some keys that meet: all of them, or if `causal` each query the keys up to its own."""

    queries: slice
    keys: slice
    causal: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of queries and keys."""
        return self.queries.stop - self.queries.start, self.keys.stop - self.keys.start

    @property
    def scores(self) -> int:
        """Scores of one head that are computed."""
        return sum((rows.stop - rows.start) * keys.stop for rows, keys in self.blocks())

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield blocks of queries and the keys that each meets, counted from the first of the piece."""
        queries, keys = self.size
        for start in range(0, queries, ROWS):
            stop = min(start + ROWS, queries)
            yield slice(start, stop), slice(0, stop if self.causal else keys)

    def blocks_of(self, scores: Array) -> list[tuple[slice, slice, Array]]:
        """Return queries, keys and a view (H, queries, keys) of `scores`, (H, scores), for every block."""
        start, found = 0, []
        for rows, keys in self.blocks():
            shape = (len(scores), rows.stop - rows.start, keys.stop)
            stop = start + shape[1] * shape[2]
            found.append((rows, keys, scores[:, start:stop].reshape(shape)))
            start = stop
        return found


@dataclass(frozen=True)
class Softmax:
    """Exponentials of the scores of a piece, (B, H, scores), below a maximum that `factors` holds.

    `maximum` and `total`, (B, H, queries), go on from piece to piece with the higher maximum (online softmax:
    Milakov and Gimelshein, 2018); after the last, `factors` turns the exponentials into probabilities.
    """

    exponentials: Array
    factors: Array
    maximum: Array
    total: Array


def whole(sequence: int) -> Piece:
    """Return the piece in which a sequence meets itself."""
    return Piece(queries=slice(0, sequence), keys=slice(0, sequence), causal=True)


def scores_per_head(sequence: int) -> int:
    """Return how many scores of one head are computed where a sequence meets itself."""
    return whole(sequence).scores


@lru_cache(maxsize=8)
def future(size: int, dtype: DTypeLike) -> Array:
    """Return what hides the keys after each query of a block: 0 and -inf."""
    return np.triu(np.full((size, size), -np.inf, dtype), 1)
