"""A program of some ranks: every reduction of bare collectives, blocking and started, of each type."""

import numpy as np

from pscale.mesh.mpi import world_axis
from pscale.nn.dtypes import BYTES, dtype_of
from pscale.parallel.collectives import Arrays, exchanges, starts

FUNCTIONS = {"sum": np.add, "min": np.minimum, "max": np.maximum}
axis, wrong, count = world_axis(), [], 0


def numbers(rank, dtype):
    """Return small whole numbers, of which every type knows the sums, a row for each rank."""
    return ((np.arange(5 * axis.size) * 3 + rank * 7) % 11 - 5).reshape(axis.size, 5).astype(dtype)


for name in BYTES:
    dtype = dtype_of(name)
    for op, function in FUNCTIONS.items():
        reduced = function.reduce([numbers(rank, np.float64) for rank in range(axis.size)])
        expected = {"all_reduce": reduced, "reduce_scatter": reduced[axis.rank : axis.rank + 1]}
        expected["reduce"] = reduced if axis.rank == 0 else numbers(axis.rank, np.float64)
        for kind, made in (("", exchanges), ("start_", starts)):
            for verb, result in expected.items():
                arrays = Arrays(numbers(axis.rank, dtype), np.zeros((axis.size, 5), dtype), op)
                if verb in (found := made(axis, arrays)):
                    for pending in found[verb]() or ():
                        pending.wait()
                    given = arrays.part if verb == "reduce_scatter" else arrays.whole
                    count += 1
                    if not np.array_equal(given.astype(np.float64), result):
                        wrong.append((name, op, kind + verb))
everyone = axis.gather_objects((count, wrong))
if everyone:
    print(everyone)
