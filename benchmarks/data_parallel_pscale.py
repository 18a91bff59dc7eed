"""A rank of data_parallel.py that trains with pscale: `data_parallel_pscale.py FOLDER`, on ranks of MPI."""

from __future__ import annotations

import sys
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
from turns_rank import WORLD, Trained, pin

from pscale.config import Case, from_dict
from pscale.mesh import mpi
from pscale.mesh.alone import SelfMesh


def losses(one: Trained, folder: Path, steps: int) -> list[float]:
    """Return this rank's part of the loss of each step; keep the data, and of whole replicas the weights."""
    trainer = one.trainer
    if WORLD.rank == 0 and not (folder / "start.npz").exists():
        params = [(unit.name, param) for unit in trainer.stage.units for param in unit.layer.params]
        weights = {f"{unit}/{param.name}": param.data for unit, param in params}
        np.savez(folder / "start.npz", allow_pickle=False, **weights)
    data = [np.array(trainer.batches.fill(step, 0)) for step in range(steps)]
    np.save(folder / f"data-{WORLD.rank}.npy", np.array(data))
    one.run(steps)
    return [float(loss) for loss in trainer.losses[:steps]]


def main(folder: Path) -> None:
    pin()
    contestants: dict[str, Trained] = {}
    with Client(str(folder / "ranks")) as parent:
        parent.send(("pscale", WORLD.rank))
        while True:
            try:
                request = parent.recv()
            except EOFError:
                return
            answer: object = None
            match request:
                case {"do": "prepare", "way": way, "case": case}:
                    contestants[way] = Trained(from_dict(Case, case), SelfMesh(), folder)
                case {"do": "prove", "way": way, "steps": steps}:
                    answer = losses(contestants[way], folder, steps)
                case {"do": "step", "way": way}:
                    contestants[way].run(1)
                    WORLD.Barrier()
                    answer = contestants[way].run(1)["wall_s"]
                case {"do": "about"}:
                    answer = mpi.library()["library"]
            parent.send(answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
