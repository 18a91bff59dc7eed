"""Every wait is put down to the rank that came last, with times that a person can follow (in ns)."""

import pytest
from thread_mesh import run_ranks

from pscale.results.events import PHASES
from pscale.worker.blame import by_phase, caused
from pscale.worker.recorder import Recorder
from pscale.worker.waits import waits


def caused_by(*notes):
    """Return what each rank caused in ns, call by call, where `notes[rank](recorder)` makes its notes."""
    recorders = [Recorder(["dp"]) for _ in notes]
    for recorder, note in zip(recorders, notes, strict=True):
        recorder.enabled = True
        with recorder.step(0), recorder.phase("sync"):
            note(recorder)

    def one(mesh):
        rows, axes = recorders[mesh.world.rank].rows(), [mesh.axis("dp")]
        found = caused(rows, waits(rows, axes), axes)
        assert by_phase(rows, found)[PHASES.index("sync")] == pytest.approx(found.sum() * 1e-9)
        return found[rows["axis"] >= 0].tolist()

    return run_ranks(len(notes), one)


def call(verb, enter, leave, root=False):
    return lambda record: record.call("dp", verb, 8, enter, leave, root=root)


def started(verb, posted, enter, leave, partner=-1):
    def note(record):
        number = record.posted("dp", verb, 8, posted, posted + 1, partner=partner)
        record.completed(number, enter, leave)

    return note


def test_the_last_to_come_has_caused_the_waits_of_all_others():
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
