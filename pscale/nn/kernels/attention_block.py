"""Which queries and keys of attention meet, and in which blocks their scores are computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import DTypeLike

from pscale.nn.buffers import Array
from pscale.nn.kernels import philox

Progress = Callable[[], object]  # called between blocks: exchanges under way may go on

HEAD_BITS = 16  # of a site, below the number of a head
ROWS = 64  # queries of a block; keys after the block's last query are never multiplied
TILE = 256  # queries and keys of a tile where no scores are kept: two tiles of float32 fit in 1 MiB of cache


@dataclass(frozen=True, kw_only=True)
class _Rectangle:
    """Some queries and some keys."""

    queries: slice
    keys: slice

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of queries and keys."""
        return self.queries.stop - self.queries.start, self.keys.stop - self.keys.start


@dataclass(frozen=True, kw_only=True)
class Tile(_Rectangle):
    """Scores that are computed at once, of queries and keys counted from the first of a block.

    If `causal`, the last key is that of the last query. Tiles come in forward order: each query meets its
    first keys in the tile that says so, and no later tile of the block has the keys of the last one.
    """

    causal: bool
    first_of_queries: bool
    last_of_queries: bool
    last_of_keys: bool


@dataclass(frozen=True, kw_only=True)
class AttentionBlock(_Rectangle):
    """Some queries and some keys that meet: all of them, or if `causal` each query the keys up to its own."""

    causal: bool = False

    def scores(self, *, kept: bool) -> int:
        """Return how many scores of one head are computed, in forward."""
        return sum(math.prod(tile.size) for tile in self.tiles(kept=kept))

    def tiles(self, *, kept: bool) -> Sequence[Tile]:
        """Return the tiles in which scores are computed; where they are kept, some queries with all keys."""
        return cut(*self.size, causal=self.causal, kept=kept)

    def blocks_of(self, scores: Array) -> list[tuple[Tile, Array]]:
        """Return the tiles of kept `scores`, (H, scores), with a view (H, queries, keys) each."""
        start, found = 0, []
        for tile in self.tiles(kept=True):
            stop = start + math.prod(tile.size)
            found.append((tile, scores[:, start:stop].reshape(len(scores), *tile.size)))
            start = stop
        return found


@lru_cache(maxsize=64)
def cut(queries: int, keys: int, *, causal: bool, kept: bool) -> Sequence[Tile]:
    """Cut the scores into squares, and what is left of them by the diagonal into strips of few queries."""
    rows, columns = (queries if causal else ROWS, keys) if kept else (TILE, TILE)
    found = []
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        squares, last = start if causal else keys, stop == queries
        for key in range(0, squares, columns):
            end = min(key + columns, squares)
            found.append(
                Tile(
                    queries=slice(start, stop),
                    keys=slice(key, end),
                    causal=False,
                    first_of_queries=key == 0,
                    last_of_queries=end == keys and not causal,
                    last_of_keys=last,
                )
            )
        for row in range(start, stop, ROWS) if causal else ():
            end = min(row + ROWS, stop)
            found.append(
                Tile(
                    queries=slice(row, end),
                    keys=slice(start, end),
                    causal=True,
                    first_of_queries=start == 0,
                    last_of_queries=True,
                    last_of_keys=end == queries,
                )
            )
    return tuple(found)


@dataclass(frozen=True)
class Softmax:
    """Exponentials of the scores of a block, (B, H, scores), below a maximum that `factors` holds; or None.

    `maximum` and `total`, (B, H, queries), go on from block to block with the higher maximum (online softmax:
    Milakov and Gimelshein, 2018); after the last, `factors` turns the exponentials into probabilities. Where
    these are computed again `factors` holds what is to be subtracted from scores: logarithms of sums.
    """

    exponentials: Array | None
    factors: Array
    maximum: Array
    total: Array

    @property
    def kept(self) -> Softmax:
        """What backward reads, without the memory of maxima and sums."""
        return Softmax(self.exponentials, *[self.factors] * 3)


@dataclass(frozen=True, kw_only=True)
class DroppedScores:
    """Which probabilities of a block are dropped, by the numbers and positions of what meets.

    (B,), (H,), (queries,) and (keys,); `key` is seed and step, `site` the layer.
    """

    rate: float
    site: int
    key: tuple[int, int]
    sequences: Array
    heads: Array
    queries: Array
    keys: Array

    def part(self, sequences: slice, heads: slice) -> DroppedScores:
        """Return those of some sequences and heads."""
        return replace(self, sequences=self.sequences[sequences], heads=self.heads[heads])

    def factors(self, b: int, heads: int | slice, tile: Tile, dtype: DTypeLike) -> Array:
        """Return by what to multiply the probabilities of a tile, (…, queries, keys): 0 or 1 / (1 - rate)."""
        site = np.asarray(self.heads[heads] << HEAD_BITS | self.site)[..., None, None]
        rows = self.queries[tile.queries, None]
        words = philox.words(self.keys[tile.keys], rows, self.sequences[b], site, self.key)
        factors: Array = (words >= philox.threshold(self.rate)) * np.asarray(1 / (1 - self.rate), dtype)
        return factors


@dataclass(frozen=True, kw_only=True)
class AttentionOperands:
    """What meets in a block: `inputs` are q, k and v; they and `y` are (B, H, rows, width).

    The first block writes `y`, or the gradient of q, the next add to it.
    """

    block: AttentionBlock
    inputs: Sequence[Array]
    y: Array
    softmax: Softmax
    first: bool
    dropped: DroppedScores | None = None
    progress: Progress | None = None

    @property
    def keeps_scores(self) -> bool:
        """Whether backward finds the exponentials of scores, and need not compute them again."""
        return self.softmax.exponentials is not None

    def poll(self) -> None:
        """Let exchanges under way go on."""
        if self.progress:
            self.progress()


@dataclass(frozen=True, kw_only=True)
class AttentionGradients(AttentionOperands):
    """The same on the way back: `grads` are those of the inputs, to be found from `dy`.

    Unless these are the `first_of_keys`, of several queries, the gradients of k and v are added.
    """

    dy: Array
    grads: Sequence[Array]
    first_of_keys: bool = True


def whole(sequence: int) -> AttentionBlock:
    """Return the block in which a sequence meets itself."""
    return AttentionBlock(queries=slice(0, sequence), keys=slice(0, sequence), causal=True)


def scores_per_head(sequence: int, *, kept: bool = True) -> int:
    """Return how many scores of one head are computed, in forward, where a sequence meets itself."""
    return whole(sequence).scores(kept=kept)


@lru_cache(maxsize=8)
def future(size: int, dtype: DTypeLike) -> Array:
    """Return what hides the keys after each query of a block: 0 and -inf."""
    return np.triu(np.full((size, size), -np.inf, dtype), 1)
