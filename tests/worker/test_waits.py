"""Every rule of waiting, on two or three ranks with times that a person can follow (in ns)."""

import numpy as np
import pytest
from thread_mesh import run_ranks

from pscale.worker.recorder import Recorder
from pscale.worker.waits import call_table, hidden, phase_table, waits

MS = 1_000_000


def waits_of(*notes):
    """Return the waits of all ranks, where `notes[rank](recorder)` makes that rank's notes."""
    recorders = [Recorder(["dp"]) for _ in notes]
    for recorder, note in zip(recorders, notes, strict=True):
        recorder.enabled = True
        with recorder.step(0), recorder.phase("sync"):
            note(recorder)

    def one(mesh):
        rows = recorders[mesh.world.rank].rows()
        communication = rows["axis"] >= 0
        return waits(rows, [mesh.axis("dp")])[communication].tolist()

    return run_ranks(len(notes), one)


def call(verb, enter, leave, root=False):
    return lambda record: record.call("dp", verb, 8, enter, leave, root=root)


@pytest.mark.parametrize("verb", ["all_reduce", "barrier"])
def test_everyone_waits_for_the_last_to_enter(verb):
    assert waits_of(call(verb, 10, 100), call(verb, 70, 100), call(verb, 30, 100)) == [[60], [0], [40]]


@pytest.mark.parametrize("verb", ["broadcast", "scatter"])
def test_receivers_of_a_root_wait_for_it_and_it_waits_for_nobody(verb):
    assert waits_of(call(verb, 50, 90, root=True), call(verb, 20, 95), call(verb, 60, 95)) == [[0], [30], [0]]


def test_the_root_of_a_gather_waits_for_the_last_sender_and_the_senders_for_nobody():
    assert waits_of(call("gather", 10, 100, root=True), call("gather", 80, 90), call("gather", 5, 9)) == [
        [70],
        [0],
        [0],
    ]


def test_a_wait_is_never_longer_than_the_call():
    assert waits_of(call("all_reduce", 10, 30), call("all_reduce", 70, 100)) == [[20], [0]]


def test_a_started_call_waits_only_inside_the_call_that_completes_it():
    def early(record):
        number = record.posted("dp", "all_reduce", 8, 0, 1)
        record.polled(number, 10, 12)
        record.completed(number, 40, 60)

    def late(record):
        number = record.posted("dp", "all_reduce", 8, 50, 51)
        record.completed(number, 55, 60)

    assert waits_of(early, late) == [[0, 0, 10], [0, 0]]


def test_each_of_several_calls_under_way_has_its_own_partners():
    def rank(first, second):
        def note(record):
            one = record.posted("dp", "all_reduce", 8, first, first + 1)
            two = record.posted("dp", "all_reduce", 8, second, second + 1)
            record.completed(two, 70, 80)
            record.completed(one, 80, 90)

        return note

    assert waits_of(rank(0, 5), rank(85, 75)) == [[0, 0, 5, 5], [0, 0, 5, 5]]


def message(verb, partner, posted, enter, leave):
    def note(record):
        number = record.posted("dp", verb, 8, posted, posted + 1, partner=partner)
        record.completed(number, enter, leave)

    return note


def test_a_receiver_waits_for_a_late_sender_and_a_sender_for_a_late_receiver():
    assert waits_of(message("send", 1, 60, 61, 90), message("receive", 0, 10, 20, 80)) == [[0, 0], [0, 40]]
    assert waits_of(message("send", 1, 10, 11, 90), message("receive", 0, 70, 75, 80)) == [[0, 59], [0, 0]]


def test_messages_of_a_pair_are_matched_in_their_order_in_each_direction():
    def both(partner, send, receive):
        def note(record):
            one = record.posted("dp", "send", 8, send, send, partner=partner)
            two = record.posted("dp", "receive", 0, receive, receive, partner=partner)
            three = record.posted("dp", "receive", 0, receive, receive, partner=partner)
            four = record.posted("dp", "send", 8, send + 30, send + 30, partner=partner)
            for number in (one, two, three, four):
                record.completed(number, 50, 100)

        return note

    waits = waits_of(both(1, 40, 45), both(0, 60, 65))
    assert [w[4:] for w in waits] == [[15, 10, 40, 15], [0, 0, 20, 0]]


def test_copies_are_neither_compute_nor_communication():
    record = Recorder(["dp"])
    record.enabled = True
    with record.step(0), record.phase("sync"):
        record.copied("dp", 11 * MS, 13 * MS)
    rows = {name: column.copy() for name, column in record.rows().items()}
    rows["enter"][1:], rows["leave"][1:] = [10 * MS, 0], [16 * MS, 17 * MS]
    table = phase_table(rows, np.zeros_like(rows["enter"]))
    assert table["copy_s"].sum() == pytest.approx(2e-3)
    assert table["compute_s"].sum() == pytest.approx(4e-3)
    assert table["transfer_s"].sum() == 0


def test_time_under_way_outside_its_calls_is_hidden():
    record = Recorder(["dp"])
    record.enabled = True
    with record.step(0), record.phase("backward"):
        number = record.posted("dp", "all_reduce", 8, 100, 110)
        record.polled(number, 150, 155)
        record.completed(number, 190, 200)
    assert hidden(record.rows())[0] == 100 - 10 - 5 - 10


def recorded_step():
    """Return the rows of one step: forward 10 ms, sync 6 ms of which 4 in a call."""
    record = Recorder(["dp"])
    record.enabled = True
    with record.step(0), record.phase("sync"):
        record.call("dp", "all_reduce", 8, 11 * MS, 15 * MS)
    rows = {name: column.copy() for name, column in record.rows().items()}
    rows["enter"][1:], rows["leave"][1:] = [10 * MS, 0], [16 * MS, 17 * MS]
    return rows


def test_the_kinds_of_time_of_a_phase_add_up_to_its_wall_time():
    rows = recorded_step()
    table = phase_table(rows, np.array([3 * MS, 0, 0]))
    sync = list(table["phase"]).index("sync")
    assert table["wall_s"][sync] == pytest.approx(6e-3)
    assert table["compute_s"][sync] == pytest.approx(2e-3)
    assert table["wait_s"][sync] == pytest.approx(3e-3)
    assert table["transfer_s"][sync] == pytest.approx(1e-3)
    assert table["end_s"][sync] == pytest.approx(17e-3)
    assert table["wall_s"].sum() == pytest.approx(6e-3)


def test_calls_are_summed_by_step_phase_axis_and_verb():
    record = Recorder(["dp"])
    record.enabled = True
    for step in range(2):
        with record.step(step), record.phase("sync"):
            record.call("dp", "gather", 100, 0, 2 * MS)
            record.call("dp", "gather", 50, 2 * MS, 3 * MS)
            record.call("dp", "broadcast", 7, 3 * MS, 4 * MS)
    rows = record.rows()
    table = call_table(rows, np.zeros_like(rows["enter"]), ["dp"])
    found = sorted(zip(table["step"], table["verb"], table["count"], table["bytes"], strict=True))
    assert found == [
        (0, "broadcast", 1, 7),
        (0, "gather", 2, 150),
        (1, "broadcast", 1, 7),
        (1, "gather", 2, 150),
    ]
    assert table["transfer_s"].sum() == pytest.approx(8e-3)
