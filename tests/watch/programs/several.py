"""Threads exchange messages; then ranks read each other's memory, and are neighbours in a graph."""

from threading import Thread

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
near = [each for rank in range(comm.size) for each in ((rank - 1) % comm.size, (rank + 1) % comm.size)]
graph = comm.Create_graph([2 * (rank + 1) for rank in range(comm.size)], near)


def exchange(tag: int) -> None:
    x, y = np.zeros((2, 8))
    for _ in range(10):
        comm.Sendrecv(x, right, tag, y, left, tag)


threads = [Thread(target=exchange, args=(tag,)) for tag in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
own, others = np.zeros((2, 4))
window = MPI.Win.Create(own, comm=comm)
window.Fence()
window.Get(others, right)
window.Fence()
graph.Neighbor_allgather(own, np.empty((2, 4)))
window.Free()
