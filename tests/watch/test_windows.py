"""A record that is settled in windows gives the tables that it gives when it is settled at once."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from recordings import Made, record_of, recorded

from pscale.runs.step_time import step_times
from pscale.watch import sample, tables
from pscale.watch.notes import ANYBODY, FRUITLESS, NOTE, Communicator, read
from pscale.watch.rows import all_rows, windows
from pscale.watch.steps import find_steps
from pscale.watch.tables import record_tables

RANKS, SHARED = 3, 99
SPLIT = Communicator(how="Comm_split", parent=1, members=(0, 2))
WORDS = ("Allreduce", "Bcast", "Gather", "Scan", "Iallreduce")


class Rank:
    """The calls of a rank, one after the other, and the requests that it has not completed yet."""

    def __init__(self, number, draw):
        self.number, self.draw, self.made, self.open = number, draw, [], []
        self.at, self.requests = 10, 0

    def call(self, name, **words):
        enter = self.at
        self.at += self.draw.randrange(1, 40)
        self.made.append(Made(name, enter, self.at, **words))
        self.at += self.draw.randrange(1, 40)

    def start(self, name, *, source=0, **words):
        """Start something; sends share one request, as in MPICH."""
        request = SHARED
        if name != "Isend":
            self.requests += 1
            request = self.requests
        self.call(name, request=request, **words)
        status = {"peer": source, "tag": 7} if words.get("peer") == ANYBODY else {}
        self.open.append(Made("Waitall", 0, 0, comm=0, request=request, **status))

    def complete(self, most):
        """Complete some of what is open, in any order; sends of one request in theirs."""
        self.draw.shuffle(self.open)
        now, self.open = self.open[:most], self.open[most:]
        if now:
            if self.draw.random() < 0.5:
                self.call("Test", comm=0, request=now[0].request, flags=FRUITLESS, bytes=500)
            first, *parts = now
            words = {"peer": first.peer, "tag": first.tag, "request": first.request}
            self.call("Waitall", comm=0, parts=tuple(parts), **words)


def a_message(ranks, draw):
    one, two = draw.sample(ranks, 2)
    tag, size = draw.choice([7, 8]), draw.randrange(100)
    if draw.random() < 0.2:
        back = Made("Sendrecv", 0, 0, peer=two.number, tag=9)
        one.call("Sendrecv", peer=two.number, tag=9, bytes=size, parts=(back,))
        two.call("Recv", peer=one.number, tag=9)
        two.call("Send", peer=one.number, tag=9)
        return
    send = draw.choice([one.call, one.start])
    send("Send" if send == one.call else "Isend", peer=two.number, tag=tag, bytes=size)
    if draw.random() < 0.2:
        two.call("Probe", peer=one.number, tag=tag)
    match draw.choice(["Recv", "Irecv", "anybody"]):
        case "Recv":
            two.call("Recv", peer=one.number, tag=tag)
        case "Irecv":
            two.start("Irecv", peer=one.number, tag=tag)
        case _ if tag == 7:
            two.start("Irecv", peer=ANYBODY, tag=7, source=one.number)


def a_persistent_message(ranks):
    one, two = ranks[:2]
    one.call("Start", comm=0, request=1000)
    two.call("Start", comm=0, request=1001)
    two.open.append(Made("Waitall", 0, 0, comm=0, request=1001))
    two.complete(len(two.open))
    one.call("Wait", comm=0, request=1000)


def a_program(seed, *, marks):
    """Return the record of ranks that exchange whatever is drawn."""
    draw = random.Random(seed)
    ranks = [Rank(number, draw) for number in range(RANKS)]
    ranks[0].call("Send_init", peer=1, tag=5, bytes=8, request=1000)
    ranks[1].call("Recv_init", peer=0, tag=5, request=1001)
    for turn in range(120):
        match draw.randrange(6):
            case 0:
                comm, members = draw.choice([(1, ranks), (2, ranks[::2])])
                word, root = draw.choice(WORDS), draw.randrange(len(members))
                for rank in members:
                    call = rank.start if word.startswith("I") else rank.call
                    call(word, comm=comm, peer=root if word in ("Bcast", "Gather") else -1, bytes=8)
            case 1:
                a_persistent_message(ranks)
            case 2:
                ranks[1].call("File_write", comm=0)
            case _:
                a_message(ranks, draw)
        for rank in ranks:
            if draw.random() < 0.4:
                rank.complete(draw.randrange(1, 4))
            if marks and turn % 20 == 0:
                rank.call("Pcontrol", comm=0, peer=1)
                rank.call("Pcontrol", comm=0, peer=2 + turn % 3)
    ranks[2].call("Recv", peer=0, tag=77)  # never sent
    comms = [[SPLIT], [Communicator(how="Comm_split", parent=1, members=(1,))], [SPLIT]]
    return recorded(*(rank.made for rank in ranks), comms=comms, over=100_000)


@pytest.mark.parametrize("seed", range(4))
def test_a_record_in_windows_gives_the_same_tables(seed):
    record = a_program(seed, marks=seed % 2)
    whole, wait_s = record_tables(record), 0.0
    for window in (7, 100):
        found = record_tables(record, at_once=0, window=window)
        for name in ("steps", "calls", "ranks"):
            for column, values in found.tables[name].items():
                assert np.array_equal(values, whole.tables[name][column]), (window, name, column)
        assert (found.notes, found.columns) == (whole.notes, whole.columns)
        wait_s = found.tables["calls"]["wait_s"].sum()
    assert wait_s > 0


def test_of_very_many_steps_some_are_drawn_and_reported_as_they_were(monkeypatch):
    monkeypatch.setattr(tables, "MOST_PHASES", 1)
    draw, ranks = random.Random(3), [Rank(number, random.Random(number)) for number in range(2)]
    for _ in range(2500):
        at = max(rank.at for rank in ranks)
        for rank in ranks:
            rank.at = at + draw.randrange(40)
            rank.call("Pcontrol", comm=0, peer=1)
            rank.call("Allreduce", bytes=8)
    record = recorded(*(rank.made for rank in ranks), over=max(rank.at for rank in ranks))
    whole, found = record_tables(record), record_tables(record, at_once=0, window=500)
    every, few = (find_steps(record, lambda: [(all_rows(record)[0], True)], most) for most in (None, 1))
    drawn = np.searchsorted(every.starts[0], few.starts[0])
    assert len(drawn) == found.columns["steps"] == 1000
    assert len({*np.diff(drawn)}) > 2
    by_step = [job.tables["steps"] for job in (whole, found)]
    for name in ("wall_s", "compute_s", "wait_s", "transfer_s", "caused_wait_s"):
        one, other = (each[name].reshape(2, -1) for each in by_step)
        assert np.array_equal(one[:, drawn], other), name
    lasted = [step_times(each["end_s"].reshape(2, -1).max(axis=0)) for each in by_step]
    assert lasted[0][drawn] == pytest.approx(lasted[1], abs=1e-9)
    assert "of its 2,500, 1,000 drawn at random are reported" in found.notes[0]


def a_meeting(ranks, crosses, draw):
    """Make a call in which all ranks meet, with what crosses it; empty: nothing does."""
    one, two, *_ = ranks if crosses == "persistent" else draw.sample(ranks, 3)
    match crosses:
        case "eager":
            one.call("Send", peer=two.number, tag=6)
        case "both":
            one.call("Send", peer=two.number, tag=6)
            one.start("Irecv", peer=two.number, tag=6)
        case "posted":
            two.start("Irecv", peer=one.number, tag=6)
        case "persistent":
            two.call("Start", comm=0, request=1001)
    for rank in ranks:
        rank.call("Allreduce", bytes=8)
    match crosses:
        case "eager":
            two.call("Recv", peer=one.number, tag=6)
        case "both":
            two.call("Recv", peer=one.number, tag=6)
            two.call("Send", peer=one.number, tag=6)
        case "posted":
            one.call("Send", peer=two.number, tag=6)
        case "persistent":
            one.call("Start", comm=0, request=1000)
            two.call("Wait", comm=0, request=1001)
            one.call("Wait", comm=0, request=1000)


def a_program_that_rests(draw, *, marks):
    """Return the record of ranks that meet, often with messages under way, and often without."""
    ranks = [Rank(number, draw) for number in range(RANKS)]
    ranks[0].call("Send_init", peer=1, tag=5, bytes=8, request=1000)
    ranks[1].call("Recv_init", peer=0, tag=5, request=1001)
    for turn in range(400):
        if not marks:
            for rank in ranks:
                rank.call("Scan", bytes=8)
            a_meeting(ranks, "", draw)
            continue
        for rank in ranks:
            rank.call("Pcontrol", comm=0, peer=1)
            if turn % 37 == 0:
                rank.call("Pcontrol", comm=0, peer=2 + turn % 3)
        for one in draw.sample(ranks, draw.randrange(3)):
            two = ranks[one.number - 1]
            one.start("Isend", peer=two.number, tag=7, bytes=8)
            two.start("Irecv", peer=draw.choice([one.number, ANYBODY]), tag=7, source=one.number)
        for rank in ranks:
            rank.complete(len(rank.open))
        a_meeting(ranks, draw.choice(["eager", "posted", "both", "persistent", "", "", "", ""]), draw)
    return recorded(*(rank.made for rank in ranks), over=max(rank.at for rank in ranks))


@pytest.mark.parametrize("marks", [True, False])
def test_of_a_long_record_windows_are_drawn_between_rests_and_reported_as_they_were(monkeypatch, marks):
    monkeypatch.setattr(sample, "FINEST", 4)
    record = a_program_that_rests(random.Random(5), marks=marks)
    count = sum(map(len, record.notes))
    whole, part = record_tables(record), record_tables(record, at_once=0, window=50, most=count // 3)
    drawn = replace(record, drawn=sample.draw(record, count // 3))
    assert len(drawn.drawn) > sample.PIECES // 2
    every = find_steps(record, lambda: [(all_rows(record)[0], True)])
    few = find_steps(drawn, lambda: windows(drawn, 50), is_part=True)
    assert few.how.partition(";")[0] == every.how
    which = np.searchsorted(every.starts[0], few.starts[0])
    assert np.array_equal(every.starts[:, which], few.starts)
    assert np.array_equal(every.ends[:, which], few.ends)
    assert 20 < part.columns["steps"] == len(which) < every.count // 2
    for name in ("wall_s", "compute_s", "wait_s", "transfer_s"):
        one, other = (
            job.tables["steps"][name].reshape(RANKS, -1, len(every.phases)) for job in (whole, part)
        )
        assert np.array_equal(one[:, which], other), name
    assert part.tables["calls"]["wait_s"].sum() > 0
    kept = sum(map(len, drawn.drawn))
    assert f"{len(drawn.drawn)} windows drawn at random over the whole run" in part.warnings[0]
    assert f"with {kept:,} of {count:,} records" in part.warnings[0]


def test_of_a_long_record_the_first_part_is_reported_as_it_was_with_its_share_and_counts_of_all(tmp_path):
    record_of(tmp_path)
    shares = []
    whole = record_tables(read(tmp_path))
    part = record_tables(read(tmp_path), at_once=0, window=20, most=140, progressed=shares.append)
    count = part.columns["steps"]
    assert 1 < count < whole.columns["steps"]
    for column, values in part.tables["steps"].items():
        every = whole.tables["steps"][column].reshape(RANKS, whole.columns["steps"], -1)
        assert np.array_equal(values, every[:, :count].reshape(-1)), column
    kept, made = re.search(r"of .* s, with (\d+) of (\d+) records of calls", part.warnings[0]).groups()
    assert 120 < int(kept) < 150 < int(made)
    assert "MPI_Allreduce 18 (6 a rank; 3 s, 1,440 B); MPI_Wait 18 (6 a rank; 6 s)." in part.warnings[1]
    assert not whole.warnings
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_of_a_long_record_that_ends_in_a_call_this_is_named_and_not_what_was_analysed_last(tmp_path):
    record_of(tmp_path)
    for rank in range(RANKS):
        facts = tmp_path / f"facts.{rank}"
        facts.write_text(facts.read_text().partition("end")[0])
        file = tmp_path / f"notes.{rank}"
        made = np.frombuffer(file.read_bytes(), NOTE).copy()
        made["leave"][-1] = 0
        file.write_bytes(made.tobytes())
    _, counted, hang = record_tables(read(tmp_path), at_once=0, window=20, most=140).warnings
    assert "did not reach MPI_Finalize" in counted
    assert "ranks 0-2 in MPI_Allreduce over world" in hang
