"""Whether the ranks of a program wait for each other for ever, from the notes that they have written."""

import numpy as np
import pytest
from recordings import Made, notes, record_of

from pscale.watch.hang import Progress
from pscale.watch.notes import FRUITLESS, THREAD_SHIFT

BARRIER, RECEIVE = Made("Barrier", 10, 0), Made("Recv", 5, 0, peer=0, tag=1)
LOOP = Made("Test", 10, 50, comm=0, request=1, flags=FRUITLESS, bytes=30_000)
SELDOM = Made("Test", 10, 50, comm=0, request=1, flags=FRUITLESS, bytes=30)


def rank(*calls, threads=1, gone=0, finalized=False):
    """Return the notes of a rank; a call and the number of the thread that made it, from 1 on."""
    ends = [(Made("Finalize", 60, 70), 1)] if finalized else []
    calls = [*calls, *ends]
    made = notes([call for call, _ in calls])
    flags = [call.flags | thread << THREAD_SHIFT for call, thread in calls]
    made["flags"][1:] = flags
    made["enter"][0], made["comm"][0], made["peer"][0] = len(made), threads, gone
    return made


def is_stuck(folder, *ranks, later=None):
    """Return whether a program is stuck that has written this, and goes on to write what comes `later`."""
    for number, made in enumerate(ranks):
        (folder / f"notes.{number}").write_bytes(made.tobytes())
    progress = Progress(folder, -1.0)
    progress.is_stuck()
    before = progress.is_stuck()
    for number, made in (later or {}).items():
        (folder / f"notes.{number}").write_bytes(made.tobytes())
    return progress.is_stuck() if later else before


@pytest.fixture
def folder(tmp_path):
    return record_of(tmp_path)


WAITS = rank((BARRIER, 1))


def test_ranks_that_are_all_in_a_call_are_stuck(folder):
    assert is_stuck(folder, WAITS, WAITS, WAITS)


def test_a_rank_whose_other_thread_receives_all_the_time_computes(folder):
    computes = rank((RECEIVE, 2), (Made("Barrier", 10, 20), 1), threads=2)
    assert not is_stuck(folder, computes, computes, computes)
    stuck = rank((RECEIVE, 2), (BARRIER, 1), threads=2)
    assert is_stuck(folder, stuck, WAITS, WAITS)


def test_a_thread_that_has_ended_keeps_nobody_from_being_stuck(folder):
    ended = rank((Made("Send", 5, 6, peer=0, tag=1), 2), (BARRIER, 1), threads=1)
    assert is_stuck(folder, ended, WAITS, WAITS)


def test_a_rank_that_works_after_finalize_computes_until_its_process_ends(folder):
    assert not is_stuck(folder, rank(finalized=True), WAITS, WAITS)
    assert is_stuck(folder, rank(finalized=True, gone=1), WAITS, WAITS)
    assert not is_stuck(folder, *[rank(finalized=True, gone=1)] * 3)


def test_a_rank_that_tests_again_and_again_is_stuck_and_one_that_computes_between_tests_is_not(folder):
    def after(made, by):
        made = made.copy()
        made["leave"][-1] += by
        return made

    for call, stuck in ((LOOP, True), (SELDOM, False)):
        made = rank((call, 1))
        assert is_stuck(folder, made, WAITS, WAITS, later={0: after(made, 10_000)}) == stuck
    made = rank((LOOP, 1))
    assert not is_stuck(folder, made, WAITS, WAITS)  # it may have stopped testing


def test_a_program_whose_record_has_stopped_is_not_taken_for_stuck(folder):
    stopped = WAITS.copy()
    stopped["leave"][0], stopped["bytes"][0] = np.int64(90_000_000), 28
    assert not is_stuck(folder, stopped, WAITS, WAITS)
