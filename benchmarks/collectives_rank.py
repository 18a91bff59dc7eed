"""One rank of collectives.py: `collectives_rank.py REQUEST ANSWER`, started by ranks.ask.

Each exchange runs through pscale's mesh (recorded as in a step), through mpi4py, and through mpi4py again as
a control, in alternation and on the same arrays, so that no contestant has better memory.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from pscale.mesh import mpi
from pscale.mesh.axis import Axis, Tag
from pscale.worker.recorder import Recorder

WORLD = MPI.COMM_WORLD
Exchange = Callable[[], Any]


def pairs(axis: Axis, comm: MPI.Intracomm, size_bytes: int) -> dict[str, tuple[Exchange, Exchange]]:
    """Return (pscale's, mpi4py's) of every verb, where the larger of the arrays has `size_bytes`."""
    ranks, after, before = axis.size, (axis.rank + 1) % axis.size, (axis.rank - 1) % axis.size
    whole, other = (np.full((ranks, size_bytes // 4 // ranks), 0.0, np.float32) for _ in range(2))
    part = np.full(whole.shape[1], 0.0, np.float32)
    in_place = MPI.IN_PLACE

    def exchange() -> None:
        receive = axis.start_receive(other, before, Tag.MESSAGE)
        send = axis.start_send(whole, after, Tag.MESSAGE)
        send.wait()
        receive.wait()

    def bare_exchange() -> None:
        receive, send = comm.Irecv(other, before), comm.Isend(whole, after)
        send.Wait()
        receive.Wait()

    return {
        "all_reduce": (lambda: axis.all_reduce(whole), lambda: comm.Allreduce(in_place, whole, MPI.SUM)),
        "all_gather": (lambda: axis.all_gather(part, whole), lambda: comm.Allgather(part, whole)),
        "reduce_scatter": (
            lambda: axis.reduce_scatter(whole, part),
            lambda: comm.Reduce_scatter_block(whole, part, MPI.SUM),
        ),
        "all_to_all": (lambda: axis.all_to_all(whole, other), lambda: comm.Alltoall(whole, other)),
        "broadcast": (lambda: axis.broadcast(whole), lambda: comm.Bcast(whole)),
        "send, receive": (exchange, bare_exchange),
        "all_reduce started": (
            lambda: axis.start_all_reduce(other).wait(),
            lambda: comm.Iallreduce(in_place, other, MPI.SUM).Wait(),
        ),
        "all_gather started": (
            lambda: axis.start_all_gather(part, whole).wait(),
            lambda: comm.Iallgather(part, whole).Wait(),
        ),
        "reduce_scatter started": (
            lambda: axis.start_reduce_scatter(whole, part).wait(),
            lambda: comm.Ireduce_scatter_block(whole, part, MPI.SUM).Wait(),
        ),
    }


def timed(exchange: Exchange) -> float:
    WORLD.Barrier()
    start = perf_counter()
    exchange()
    return perf_counter() - start


def medians(sides: tuple[Exchange, ...], repeats: int) -> list[float]:
    """Return the median times of the sides, in turns call by call; a call takes its slowest rank's.

    The turns come in every order, so that no side has another before it more often than the rest do.
    """
    times, orders = (
        np.empty((repeats, len(sides))),
        itertools.cycle(itertools.permutations(range(len(sides)))),
    )
    for number, order in zip(range(repeats), orders, strict=False):
        for side in order:
            times[number, side] = timed(sides[side])
    WORLD.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return [float(median) for median in np.median(times, axis=0)]


def main(question: Path, answer: Path) -> None:
    request = json.loads(question.read_text())
    recorder = Recorder(["dp"])
    mesh = mpi.MpiMesh(WORLD, {"dp": WORLD.size}, [("dp",)], recorder, mpi.nodes(WORLD))
    axis, bare = mesh.axis("dp"), WORLD.Dup()
    found: dict[str, list[list[float]]] = {}
    for mib in request["mebibytes"]:
        repeats = max(6, request["repeats"] // mib)
        for verb, (ours, alone) in pairs(axis, bare, mib << 20).items():
            rounds = []
            for _ in range(request["rounds"] + 1):
                recorder.clear()
                recorder.enabled = True
                rounds.append(medians((ours, alone, alone), repeats))
                recorder.enabled = False
            found[f"{verb} {mib} MiB"] = rounds[1:]
    if WORLD.rank == 0:
        answer.write_text(json.dumps({"seconds": found, "repeats": request["repeats"], "mpi": mpi.library()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
