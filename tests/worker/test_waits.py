"""Every rule of waiting, on two or three ranks with times that a person can follow (in ns)."""

import numpy as np
import pytest
from programs import random_program
from thread_mesh import run_ranks

from pscale.worker.recorder import Recorder
from pscale.worker.waits import caused_waits, ideal, waits

GRIDS = [{"dp": 2}, {"dp": 3}, {"pp": 2, "dp": 2}, {"pp": 3, "tp": 2}, {"pp": 2, "dp": 2, "tp": 2}]


def waits_of(*events, sizes=None, cause=False):
    """Return the waits of all ranks by call, where `events[rank](recorder)` records; or what each caused."""
    sizes = sizes or {"dp": len(events)}
    recorders = [Recorder([*sizes]) for _ in events]
    for recorder, record in zip(recorders, events, strict=True):
        recorder.enabled = True
        with recorder.step(0), recorder.phase("sync"):
            record(recorder)

    def one(mesh):
        rows, axes = recorders[mesh.world.rank].rows(), [mesh.axis(name) for name in sizes]
        found = waits(rows, axes)
        return (caused_waits(rows, found, axes) if cause else found)[rows["axis"] >= 0].tolist()

    return run_ranks(sizes, one)


def caused_by(*events):
    return waits_of(*events, cause=True)


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
        def events(record):
            one = record.posted("dp", "all_reduce", 8, first, first + 1)
            two = record.posted("dp", "all_reduce", 8, second, second + 1)
            record.completed(two, 70, 80)
            record.completed(one, 80, 90)

        return events

    assert waits_of(rank(0, 5), rank(85, 75)) == [[0, 0, 5, 5], [0, 0, 5, 5]]


def test_ranks_wait_for_those_alone_that_they_meet_on_the_axis_of_the_call():
    def rank(dp, tp):
        def events(record):
            record.call("dp", "all_reduce", 8, dp, 50)
            record.call("tp", "all_reduce", 8, tp, 100)

        return events

    ranks = rank(10, 60), rank(20, 75), rank(40, 90), rank(25, 80)
    assert waits_of(*ranks, sizes={"dp": 2, "tp": 2}) == [[30, 15], [5, 0], [0, 0], [0, 10]]


def message(verb, partner, posted, enter, leave):
    def events(record):
        number = record.posted("dp", verb, 8, posted, posted + 1, partner=partner)
        record.completed(number, enter, leave)

    return events


def test_a_receiver_waits_for_a_late_sender_and_a_sender_for_a_late_receiver():
    assert waits_of(message("send", 1, 60, 61, 90), message("receive", 0, 10, 20, 80)) == [[0, 0], [0, 40]]
    assert waits_of(message("send", 1, 10, 11, 90), message("receive", 0, 70, 75, 80)) == [[0, 59], [0, 0]]


def test_a_send_that_is_over_before_its_receiver_has_come_waits_for_nobody():
    assert waits_of(message("send", 1, 10, 11, 69), message("receive", 0, 70, 75, 80)) == [[0, 0], [0, 0]]


def test_messages_of_a_pair_are_matched_in_their_order_in_each_direction():
    def both(partner, send, receive):
        def events(record):
            one = record.posted("dp", "send", 8, send, send, partner=partner)
            two = record.posted("dp", "receive", 0, receive, receive, partner=partner)
            three = record.posted("dp", "receive", 0, receive, receive, partner=partner)
            four = record.posted("dp", "send", 8, send + 30, send + 30, partner=partner)
            for number in (one, two, three, four):
                record.completed(number, 50, 100)

        return events

    waits = waits_of(both(1, 40, 45), both(0, 60, 65))
    assert [w[4:] for w in waits] == [[15, 10, 40, 15], [0, 0, 20, 0]]


def started(verb, posted, enter, leave, partner=-1):
    def record(recorder):
        number = recorder.posted("dp", verb, 8, posted, posted + 1, partner=partner)
        recorder.completed(number, enter, leave)

    return record


def test_the_last_to_enter_has_caused_the_waits_of_all_others():
    assert caused_by(*(call("all_reduce", enter, 100) for enter in (10, 70, 30))) == [[0], [60 + 40], [0]]


def test_a_root_has_caused_the_waits_of_its_receivers_and_the_last_sender_that_of_its_root():
    bound = call("broadcast", 50, 90, root=True), call("broadcast", 20, 95), call("broadcast", 60, 95)
    assert caused_by(*bound) == [[30], [0], [0]]
    to_root = call("gather", 10, 100, root=True), call("gather", 80, 90), call("gather", 5, 9)
    assert caused_by(*to_root) == [[0], [70], [0]]


def test_a_started_call_is_caused_where_it_was_started():
    early, late = started("all_reduce", 0, 40, 60), started("all_reduce", 50, 55, 60)
    assert caused_by(early, late) == [[0, 0], [10, 0]]


def test_the_sides_of_a_message_wait_for_each_other():
    late_sender = started("send", 60, 61, 90, partner=1), started("receive", 10, 20, 80, partner=0)
    assert caused_by(*late_sender) == [[40, 0], [0, 0]]
    late_receiver = started("send", 10, 11, 90, partner=1), started("receive", 70, 75, 80, partner=0)
    assert caused_by(*late_receiver) == [[0, 0], [59, 0]]


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
