"""Ends as it is told to: killed, or with ranks that wait for each other for ever."""

import os
import signal
import sys

from mpi4py import MPI

comm = MPI.COMM_WORLD
for _ in range(20):
    comm.barrier()
if sys.argv[1] == "killed" and comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if comm.rank == 0:
    comm.recv(source=1, tag=5)
comm.barrier()
