import numpy as np
import pytest

from pscale.mesh import nonblocking
from pscale.mesh.alone import SelfMesh
from pscale.mesh.nonblocking import NonblockingCall, Recorder, RequestQueue
from pscale.nn.layer import Chain
from pscale.training.units import interspersed


class Layer:
    params = ()

    def __init__(self, name, log):
        self.name, self.log = name, log

    def forward(self, x):
        self.log.append(self.name)
        return x, None

    def backward(self, dy, _cache):
        self.log.append(self.name)
        return dy


class Mesh(SelfMesh):
    """A mesh that notes when it is given a chance."""

    def __init__(self, ranks, log):
        super().__init__()
        self.world.size, self.log = ranks, log

    def progress(self):
        self.log.append("progress")


@pytest.mark.parametrize("ranks", [1, 2])
def test_exchanges_may_move_between_layers_in_both_directions_unless_a_rank_is_alone(ranks):
    log, x = [], np.zeros(3)
    chain = Chain(*interspersed([Layer("a", log), Layer("b", log)], Mesh(ranks, log)))
    y, cache = chain.forward(x)
    dx = chain.backward(y, cache)
    assert y is x
    assert dx is x
    between = ["progress"] if ranks > 1 else []
    assert log == ["a", *between, "b", *between, *between, "b", *between, "a"]


def test_the_oldest_call_is_asked_till_it_is_complete_and_what_was_waited_for_is_not(monkeypatch):
    monkeypatch.setattr(nonblocking, "thread_time_ns", lambda: 0)
    asked, outstanding = [], RequestQueue()

    class Answering:
        def __init__(self, name, answers):
            self.name, self.answers = name, answers

        def Test(self):  # noqa: N802 - as mpi4py calls it
            asked.append(self.name)
            return self.answers.pop(0)

        def Wait(self):  # noqa: N802
            asked.append(f"{self.name} waits")

    calls = [Answering("a", [False, True]), Answering("b", []), Answering("c", [True])]
    _, second, third = (NonblockingCall(call, 0, Recorder(), outstanding) for call in calls)
    nonblocking.progress(outstanding)
    assert asked == ["a"]
    second.wait()
    nonblocking.progress(outstanding)
    assert asked == ["a", "b waits", "a", "c"]
    assert not outstanding.queues[None]
    third.wait()
    assert asked == ["a", "b waits", "a", "c"]


class Sum:
    """A started call that its sums move, complete once it was asked for twice."""

    def __init__(self, sums):
        self.sums, self.asked = sums, 0

    def Test(self):  # noqa: N802
        self.asked += 1
        return self.asked > 1


def test_sums_of_every_axis_move_while_an_older_call_is_not_complete(monkeypatch):
    monkeypatch.setattr(nonblocking, "thread_time_ns", lambda: 0)
    outstanding, sums = RequestQueue(), [Sum("dp"), Sum("dp"), Sum("tp")]
    message = Sum(None)
    calls = [NonblockingCall(call, 0, Recorder(), outstanding) for call in (message, *sums)]
    nonblocking.progress(outstanding)
    assert [message.asked, *(each.asked for each in sums)] == [1, 1, 0, 1]  # one question moves an axis
    nonblocking.progress(outstanding)
    assert [call.complete for call in calls] == [True, True, False, True]


def test_sums_of_other_axes_move_while_a_call_is_waited_for(monkeypatch):
    monkeypatch.setattr(nonblocking, "thread_time_ns", lambda: 0)
    outstanding, total = RequestQueue(), Sum("dp")
    reply = Sum(None)
    reply.Test = lambda: total.asked > 2  # the other side sends once it has the sum
    NonblockingCall(total, 0, Recorder(), outstanding)
    NonblockingCall(reply, 0, Recorder(), outstanding).wait()
    assert total.asked > 2


class Request:
    """A started call of which every question moves a part, the last one what is left."""

    def __init__(self, clock, costs_ns):
        self.clock, self.costs_ns = clock, list(costs_ns)

    def Test(self):  # noqa: N802 - as mpi4py calls it
        self.clock.ns += self.costs_ns.pop(0)
        return not self.costs_ns


class Clock:
    """A recorder whose time passes in the library alone."""

    def __init__(self):
        self.ns, self.noted = 0, []

    def now(self):
        return self.ns

    def polled(self, number, enter, leave):
        self.noted.append(("polled", number, enter, leave))

    def polled_complete(self, number, enter, leave):
        self.noted.append(("polled_complete", number, enter, leave))


def test_a_library_that_moves_a_segment_a_question_is_asked_until_it_has_nothing_to_do(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(nonblocking, "thread_time_ns", clock.now)
    request = Request(clock, [40_000, 30_000, 500, 20_000, 400])
    pending = NonblockingCall(request, 7, clock, RequestQueue())
    assert not pending.poll()
    assert clock.noted == [("polled", 7, 0, 70_500)]  # the short answer: nothing more has arrived
    assert pending.poll()
    assert clock.noted[1:] == [("polled_complete", 7, 70_500, 90_900)]
    assert pending.poll()
    assert len(clock.noted) == 2


def test_what_a_segment_costs_is_inferred_from_the_cheapest_question_on_machines_of_any_speed(monkeypatch):
    clock, outstanding = Clock(), RequestQueue()
    monkeypatch.setattr(nonblocking, "thread_time_ns", clock.now)
    for idle in (400, 1_500):  # below a microsecond all are the same
        NonblockingCall(Request(clock, [idle, 0]), 7, clock, outstanding).poll()
    before = clock.ns
    assert not NonblockingCall(Request(clock, [6_000, 4_000, 1_900, 6_000]), 8, clock, outstanding).poll()
    assert clock.ns - before == 11_900


def test_a_library_that_is_never_idle_keeps_nobody_from_computing(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(nonblocking, "thread_time_ns", clock.now)
    pending = NonblockingCall(Request(clock, [50_000] * 10_000), 7, clock, RequestQueue())
    assert not pending.poll()
    assert clock.ns < 10_000_000


def test_time_that_others_spend_on_the_core_is_not_taken_for_progress(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(nonblocking, "thread_time_ns", lambda: 0)
    assert not NonblockingCall(Request(clock, [3_000_000] * 10), 7, clock, RequestQueue()).poll()
    assert clock.ns == 3_000_000
