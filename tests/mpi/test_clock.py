"""Ranks whose clocks are shifted on purpose find the waits that they would find without, also under MPI."""

import os
from time import sleep

import numpy as np
import pytest
from shifted import Shifted
from thread_mesh import run_ranks
from whole_runs import TINY, Cli

from pscale.mesh.axis import Tag
from pscale.worker.clock import axis_bounds_ns
from pscale.worker.measure import measure
from pscale.worker.recorder import Recorder
from pscale.worker.waits import waits

pytestmark = pytest.mark.slow

# Two ranks say that each is on a node of its own, and the clock of rank 1 is 5 s behind and slow. Of four
# ranks, it falls now and then: at once by 3 s from the reading before, however long that is ago.
CLOCKS = """
import itertools, os, time
rank, size = (
    int(os.environ.get(mpich, os.environ.get(openmpi, -1)))
    for mpich, openmpi in (("PMI_RANK", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE"))
)
readings, last = itertools.count(), 0
def behind():
    now = time.perf_counter_ns()
    return now - 5_000_000_000 - now // 10_000
def falls():
    global last
    wrong = next(readings) % 50 == 49
    last, now = time.perf_counter_ns(), last - 3_000_000_000
    return now if wrong else last
if rank >= 0:
    import pscale.mesh.mpi as mpi
    from pscale.worker.recorder import Recorder
    mpi.nodes = lambda comm: list(range(comm.size)) if size == 2 else [0] * comm.size
if rank == 1:
    Recorder.__init__.__kwdefaults__["now"] = behind if size == 2 else falls
"""


NODES = (0, 1, 1, 2)
AHEAD = (Shifted(), Shifted(offset_ns=-(10**13), drift_ppm=200), Shifted(offset_ns=10**9, drift_ppm=-400))


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


def test_waits_of_ranks_with_shifted_clocks_are_those_of_true_clocks_within_the_bound():
    recorders = [Recorder(["dp"], now=AHEAD[node]) for node in NODES]

    def one(mesh):
        rank, axis = mesh.world.rank, mesh.axis("dp")
        measured = measure(Program(recorders[rank], axis), mesh, 0, 12)
        raw = recorders[rank].rows()
        clock = AHEAD[NODES[rank]]
        true = {
            side: np.array([clock.true_ns(int(time)) for time in raw[side]]) for side in ("enter", "leave")
        }
        corrected, uncorrected, exact = (waits(rows, [axis]) for rows in (measured.rows, raw, raw | true))
        bound_ns = axis_bounds_ns(mesh, measured.clock, [axis])["dp"]
        assert np.abs(corrected - exact).max() <= bound_ns
        assert 0 < bound_ns < 1e9
        assert np.abs(uncorrected - exact).max() > 1_000_000
        assert measured.backwards_ns == 0
        return corrected.sum()

    assert sum(run_ranks(4, one, recorders, NODES)) > 10_000_000


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    cli = Cli(tmp_path_factory.mktemp("clocks"))
    (cli.folder / "sitecustomize.py").write_text(CLOCKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(cli.folder), prepend=os.pathsep)
        return cli.run(cli.suite(TINY.replace("[1, 2, 4]", "[2, 4]")), code=1)


def test_a_job_over_two_nodes_is_measured_on_one_clock_whose_bound_is_stored(results):
    case = results.cases["2 ranks"]
    assert (case["status"], case["nodes"]) == ("ok", 2)
    first, second = (row for row in results.rows("ranks") if row["case"] == case["case"])
    assert (first["node"], first["clock_bound_s"], first["clock_drift"]) == (0, 0.0, 0.0)
    assert second["node"] == 1
    assert 0 < second["clock_bound_s"] < 1
    assert abs(first["wall_s"] - second["wall_s"]) < 2.5, "nearer to 0 than to the 5 s by which it is behind"
    calls = [row for row in results.rows("calls") if row["case"] == case["case"]]
    assert {row["clock_bound_s"] for row in calls if row["rank"] == 1} == {2 * second["clock_bound_s"]}


def test_a_clock_that_went_backwards_makes_the_launch_invalid(results):
    case = results.cases["4 ranks"]
    assert case["status"] == "invalid"
    assert "the clock of rank 1 went backwards by 3e+06 µs" in case["reason"]
