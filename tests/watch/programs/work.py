"""A program that says how long its work took: as long as it is told, divided by its ranks."""

import json
import sys
from pathlib import Path

from mpi4py import MPI

comm = MPI.COMM_WORLD
work_ms = float(sys.argv[1])
comm.Barrier()
if comm.rank == 0:
    print(f"Total time: {work_ms / comm.size:.3f} ms")
    print(f"arguments: {json.dumps(sys.argv[2:])}")
    print("all done")
    Path("out.json").write_text(json.dumps({"rates": [{"mflops": 10.0 * comm.size}]}))
    Path("scratch.tmp").write_text("".join(sorted(path.name for path in Path().iterdir())))
comm.Barrier()
