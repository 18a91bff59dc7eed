"""Solve Poisson's equation on a square by conjugate gradients, a strip of rows for each rank.

    pscale watch -n 4 -- python examples/cg.py 400

The steps and phases that it names are those of the report; without `pscale watch` naming them does nothing.
"""

import sys

import numpy as np
from mpi4py import MPI

from pscale.watch import pause, phase, step

comm = MPI.COMM_WORLD
size = int(sys.argv[1]) if len(sys.argv) > 1 else 200
above, below = comm.rank - 1, comm.rank + 1
above, below = (rank if 0 <= rank < comm.size else MPI.PROC_NULL for rank in (above, below))
rows = size * (comm.rank + 1) // comm.size - size * comm.rank // comm.size


def laplacian(x: np.ndarray) -> np.ndarray:
    """Return minus the second differences of the inner rows; `x` has a halo of one row on both sides."""
    with phase("halo"):
        comm.Sendrecv(x[1], above, recvbuf=x[-1], source=below)
        comm.Sendrecv(x[-2], below, recvbuf=x[0], source=above)
    with phase("product"):
        inner = x[1:-1]
        result = 4 * inner - x[:-2] - x[2:]
        result[:, 1:] -= inner[:, :-1]
        result[:, :-1] -= inner[:, 1:]
    return result


def dot(a: np.ndarray, b: np.ndarray) -> float:
    """Return the scalar product over all ranks."""
    with phase("dot"):
        total = np.array(np.vdot(a, b))
        comm.Allreduce(MPI.IN_PLACE, total)
    return float(total)


solution = np.zeros((rows, size))
residual = np.ones((rows, size))
direction = np.zeros((rows + 2, size))
direction[1:-1] = residual
error = dot(residual, residual)
for _ in range(100):
    step()
    product = laplacian(direction)
    length = error / dot(direction[1:-1], product)
    solution += length * direction[1:-1]
    residual -= length * product
    error, before = dot(residual, residual), error
    direction[1:-1] = residual + error / before * direction[1:-1]
pause()
largest = comm.reduce(float(solution.max()), MPI.MAX)
if comm.rank == 0:
    print(f"largest value {largest:.6g}, residual {error**0.5:.3g}")
