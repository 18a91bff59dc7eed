"""A program on an ideal network, walked through by all ranks, and found as the longest path of a graph."""

import numpy as np
import pytest
from programs import random_program
from thread_mesh import run_ranks

from pscale.worker.replay import ideal

GRIDS = [{"dp": 2}, {"dp": 3}, {"pp": 2, "dp": 2}, {"pp": 3, "tp": 2}, {"pp": 2, "dp": 2, "tp": 2}]


@pytest.mark.parametrize("seed", range(10))
def test_a_random_program_takes_as_long_as_its_longest_path(seed):
    program = random_program(seed, GRIDS[seed % len(GRIDS)])

    def one(mesh):
        rank = mesh.world.rank
        axes = [mesh.axis(*span) for span in program.spans]
        return ideal(program.rows[rank], program.wait[rank], axes, start_ns=0)[1]

    ends = np.array(run_ranks(program.sizes, one))
    assert np.abs(ends - program.ideal * 1e-9).max() < 1e-15
    assert (program.ideal <= program.ends).all()
