"""Clocks of known offset and drift are brought together to within the bound that is stated."""

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from shifted import Shifted
from thread_mesh import run_ranks

from pscale.worker.clock import (
    DRIFT_LIMIT,
    Clock,
    ClockError,
    Offset,
    agree,
    axis_bounds_ns,
    backwards_ns,
    compare,
    composed,
    tightest,
)
from pscale.worker.recorder import Recorder

S = 1_000_000_000
PARENTS = (0, 0, 1, 0, 1, 2, 3)  # of nodes 1 to 7: who is asked for the time


class Node:
    """A simulated clock: reads offset + rate x true time, in whole ns."""

    def __init__(self, random):
        self.offset = int(random.integers(-(10**15), 10**15))
        self.rate = 1 + random.uniform(-0.45, 0.45) * DRIFT_LIMIT

    def __call__(self, true_ns):
        return self.offset + np.floor(np.asarray(true_ns) * self.rate).astype(np.int64)


def round_trips(random, begin_ns, asking, asked, count):
    """Compare clocks by `count` round trips, each way with a delay of its own, some very long."""
    there, back = (
        random.uniform(200, 50_000) + random.exponential(random.uniform(100, 200_000), count)
        for _ in range(2)
    )
    starts = begin_ns + np.concatenate([[0], np.cumsum(there + back)[:-1]])
    offset = tightest(asking(starts), asked(starts + there), asking(starts + there + back))
    assert 0 < offset.bound_ns <= 0.502 * (there + back).min() + 4
    return offset


def test_every_clock_is_known_within_its_bound_in_a_thousand_random_clusters():
    random = np.random.default_rng(5)
    for _ in range(1000):
        nodes = [Node(random) for _ in range(random.integers(2, 2 + len(PARENTS)))]
        count, steps_ns = int(random.integers(1, 40)), random.uniform(0.01, 1000) * S
        to_parents = []
        for place, (node, parent) in enumerate(zip(nodes[1:], PARENTS, strict=False)):
            times_ns = (place - 10) * S, steps_ns + (10 - place) * S  # parents first, then children first
            before, after = (round_trips(random, at, node, nodes[parent], count) for at in times_ns)
            to_parents.append(Clock(before=before, after=after))
        moments = random.uniform(0, steps_ns, 20)
        for node, clock in zip(nodes, composed(to_parents), strict=True):
            errors = np.abs(clock(node(moments)) - nodes[0](moments))
            assert errors.max() <= clock.bound_ns + 1  # ns in which the two clocks themselves are rounded


def test_the_tightest_bounds_may_be_of_different_round_trips():
    asked, received = np.array([0, 100, 200]), np.array([40, 140, 230])
    told = np.array([1005, 1135, 1216])  # one came back slowly, one went slowly
    offset = tightest(asked, told, received)
    assert (offset.ahead_ns, offset.at_ns) == (1000, 215)
    assert offset.bound_ns == 5 + 1 + 1  # of 30; plus what drifts meanwhile, plus a rounding


def test_clocks_that_contradict_themselves_are_refused():
    with pytest.raises(ClockError, match="contradict themselves by 5 ms"):
        tightest(np.array([0, 1000]), np.array([5, 5_000_005]), np.array([10, 1010]))


def test_between_two_offsets_drift_is_interpolated():
    clock = Clock(
        before=Offset(at_ns=1000, ahead_ns=50, bound_ns=3), after=Offset(at_ns=3000, ahead_ns=70, bound_ns=9)
    )
    assert clock(np.array([1000, 2000, 3000])).tolist() == [1050, 2060, 3070]
    assert clock.drift == pytest.approx(0.01)
    assert clock.bound_ns == 10


