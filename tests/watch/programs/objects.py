"""Pickled objects to and from anybody, a file, and steps and phases with names."""

import sys

from mpi4py import MPI

from pscale.watch import phase, step

comm = MPI.COMM_WORLD
for index in range(10):
    step()
    with phase("talk"):
        if comm.rank == 0:
            for _ in range(1, comm.size):
                comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)
        else:
            comm.send({"index": index}, 0, tag=comm.rank)
        comm.bcast([1, 2, 3])
file = MPI.File.Open(comm, sys.argv[1], MPI.MODE_CREATE | MPI.MODE_WRONLY)
file.Write_at_all(8 * comm.rank, bytearray(8))
file.Close()
