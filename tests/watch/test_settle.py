import pytest
from recordings import Made, recorded, settled, table, waits

from pscale.watch.notes import ANYBODY, CANCELLED, FRUITLESS, LARGE, Communicator, groups
from pscale.watch.rows import all_rows
from pscale.watch.settle import settle
from pscale.watch.tables import record_tables


def test_in_a_collective_among_all_every_rank_waits_for_the_last():
    found = settled(
        [Made("Allreduce", 10, 60)],
        [Made("Allreduce", 50, 61)],
        [Made("Allreduce", 20, 62)],
    )
    assert waits(found) == [("Allreduce", 40, 1), ("Allreduce", 0, None), ("Allreduce", 30, 1)]


def test_in_a_broadcast_the_others_wait_for_the_root_alone():
    found = settled(
        [Made("Bcast", 30, 35, peer=0)],
        [Made("Bcast", 10, 36, peer=0)],
        [Made("Bcast", 90, 95, peer=0)],
    )
    assert waits(found) == [("Bcast", 0, None), ("Bcast", 20, 0), ("Bcast", 0, None)]


def test_in_a_gather_the_root_alone_waits_for_the_last():
    found = settled(
        [Made("Gather", 10, 95, peer=0)],
        [Made("Gather", 90, 92, peer=0)],
        [Made("Gather", 5, 6, peer=0)],
    )
    assert waits(found) == [("Gather", 80, 1), ("Gather", 0, None), ("Gather", 0, None)]


def test_in_a_scan_a_rank_waits_for_the_last_of_those_before_it():
    found = settled(
        [Made("Scan", 40, 45)],
        [Made("Scan", 10, 60)],
        [Made("Scan", 20, 60)],
        [Made("Scan", 70, 75)],
    )
    assert [wait for _, wait, _ in waits(found)] == [0, 30, 20, 0]


def test_in_a_neighbourhood_collective_a_rank_waits_for_its_neighbours_alone():
    near = {0: (1,), 1: (0, 2), 2: (1,)}
    comms = [
        [Communicator(how="Cart_create", parent=1, members=(0, 1, 2), near=near[rank])] for rank in range(3)
    ]
    found = settled(
        [Made("Neighbor_alltoall", 10, 60, comm=2)],
        [Made("Neighbor_alltoall", 20, 60, comm=2)],
        [Made("Neighbor_alltoall", 50, 60, comm=2)],
        comms=comms,
    )
    assert [(wait, cause) for _, wait, cause in waits(found)] == [(10, 1), (30, 2), (0, None)]


def test_a_receiver_waits_until_the_sender_comes_and_not_longer():
    found = settled(
        [Made("Send", 50, 55, peer=1, tag=3)],
        [Made("Recv", 10, 60, peer=0, tag=3)],
    )
    assert waits(found) == [("Send", 0, None), ("Recv", 40, 0)]


def test_a_sender_waits_for_a_receiver_that_comes_while_it_sends():
    found = settled(
        [Made("Send", 10, 70, peer=1, tag=3)],
        [Made("Recv", 50, 72, peer=0, tag=3)],
    )
    assert waits(found) == [("Send", 40, 1), ("Recv", 0, None)]


def test_a_sender_whose_message_is_buffered_waits_for_nobody():
    found = settled(
        [Made("Send", 10, 12, peer=1, tag=3)],
        [Made("Recv", 50, 52, peer=0, tag=3)],
    )
    assert waits(found) == [("Send", 0, None), ("Recv", 0, None)]


def test_messages_of_two_tags_are_told_apart_in_whatever_order_they_are_received():
    found = settled(
        [Made("Send", 10, 11, peer=1, tag=1), Made("Send", 60, 61, peer=1, tag=2)],
        [Made("Recv", 20, 62, peer=0, tag=2), Made("Recv", 63, 64, peer=0, tag=1)],
    )
    assert waits(found)[2:] == [("Recv", 40, 0), ("Recv", 0, None)]