def test_a_clock_known_through_another_is_known_as_well_as_both_together():
    def known_to(bound_ns):
        offset = Offset(at_ns=0, ahead_ns=0, bound_ns=bound_ns)
        return Clock(before=offset, after=replace(offset, at_ns=9))

    found = composed([known_to(1000), known_to(10), known_to(5000)])  # the third by way of the first
    assert DRIFT_LIMIT == 1e-3
    assert [clock.bound_ns for clock in found[:2]] == [0, 1000 + 1 + 1], "what drifts, and a rounding"
    assert found[3].before.bound_ns == 5000 + 5 + found[1].bound_ns


CLOCKS = (
    Shifted(offset_ns=7),  # of the node that all times are brought to
    Shifted(offset_ns=-5 * S, drift_ppm=80),
    Shifted(offset_ns=3600 * S, drift_ppm=-300),
    Shifted(offset_ns=-1),
)
NODES = (0, 1, 1, 2, 0, 3)


def test_ranks_of_several_nodes_agree_on_the_time_by_messages():
    def one(mesh):
        now = CLOCKS[NODES[mesh.world.rank]]
        before = compare(mesh, now)
        mesh.world.barrier()
        begin = now()
        time.sleep(0.02)
        end = now()
        mesh.world.barrier()
        after = compare(mesh, now, last=True)
        clock = agree(mesh, before, after)
        errors = [clock.at(at) - CLOCKS[0].of(now.true_ns(at)) for at in (begin, end)]
        asked = [now.true_ns(offset.at_ns) for offset in (before, after) if offset]
        return max(map(abs, errors)), clock.bound_ns, clock, asked

    found = run_ranks(len(NODES), one, nodes=NODES)
    assert all(error <= bound + 2 for error, bound, *_ in found)
    assert [bound == 0 for _, bound, *_ in found] == [node == 0 for node in NODES]
    assert found[1][2] == found[2][2]  # of one node: one clock
    (first, last), (first_of_child, last_of_child) = (found[NODES.index(node)][3] for node in (1, 3))
    assert first < first_of_child < last_of_child < last, "a parent's offsets enclose those of its child"


def test_waits_on_an_axis_within_a_node_are_exact_and_across_nodes_as_wrong_as_two_clocks():
    def one(mesh):
        bound = 10 * mesh.nodes[mesh.world.rank]
        offset = Offset(at_ns=0, ahead_ns=0, bound_ns=bound)
        clock = Clock(before=offset, after=Offset(at_ns=9, ahead_ns=0, bound_ns=bound))
        return axis_bounds_ns(mesh, clock, [mesh.axis("dp"), mesh.axis("tp")])

    found = run_ranks({"dp": 2, "tp": 2}, one, nodes=(0, 0, 1, 1))
    assert found == [{"dp": 11, "tp": 0}] * 2 + [{"dp": 22, "tp": 0}] * 2


@pytest.mark.parametrize("reading", range(1, 20))
def test_a_clock_that_falls_is_found_wherever_it_fell(reading):
    readings = itertools.count()
    recorder = Recorder(["dp"], now=lambda: 1000 * (count := next(readings)) - 1500 * (count == reading))
    recorder.enabled = True
    for step in range(2):
        with recorder.step(step):
            recorder.call("dp", "barrier", 0, recorder.now(), recorder.now())
            for phase in ("data", "sync"):
                with recorder.phase(phase):
                    recorder.call("dp", "all_reduce", 8, recorder.now(), recorder.now())
    assert next(readings) == 20
    assert backwards_ns(recorder.rows()) == 500


def test_a_clock_that_never_falls_is_not_suspected():
    recorder = Recorder(["dp"], now=itertools.count().__next__)
    recorder.enabled = True
    for step in range(2):
        with recorder.step(step):
            recorder.call("dp", "barrier", 0, recorder.now(), recorder.now())
            with recorder.phase("sync"):
                number = recorder.posted("dp", "send", 8, recorder.now(), recorder.now(), partner=1)
                recorder.completed(number, recorder.now(), recorder.now())
                recorder.io_done("read", 8, 0, 1)  # long ago, by a thread of its own
    assert backwards_ns(recorder.rows()) == 0
    assert backwards_ns(Recorder(["dp"]).rows()) == 0
