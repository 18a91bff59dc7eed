"""Sum a vector over all ranks by a ring of messages, and by the library, one after the other.

pscale watch -n 4 -- python examples/ring.py 1000000
"""

import sys

import numpy as np
from mpi4py import MPI

from pscale.watch import phase, step

comm = MPI.COMM_WORLD
right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
length = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000


def ring_all_reduce(x: np.ndarray) -> None:
    """Replace `x` by the sum over all ranks: parts go around twice, summed the first time."""
    parts = np.array_split(x, comm.size)
    received = np.empty_like(max(parts, key=len))
    for turn in range(comm.size - 1):
        given, taken = parts[(comm.rank - turn) % comm.size], parts[(comm.rank - turn - 1) % comm.size]
        comm.Sendrecv(given, right, recvbuf=received[: len(taken)], source=left)
        taken += received[: len(taken)]
    for turn in range(comm.size - 1):
        given, taken = parts[(comm.rank + 1 - turn) % comm.size], parts[(comm.rank - turn) % comm.size]
        comm.Sendrecv(given, right, recvbuf=taken, source=left)


for _ in range(20):
    step()
    by_ring, by_library = np.full(length, comm.rank + 1.0), np.full(length, comm.rank + 1.0)
    with phase("ring"):
        ring_all_reduce(by_ring)
    with phase("library"):
        comm.Allreduce(MPI.IN_PLACE, by_library)
    assert np.array_equal(by_ring, by_library)
if comm.rank == 0:
    print(f"every element is {by_ring[0]:g}")
