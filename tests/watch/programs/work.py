"""A program that says how long its work took: as long as it is told, divided by its ranks."""

import json
import sys
import time
from pathlib import Path

from mpi4py import MPI

comm = MPI.COMM_WORLD
work_ms, mode = float(sys.argv[1]), sys.argv[2]
comm.Barrier()
took = {"nan": "nan", "text": "long", "negative": "-1"}.get(mode, f"{work_ms / comm.size:.3f}")
if comm.rank == 0:
    if mode == "sleep":
        time.sleep(1000)
    if mode != "missing":
        print(f"Total time: {took} ms")
    print(f"arguments: {json.dumps(sys.argv[3:])}")
    if mode != "unfinished":
        print("all done")
    Path("out.json").write_text(json.dumps({"rates": [{"mflops": 10.0 * comm.size}]}))
    Path("scratch.tmp").write_text("".join(sorted(path.name for path in Path().iterdir())))
sys.stdout.flush()
comm.Barrier()
if mode == "exit" and comm.rank == comm.size - 1:
    sys.exit(7)
