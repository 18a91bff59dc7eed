import pytest
from recordings import Made, recorded, table

from pscale.watch.rows import all_rows
from pscale.watch.steps import find_steps
from pscale.watch.tables import record_tables


def mark(at, level):
    return Made("Pcontrol", at, at, comm=0, peer=level)


def found(*ranks):
    record = recorded(*ranks)
    return find_steps(record, lambda: [(all_rows(record)[0], True)])


def test_a_program_without_marks_or_period_is_one_step():
    assert found([Made("Barrier", 10, 20)], [Made("Barrier", 15, 20)]).count == 1


def test_marks_begin_steps_and_a_pause_ends_them():
    made = found([mark(100, 1), mark(200, 1), mark(300, 0), mark(400, 1), mark(450, 0)])
    assert (made.starts // 1000).tolist() == [[100, 200, 400]]
    assert (made.ends // 1000).tolist() == [[200, 300, 450]]


def test_of_ranks_that_mark_unequally_many_steps_all_have_the_fewest():
    assert found([mark(100, 1), mark(200, 1)], [mark(100, 1)]).count == 1


def test_time_belongs_to_the_phase_that_is_marked_and_else_to_the_program():
    marks = [mark(100, 1), mark(110, 5), mark(150, -1), Made("Barrier", 160, 170), mark(200, 0)]
    walls = {row["phase"]: row["wall_s"] for row in table(recorded(marks), "steps")}
    assert walls == pytest.approx({"program": 60e-6, "phase 5": 40e-6})


def test_calls_that_come_back_again_and_again_are_steps_between_their_collectives():
    def rank(late):
        made = [Made("Bcast", 1, 5, peer=0, bytes=3)]
        for at in range(10, 1010, 100):
            made += [
                Made("Send", at, at + 1, peer=late, tag=0),
                Made("Recv", at + 2, at + 9, peer=at // 100 % 3 % 2, tag=0),  # from anybody: by its status
                Made("Allreduce", at + 20 + late, at + 30, bytes=8),
            ]
        return made

    record = recorded(rank(1), rank(0), over=2000)
    assert record_tables(record).notes[0] == "Steps: a period of 3 calls of rank 0, found in their order."
    made = found(rank(1), rank(0))
    assert (made.ends[0] // 1000).tolist() == list(range(140, 1040, 100))
