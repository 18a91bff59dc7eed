"""Every rule of waiting, on two or three ranks with times that a person can follow (in ns)."""

import pytest
from thread_mesh import run_ranks

from pscale.worker.recorder import Recorder
from pscale.worker.waits import waits


def waits_of(*notes, sizes=None):
    """Return the waits of all ranks, where `notes[rank](recorder)` makes that rank's notes."""
    sizes = sizes or {"dp": len(notes)}
    recorders = [Recorder([*sizes]) for _ in notes]
    for recorder, note in zip(recorders, notes, strict=True):
        recorder.enabled = True
        with recorder.step(0), recorder.phase("sync"):
            note(recorder)

    def one(mesh):
        rows = recorders[mesh.world.rank].rows()
        communication = rows["axis"] >= 0
        return waits(rows, [mesh.axis(name) for name in sizes])[communication].tolist()

    return run_ranks(sizes, one)


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


def test_ranks_wait_for_those_alone_that_they_meet_on_the_axis_of_the_call():
    def rank(dp, tp):
        def note(record):
            record.call("dp", "all_reduce", 8, dp, 50)
            record.call("tp", "all_reduce", 8, tp, 100)

        return note

    notes = rank(10, 60), rank(20, 75), rank(40, 90), rank(25, 80)
    assert waits_of(*notes, sizes={"dp": 2, "tp": 2}) == [[30, 15], [5, 0], [0, 0], [0, 10]]


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
