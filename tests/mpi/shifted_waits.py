"""A program of four ranks whose clocks are wrong: prints, per rank, how wrong its waits are and may be."""

import json
import sys
from time import sleep

import numpy as np
from shifted import Shifted

from pscale.mesh import mpi
from pscale.mesh.axis import Tag
from pscale.worker.clock import axis_bounds_ns
from pscale.worker.measure import measure
from pscale.worker.recorder import Recorder
from pscale.worker.waits import waits

NODES = (0, 1, 1, 2)
CLOCKS = (
    Shifted(),
    Shifted(offset_ns=-(10**13), drift_ppm=200),
    Shifted(offset_ns=10**9, drift_ppm=-400),
)
STEPS = 12


class Program:
    """Calls of every kind between sleeps of random length."""

    def __init__(self, recorder, axis):
        self.recorder, self.axis = recorder, axis
        self.random = np.random.default_rng(axis.rank)

    def step(self, index, _meet=None):
        axis, x, y = self.axis, np.zeros(1000), np.zeros(1000)
        with self.recorder.step(index), self.recorder.phase("sync"):
            self.sleep()
            axis.all_reduce(x)
            self.sleep()
            axis.broadcast(x, root=index % axis.size)
            self.sleep()
            calls = [
                axis.start_all_reduce(y),
                axis.start_receive(x, (axis.rank - 1) % axis.size, Tag.MESSAGE),
                axis.start_send(np.ones(1000), (axis.rank + 1) % axis.size, Tag.MESSAGE),
            ]
            self.sleep()
            for call in calls:
                call.wait()

    def sleep(self):
        sleep(self.random.uniform(0, 4e-3))


def main():
    comm = mpi.world()
    clock = CLOCKS[NODES[comm.rank]]
    recorder = Recorder(["dp"], now=clock)
    mesh = mpi.MpiMesh(comm, {"dp": 4}, [["dp"]], recorder, NODES)
    axis = mesh.axis("dp")
    measured = measure(Program(recorder, axis), mesh, 0, STEPS)
    raw = recorder.rows()
    true = {name: np.array([clock.true_ns(int(time)) for time in raw[name]]) for name in ("enter", "leave")}
    corrected, uncorrected, exact = (waits(rows, [axis]) for rows in (measured.rows, raw, raw | true))
    report = {
        "bound_ns": axis_bounds_ns(mesh, measured.clock, [axis])["dp"],
        "error_ns": int(np.abs(corrected - exact).max()),
        "uncorrected_ns": int(np.abs(uncorrected - exact).max()),
        "wait_ns": int(exact.sum()),
        "seen_ns": int(corrected.sum()),
        "backwards_ns": measured.backwards_ns,
    }
    if reports := mesh.world.gather_objects(report):
        sys.stdout.write(json.dumps(reports))


main()
