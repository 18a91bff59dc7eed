"""What attention in C is told: where matrices lie, and which tiles of scores there are; see fused.c."""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache

import numpy as np

from pscale.nn.buffers import Array, address
from pscale.nn.kernels.attention_block import AttentionGradients, AttentionOperands, DroppedScores, cut


class _View(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("sequence", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("row", ctypes.c_int64),
    )


class _Piece(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in (
                *("sequences", "heads", "queries", "keys", "width", "first", "first_of_keys", "tile_count"),
            )
        ),
        ("tiles", ctypes.c_void_p),
        ("scale", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("drop_sequences", "drop_heads", "drop_queries", "drop_keys")),
        *((name, ctypes.c_int64) for name in ("drop_site", "drop_seed", "drop_step")),
        ("drop_rate", ctypes.c_double),
    )
    held: list[Array]


def block_argument(of: AttentionOperands, q: Array, dropped: DroppedScores | None) -> _Piece:
    """Describe queries, (B, H, queries, width), that meet the keys of a block, and what is dropped."""
    sequences, heads, _, width = q.shape
    table = _table(*of.block.size, causal=of.block.causal, kept=of.keeps_scores)
    writes = of.first, isinstance(of, AttentionGradients) and of.first_of_keys
    found = _Piece(
        *(sequences, heads, *of.block.size, width, *writes),
        *(len(table), address(table), 1 / math.sqrt(width)),
    )
    found.held = [table]  # as long as addresses are known
    if dropped is not None:
        for name in ("sequences", "heads", "queries", "keys"):
            numbers = np.ascontiguousarray(getattr(dropped, name), np.int64)
            found.held.append(numbers)
            setattr(found, f"drop_{name}", address(numbers))
        found.drop_site, (found.drop_seed, found.drop_step) = dropped.site, dropped.key
        found.drop_rate = dropped.rate
    return found


def view(x: Array | None) -> _View:
    """Describe (B, H, rows, width) or (B, H, rows), or nothing."""
    if x is None:
        return _View()
    assert x.strides[-1] == x.itemsize, "columns lie side by side"
    sequence, head = x.strides[0] // x.itemsize, x.strides[1] // x.itemsize
    return _View(address(x), sequence, head, x.strides[2] // x.itemsize)


@lru_cache(maxsize=64)
def _table(queries: int, keys: int, *, causal: bool, kept: bool) -> Array:
    """Return a row of integers for every tile, in the order of `struct tile`."""
    rows, offset = [], 0
    for tile in cut(queries, keys, causal=causal, kept=kept):
        (height, width), row, key = tile.size, tile.queries.start, tile.keys.start
        seen = row - key + 1 if tile.causal else width
        ends = tile.first_of_queries, tile.last_of_queries, tile.last_of_keys
        rows.append((row, height, key, width, seen, offset, *ends))
        offset += height * width
    return np.array(rows, np.int64)
