"""Attention in NumPy, a tile of scores at a time: none is kept, backward computes them again.

Dao, FlashAttention-2, 2023. Matrices have a column more, so that products do what would be passes over
the scores: [q, -m] [k, 1]' = q k' - m, e [v, 1] = [e v, sum e], [g, -d] [v, 1]' = g v' - d.
"""

from __future__ import annotations

import math

import numpy as np

from pscale.nn.buffers import Array
from pscale.nn.kernels.attention_block import TILE, AttentionGradients, AttentionOperands, Tile, future
from pscale.nn.kernels.tiles import scratch

SLACK = 8.0  # by which scores may exceed the maximum that is subtracted before it is put right


def attend(of: AttentionOperands) -> None:
    """Let queries attend to some keys more; see `Kernels.attend`."""
    y, softmax, first = of.y, of.softmax, of.first
    pool, tiles = scratch(), of.block.tiles(kept=False)
    (_, _, queries, width), keys = y.shape, of.block.size[1]
    q_m, sums = pool.take((2, queries, width + 1), y.dtype)
    k_one, v_one = pool.take((2, keys, width + 1), y.dtype)
    scores, product = pool.take((TILE * TILE,), y.dtype), pool.take((TILE, width + 1), y.dtype)
    for b, h in np.ndindex(y.shape[:2]):
        q, k, v = (x[b, h] for x in of.inputs)
        maximum, total = softmax.maximum[b, h], softmax.total[b, h]
        np.multiply(q, 1 / math.sqrt(width), out=q_m[:, :-1])
        _with_ones(k, k_one)
        _with_ones(v, v_one)
        if not first:
            sums[:, :-1], sums[:, -1] = y[b, h], total
            np.negative(maximum, out=q_m[:, -1])
        for tile in tiles:
            opens = first and tile.first_of_queries
            e = _exponentials(q_m, k_one, scores, sums, tile, opens=opens)
            rows = sums[tile.queries]
            if of.dropped is None:
                _add_product(e, v_one[tile.keys], rows, product, write=opens)
            else:  # the sums are of all
                rows[:, -1] = e.sum(axis=1) + (0 if opens else rows[:, -1])
                e *= of.dropped.factors(b, h, tile, e.dtype)
                _add_product(e, v_one[tile.keys, :-1], rows[:, :-1], product[:, :-1], write=opens)
            of.poll()
        y[b, h], total[...] = sums[:, :-1], sums[:, -1]
        np.negative(q_m[:, -1], out=maximum)


def _exponentials(q_m: Array, k_one: Array, scores: Array, sums: Array, tile: Tile, *, opens: bool) -> Array:
    """Return exponentials relative to a running maximum, with the sums so far."""
    rows = q_m[tile.queries]
    if opens:
        rows[:, -1] = 0
    e = _scores(rows, k_one, scores, tile)
    beyond = np.maximum.reduce(e, axis=-1)
    if opens:
        e -= beyond[:, None]
        rows[:, -1] -= beyond
    elif beyond.max() > SLACK:
        np.maximum(beyond, 0, out=beyond)
        e -= beyond[:, None]
        rows[:, -1] -= beyond
        sums[tile.queries] *= np.exp(-beyond)[:, None]
    return np.exp(e, out=e)


def attend_backward(of: AttentionGradients) -> None:
    """Write a block's gradients of k and v; write or add to those of q; see `Kernels.attend_backward`."""
    y, dy, level = of.y, of.dy, of.softmax.factors  # (B, H, queries): logarithms of sums of exponentials
    pool, tiles = scratch(), of.block.tiles(kept=False)
    (_, _, queries, width), keys = y.shape, of.block.size[1]
    q_m, g_d = pool.take((2, queries, width + 1), y.dtype)
    k_one, v_one = pool.take((2, keys, width + 1), y.dtype)
    dq_sum, dk_sum, dv_sum = (pool.take((rows, width), y.dtype) for rows in (queries, keys, keys))
    work, product = pool.take((2, TILE * TILE), y.dtype), pool.take((TILE, width), y.dtype)
    scale = 1 / math.sqrt(width)
    for b, h in np.ndindex(y.shape[:2]):
        q, k, v = (x[b, h] for x in of.inputs)
        dq, dk, dv = (x[b, h] for x in of.grads)
        np.multiply(q, scale, out=q_m[:, :-1])
        np.negative(level[b, h], out=q_m[:, -1])
        g_d[:, :-1] = dy[b, h]
        np.negative(np.vecdot(dy[b, h], y[b, h]), out=g_d[:, -1])
        _with_ones(k, k_one)
        _with_ones(v, v_one)
        for tile in reversed(tiles):
            rows, columns = tile.queries, tile.keys
            e = _scores(q_m[rows], k_one, work[0], tile)
            np.exp(e, out=e)
            left, ds = e, _shaped(work[1], tile)
            if of.dropped is None:
                np.matmul(g_d[rows], v_one[columns].T, out=ds)
            else:
                factors = of.dropped.factors(b, h, tile, e.dtype)
                left = e * factors
                np.matmul(g_d[rows, :-1], v_one[columns, :-1].T, out=ds)
                ds *= factors
                ds += g_d[rows, -1:]
            _add_product(left.T, g_d[rows, :-1], dv_sum[columns], product, write=tile.last_of_keys)
            ds *= e
            _add_product(ds, k_one[columns, :-1], dq_sum[rows], product, write=tile.last_of_queries)
            _add_product(ds.T, q_m[rows, :-1], dk_sum[columns], product, write=tile.last_of_keys)
            of.poll()
        dq_sum *= scale
        if of.first:
            dq[...] = dq_sum
        else:
            dq += dq_sum
        if of.first_of_keys:
            dk[...], dv[...] = dk_sum, dv_sum
        else:
            dk += dk_sum
            dv += dv_sum


def _scores(rows: Array, k_one: Array, room: Array, tile: Tile) -> Array:
    """Return scores less what `rows` bring along for it; keys that a query does not see get -inf."""
    scores = np.matmul(rows, k_one[tile.keys].T, out=_shaped(room, tile))
    if tile.causal:  # the last keys are those of the tile's own tokens
        scores[:, -len(rows) :] += future(len(rows), scores.dtype)
    return scores


def _shaped(room: Array, tile: Tile) -> Array:
    rows, columns = tile.size
    return room[: rows * columns].reshape(rows, columns)


def _with_ones(x: Array, out: Array) -> None:
    out[:, :-1], out[:, -1] = x, 1


def _add_product(a: Array, b: Array, total: Array, room: Array, *, write: bool) -> None:
    if write:
        np.matmul(a, b, out=total)
    else:
        total += np.matmul(a, b, out=room[: len(total)])
