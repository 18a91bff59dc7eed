"""A program that prints a time and a rate and writes a file, as those of the manual's command lines do."""

import sys
from pathlib import Path

from mpi4py import MPI

comm = MPI.COMM_WORLD
size = int(sys.argv[1]) if len(sys.argv) > 1 else 100
comm.Barrier()
if comm.rank == 0:
    print(f"size {size} on {comm.size}")
    print(f"Total time: {size / comm.size} s")
    print(f"GFLOP/s: {2.5 * comm.size}")
    Path("result.json").write_text('{"norm": {"l2": 0.125}}')
