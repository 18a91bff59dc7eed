"""What the launcher asks in a process of its own: each answer is one line of JSON on standard output.

python -m pscale.worker.probe blas --threads N    which BLAS, and how fast with N threads
python -m pscale.worker.probe unmet               whether that BLAS will do for the case on standard input
mpiexec -n N python -m pscale.worker.probe world [FOLDER]  which MPI, where its ranks may run, what they see

The first two come after `python -m pscale.blas CHOICE -m`: NumPy has a BLAS from when it is loaded.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from pscale.config import Case, from_dict
from pscale.nn import kernels
from pscale.nn.kernels import fused
from pscale.worker.environment import affinity, blas, has_openmp, unmet, use_kernels
from pscale.worker.roofline import measure_gemm

_SECONDS = 0.3


def main(arguments: list[str]) -> None:
    """Answer one question."""
    parser = argparse.ArgumentParser(prog="python -m pscale.worker.probe", description=__doc__)
    questions = parser.add_subparsers(dest="question", required=True)
    of_world = questions.add_parser("world")
    of_world.add_argument("folder", nargs="?", default="/")
    of_blas = questions.add_parser("blas")
    of_blas.add_argument("--threads", type=int, default=1)
    of_blas.add_argument("--size", type=int, default=1024)
    questions.add_parser("unmet")
    asked = parser.parse_args(arguments)
    match asked.question:
        case "world":
            answer = _world(asked.folder)
        case "blas":
            answer = _blas(asked.threads, asked.size)
        case _:
            answer = _unmet(from_dict(Case, json.load(sys.stdin)))
    if answer is not None:
        sys.stdout.write(json.dumps(answer) + "\n")


def _blas(threads: int, size: int) -> dict[str, Any]:
    with threadpool_limits(threads, user_api="blas"):
        gemm = measure_gemm(size, "float32", _SECONDS)
        found = blas()
        use_kernels("auto", threads)
        return {
            **found,
            "kernels": kernels.current().name,
            "kernels_obstacle": fused.obstacle(),
            "openmp": has_openmp(found),
            "gflops": gemm.gflops,
            "cores": gemm.cores,
        }


def _unmet(case: Case) -> dict[str, Any]:
    return {"unmet": unmet(case, blas())}


def _world(folder: str) -> dict[str, Any] | None:
    from pscale.mesh import mpi  # noqa: PLC0415 - starts MPI, which the other question does not need

    world = mpi.world_axis()
    here = {"host": socket.gethostname(), "sees": Path(folder).is_dir()}
    ranks = world.gather_objects({"rank": world.rank, "cpus": affinity(), **here})
    return {**mpi.library(), "size": world.size, "ranks": ranks} if ranks else None


if __name__ == "__main__":
    main(sys.argv[1:])
