from pathlib import Path

import numpy as np
from thread_mesh import run_ranks

from pscale.config import Case, Timing
from pscale.worker.collect import kept_events
from pscale.worker.job import JobSpec

ROWS = [4, 6]  # of each of three steps, by rank


def kept(trace, repeat, most=1000):
    case = Case(suite="s", label="l", ranks=2, timing=Timing(trace=trace))
    spec = JobSpec(case=case, task="measure", repeat=repeat, folder=Path(), data=Path(), launched_unix_s=0.0)
    rows = [{"step": np.repeat(np.arange(3), count)} for count in ROWS]
    return run_ranks(2, lambda mesh: kept_events(spec, rows[mesh.world.rank], mesh.world, most))


def test_of_the_first_launch_alone_as_many_whole_steps_are_kept_as_there_is_room_for():
    assert kept(None, 0) == [12, 18]
    assert kept(None, 0, most=29) == [8, 12]
    assert kept(None, 0, most=10) == [4, 6]
    assert kept(None, 0, most=9) == [0, 0]
    assert kept(None, 1) == [0, 0]


def test_a_suite_that_asks_for_traces_gets_all_of_every_launch_and_one_that_does_not_want_any_none():
    assert kept(True, 1, most=1) == [12, 18]
    assert kept(False, 0) == [0, 0]
