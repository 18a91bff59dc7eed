from itertools import count

from pscale.runs.schema import PHASES, VERBS, Kind
from pscale.worker.recorder import Recorder


def test_a_call_is_recorded_with_its_step_phase_axis_verb_and_bytes():
    record = Recorder(["dp", "tp"])
    record.enabled = True
    with record.step(3), record.phase("sync"):
        record.call("tp", "broadcast", 40, 100, 250, root=True)
    rows = record.rows()
    row = {name: int(column[0]) for name, column in rows.items()}
    assert row == {
        "kind": Kind.ROOT,
        "step": 3,
        "phase": PHASES.index("sync"),
        "axis": 1,
        "verb": VERBS.index("broadcast"),
        "bytes": 40,
        "request": -1,
        "partner": -1,
        "enter": 100,
        "leave": 250,
    }
    assert list(rows["kind"][1:]) == [Kind.PHASE, Kind.STEP]


def test_a_phase_begins_where_the_one_before_it_has_ended_and_the_first_with_the_step():
    record = Recorder(["dp"], now=count().__next__)
    record.enabled = True
    with record.step(0):
        with record.phase("forward"):
            pass
        with record.phase("backward"):
            pass
    rows = record.rows()
    assert list(zip(rows["enter"], rows["leave"], strict=True)) == [(0, 1), (1, 2), (0, 3)]


def test_more_calls_than_were_reserved_are_kept():
    record = Recorder(["dp"])
    record.enabled = True
    record.reserve(2)
    for time in range(1000):
        record.call("dp", "all_reduce", 8, time, time + 1)
    assert list(record.rows()["enter"]) == list(range(1000))


def test_a_disabled_recorder_records_nothing_but_still_numbers_requests():
    record = Recorder(["dp"])
    with record.step(0), record.phase("backward"):
        record.call("dp", "all_reduce", 8, 0, 1)
        first = record.posted("dp", "all_reduce", 8, 1, 2)
        second = record.posted("dp", "all_reduce", 8, 2, 3)
        record.completed(first, 3, 4)
    assert len(record) == 0
    assert (first, second) == (0, 1)


def test_events_of_steps_ended_or_under_way_keep_their_order_and_the_last_call_is_known():
    record = Recorder(["dp"])
    record.enabled = True
    record.reserve(1)
    with record.step(0):
        record.call("dp", "all_reduce", 8, 0, 1)
    record.call("dp", "broadcast", 8, 2, 3)
    assert len(record) == 3
    assert record.last_call() == {"step": 0, "axis": "dp", "verb": "broadcast"}
    kinds = [Kind.CALL, Kind.STEP, Kind.CALL]
    assert [list(record.rows()["kind"]) for _ in range(2)] == [kinds, kinds]
    record.clear()
    assert (len(record), record.last_call()) == (0, None)
