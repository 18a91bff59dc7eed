"""One rank of a job in which programs alternate: `turns_rank.py REQUEST ANSWER`, started by ranks.ask.

A contestant is a case and where it runs: "job" on all ranks together, "copies" as one independent program per
rank, "alone" on rank 0 while the others sleep, "plain" as the bare loop of step_pscale.py. `order` says whose
turn it is in a round; every second round is reversed. A turn is `lead` untimed steps, after which caches hold
the contestant's own data, and `steps` timed ones. The answer is the time of each turn by round, place in the
order and rank.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI
from step_pscale import Runner

from pscale.config import Case, from_dict
from pscale.data import prepare
from pscale.mesh import grid, mpi
from pscale.mesh.alone import SelfMesh
from pscale.mesh.axis import Mesh
from pscale.parallel.ranks import GROUPS
from pscale.worker.job import make_trainer
from pscale.worker.recorder import Recorder
from pscale.worker.tables import phase_table
from pscale.worker.waits import waits

WORLD = MPI.COMM_WORLD
KINDS = ("compute_s", "transfer_s", "wait_s", "copy_s", "hidden_s")


class Contestant(Protocol):
    def run(self, steps: int) -> dict[str, float]:
        """Run so many steps and say how long they took."""
        ...


class Plain:
    """The serial program: layers one after another, and the optimizer."""

    def __init__(self, case: Case):
        self.runner = Runner(case.model, case.train.batch, case.train)

    def run(self, steps: int) -> dict[str, float]:
        start = perf_counter()
        for _ in range(steps):
            self.runner.step()
        return {"wall_s": perf_counter() - start}


class Trained:
    """What a launch of pscale runs, recording included."""

    def __init__(self, case: Case, mesh: Mesh, folder: Path):
        spans = grid.groups(case.plan.sizes, GROUPS) if case.plan.ranks > 1 else []
        self.recorder = Recorder([grid.axis_name(span) for span in spans])
        self.index = 0
        if spans:
            mesh = mpi.MpiMesh(WORLD, case.plan.sizes, spans, self.recorder, mpi.nodes(WORLD))
        self.axes = [mesh.axis(*span) for span in spans]
        batches = prepare(case.data, case.model, case.train, mesh, folder)
        self.trainer = make_trainer(case, mesh, batches, self.recorder)

    def run(self, steps: int) -> dict[str, float]:
        self.recorder.clear()
        self.recorder.enabled = True
        start = perf_counter()
        for _ in range(steps):
            self.trainer.step(self.index)
            self.index += 1
        wall_s = perf_counter() - start
        self.recorder.enabled = False
        rows = dict(self.recorder.rows())
        rows["step"] = rows["step"] - rows["step"].min()
        wait = waits(rows, self.axes)
        none = np.zeros_like(wait)
        table = phase_table(rows, wait, none, none.astype(float), 0)
        return {"wall_s": wall_s} | {kind: float(table[kind].sum()) for kind in KINDS}


class Alone:
    """A contestant of rank 0; the others use no core meanwhile."""

    def __init__(self, make: Callable[[], Contestant]):
        self.contestant = make() if WORLD.rank == 0 else None

    def run(self, steps: int) -> dict[str, float]:
        times = self.contestant.run(steps) if self.contestant else {}
        over = WORLD.Ibarrier()
        while not over.Test():
            time.sleep(0.001)
        return times


def make(entry: Mapping[str, Any], folder: Path, steps: int) -> Contestant:
    case = from_dict(Case, entry["case"])
    case = replace(case, train=replace(case.train, steps=steps))
    if entry["where"] == "plain":
        return Plain(case)
    if entry["where"] == "alone":
        return Alone(lambda: Trained(case, SelfMesh(), folder))
    return Trained(case, SelfMesh(), folder)


def pin() -> None:
    """Give every rank one CPU: for launchers that take each rank for the only one of its host."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), {WORLD.rank % (os.cpu_count() or 1)})


def main(question: Path, answer: Path) -> None:
    request = json.loads(question.read_text())
    if request.get("pin"):
        pin()
    lead, steps = request.get("lead", 0), request["steps"]
    rounds = request["warmup"] + request["rounds"]
    contestants = {
        entry["name"]: make(entry, question.parent, (lead + steps) * rounds)
        for entry in request["contestants"]
    }
    order = request["order"]
    mine: list[list[dict[str, float]]] = []
    for number in range(rounds):
        places = (
            range(len(order)) if number % 2 else reversed(range(len(order)))
        )  # neither of a pair is always first
        times: list[dict[str, float]] = [{}] * len(order)
        for place in places:
            for part in filter(None, (lead, steps)):
                WORLD.Barrier()
                times[place] = contestants[order[place]].run(part)
        mine.append(times)
    everyone = WORLD.gather(mine[request["warmup"] :])
    if everyone is not None:
        measured = [
            [list(ranks) for ranks in zip(*turns, strict=True)] for turns in zip(*everyone, strict=True)
        ]
        answer.write_text(json.dumps({"rounds": measured, "mpi": mpi.library()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