def test_a_nonblocking_receive_from_anybody_is_of_whom_its_status_names():
    found = settled(
        [
            Made("Irecv", 10, 11, peer=ANYBODY, tag=7, request=1),
            Made("Wait", 20, 90, comm=0, peer=2, tag=7, request=1),
        ],
        [],
        [Made("Send", 80, 85, peer=0, tag=7)],
    )
    assert waits(found)[1] == ("Wait", 60, 2)


def test_who_waits_for_several_requests_waits_for_the_last_of_them():
    found = settled(
        [
            Made("Irecv", 1, 2, peer=1, tag=0, request=1),
            Made("Irecv", 3, 4, peer=2, tag=0, request=2),
            Made("Waitall", 10, 90, comm=0, request=1, parts=(Made("Waitall", 0, 0, comm=0, request=2),)),
        ],
        [Made("Send", 40, 41, peer=0, tag=0)],
        [Made("Send", 70, 71, peer=0, tag=0)],
    )
    assert waits(found)[2] == ("Waitall", 60, 2)


def test_a_request_whose_handle_was_used_before_is_the_latest():
    rounds = [
        call
        for start in (0, 100)
        for call in (
            Made("Irecv", start + 1, start + 2, peer=1, tag=0, request=5),
            Made("Wait", start + 10, start + 90, comm=0, request=5),
        )
    ]
    found = settled(rounds, [Made("Send", 5, 6, peer=0, tag=0), Made("Send", 150, 151, peer=0, tag=0)])
    assert [wait for name, wait, _ in waits(found) if name == "Wait"] == [0, 40]


def test_a_persistent_request_is_what_it_was_made_with_every_time_it_is_started():
    receiver = [Made("Recv_init", 1, 2, peer=1, tag=4, request=9)]
    sender = [Made("Send_init", 1, 2, peer=0, tag=4, request=8, bytes=80)]
    for start in (10, 110):
        receiver += [
            Made("Start", start, start, comm=0, request=9),
            Made("Wait", start + 1, start + 50, comm=0, request=9),
        ]
        sender += [
            Made("Start", start + 31, start + 32, comm=0, request=8),
            Made("Wait", start + 33, start + 34, comm=0, request=8),
        ]
    record = recorded(receiver, sender)
    assert [wait for name, wait, _ in waits(settled(receiver, sender)) if name == "Wait"][:2] == [30, 30]
    sent = [row for row in table(record, "calls") if row["verb"] == "send"]
    assert [(row["count"], row["bytes"]) for row in sent] == [(2, 160)]


def test_communicators_with_the_same_members_are_told_apart_by_their_order():
    two = [Communicator(how="Comm_dup", parent=1, members=(0, 1))] * 2
    found = settled(
        [Made("Barrier", 10, 60, comm=2), Made("Barrier", 61, 90, comm=3)],
        [Made("Barrier", 50, 60, comm=2), Made("Barrier", 80, 90, comm=3)],
        comms=[two, two],
    )
    assert [wait for _, wait, _ in waits(found)] == [40, 19, 0, 0]
    assert [group.name for group in found.groups] == ["world", "dup", "dup 2"]


def test_groups_that_one_split_makes_have_one_name_and_do_not_wait_for_each_other():
    comms = [[Communicator(how="Comm_split", parent=1, members=members)] for members in ((0,), (1,))]
    found = settled([Made("Barrier", 10, 20, comm=2)], [Made("Barrier", 15, 40, comm=2)], comms=comms)
    assert [wait for _, wait, _ in waits(found)] == [0, 0]
    assert [group.name for group in found.groups] == ["world", "split", "split"]


def test_between_tests_that_found_nothing_a_rank_computes():
    tests = Made("Test", 10, 50, comm=0, request=1, flags=FRUITLESS, bytes=4000)  # 4 us of them in MPI
    record = recorded(
        [Made("Ibarrier", 5, 6, request=1), tests, Made("Test", 60, 62, comm=0, request=1)], over=62
    )
    (step,) = table(record, "steps")
    assert step["transfer_s"] == pytest.approx(7e-6)
    assert step["compute_s"] == pytest.approx(step["wall_s"] - 7e-6)


