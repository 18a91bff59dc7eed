"""What an embedding does with rows of its table, in NumPy."""

from __future__ import annotations

import numpy as np

from pscale.nn.buffers import Array
from pscale.nn.kernels.scratch import scratch
from pscale.nn.kernels.tile import tile_shape, tiles


class Lookups:
    """Sums over equal tokens."""

    def add_to_rows(self, table: Array, rows: Array, x: Array) -> None:
        """Add `x`, (n, C), to the rows of a table that `rows`, (n,), names; those not there are left out.

        Sorts, sums the runs, adds: far faster than `np.add.at`.
        """
        pool = scratch()
        work = pool.take((3, *tile_shape(x)), x.dtype)
        for tile in tiles(x):
            named = rows[tile]
            order = np.argsort(named, kind="stable")
            order = order[slice(*np.searchsorted(named, (0, len(table)), sorter=order))]
            if not len(order):
                continue
            present, starts = np.unique(named[order], return_index=True)
            by_row, sums, before = work[0, : len(order)], work[1, : len(present)], work[2, : len(present)]
            take_rows(x[tile], order, by_row)
            np.add.reduceat(by_row, starts, axis=0, out=sums)
            take_rows(table, present, before)
            sums += before
            table[present] = sums
        pool.give(work)


def take_rows(table: Array, rows: Array, out: Array) -> None:
    """Copy rows of a table; the nearest in place of one that is not there."""
    np.take(
        table, rows, axis=0, out=out, mode="clip"
    )  # with its default mode `take` would copy through a buffer