def test_a_rank_that_never_comes_is_waited_for_until_the_record_ends_and_is_named():
    waits = Made("Recv", 30, 0, peer=1, tag=2, flags=LARGE)
    record = recorded([Made("Barrier", 10, 20), waits], [Made("Barrier", 12, 20)])
    for facts in record.facts:
        facts.end_ns = None
    (warning,) = record_tables(record).warnings
    assert "2 of 2 ranks did not reach MPI_Finalize" in warning
    assert "rank 0 in MPI_Recv_c from rank 1 over world; rank 1 in no call" in warning


def test_calls_that_cannot_be_split_are_named_with_their_share():
    record = recorded([Made("Barrier", 10, 40), Made("File_write_all", 50, 60, comm=0)], over=100)
    assert any("25.0% of the time in MPI (file_write_all)" in note for note in record_tables(record).notes)
    assert [row["verb"] for row in table(record, "calls") if row["axis"] == "not split"] == ["file_write_all"]


def test_on_an_ideal_network_the_wait_for_a_late_rank_stays_and_the_transfer_goes():
    found = settled(
        [Made("Allreduce", 10, 100), Made("Barrier", 110, 130)],
        [Made("Allreduce", 50, 100), Made("Barrier", 105, 130)],
    )
    assert found.ideal_wait is not None
    assert [int(wait) // 1000 for wait in found.ideal_wait] == [40, 0, 0, 5]


def test_every_moment_of_a_step_is_of_one_kind_and_waits_are_caused_by_somebody():
    record = recorded(
        [Made("Send", 10, 12, peer=1, tag=0), Made("Allreduce", 40, 90)],
        [Made("Recv", 5, 20, peer=0, tag=0), Made("Allreduce", 80, 90)],
    )
    steps = table(record, "steps")
    for row in steps:
        assert row["compute_s"] + row["wait_s"] + row["transfer_s"] == pytest.approx(row["wall_s"])
    assert sum(row["wait_s"] for row in steps) == pytest.approx(45e-6)
    assert sum(row["caused_wait_s"] for row in steps) == pytest.approx(45e-6)


def test_the_times_of_another_node_are_those_of_the_clock_of_rank_0():
    record = recorded([Made("Barrier", 10, 60)], [Made("Barrier", 5050, 5061)])
    other = record.facts[1]
    other.node, other.end_ns = 1, 6_000_000
    trips = [(5000_000 + at, at + 1000, 5000_000 + at + 2000) for at in range(0, 3000, 1000)]
    other.trips = trips, [tuple(time + 900_000 for time in trip) for trip in trips]
    assert table(record, "calls")[0]["wait_s"] == pytest.approx(40e-6, abs=2e-9)
    assert table(record, "calls")[0]["clock_bound_s"] >= 2e-6


def test_sends_that_share_a_request_are_completed_in_their_turn():
    record = recorded(
        [
            Made("Isend", 1, 2, peer=1, tag=0, request=7),
            Made("Isend", 3, 4, peer=1, tag=0, request=7),
            Made("Wait", 5, 6, comm=0, request=7),
            Made("Wait", 7, 8, comm=0, request=7),
            Made("Isend", 9, 10, peer=1, tag=0, request=7),
            Made("Wait", 11, 12, comm=0, request=7),
        ],
        [],
    )
    found = settle(*all_rows(record))
    assert found.post.tolist() == [-1, -1, 0, 1, -1, 4]


def test_a_receive_that_was_cancelled_takes_no_message():
    for flags, expected in ((CANCELLED, 40), (0, 0)):
        found = settled(
            [Made("Ssend", 10, 60, peer=1, tag=3)],
            [
                Made("Irecv", 1, 2, peer=0, tag=3, request=7),
                Made("Wait", 3, 4, comm=0, request=7, flags=flags),
                Made("Recv", 50, 61, peer=0, tag=3),
            ],
        )
        assert waits(found)[0][1] == expected


def test_a_communicator_made_after_another_of_its_call_was_freed_has_its_name():
    split = Communicator(how="Comm_split", parent=1, members=(0,))
    record = recorded([], comms=[[split] * 4])
    record.facts[0].frees = [(2, 2), (4, 5), (4, 9)]  # the first, then the third; one that there never was
    assert [group.name for group in groups(record.facts)[0]] == [
        "world",
        "split",
        "split",
        "split 2",
        "split 3",
    ]
