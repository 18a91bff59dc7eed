"""The walk of all ranks at once is that of every rank on its own, and what is known in closed form."""

import zlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from one_by_one import step_ends
from plans import name, on_plan
from training.test_offload import GPT, MOE

from pscale.analysis.timeline import PARTS
from pscale.config import Inject, Jitter, Matrix, Plan
from pscale.mesh.dry import AxisCall
from pscale.predict.costs import CallCost, SegmentCost
from pscale.predict.step_program import step_program
from pscale.predict.walk import StepPaces, Walk

STEPS = 3


class Hashed:
    """Costs that differ by what is done, not by how much of it: the last of those that share owns less."""

    def segment(self, segment):
        done = sorted({getattr(each, "function", "") for each in segment.operations})
        return SegmentCost(
            values=self._time(f"{segment.phase} {segment.before} {segment.after} {done}", 1e-3)
        )

    def call(self, call, _):
        kind = f"{call.verb} {call.event} {call.root}"
        return CallCost(last=self._time(kind, 1e-4), late=self._time(f"late {kind}", 1e-4))

    priced = False
    completion = call

    def _time(self, text, most):
        return np.array([most * (zlib.crc32(text.encode()) % 1000 + 1) / 1000])


PLANS = [
    (GPT, Plan(dp=4), 1),
    (GPT, Plan(dp=2, reduction="gather-broadcast"), 1),
    (GPT, Plan(dp=4, shard=2, zero=3), 1),
    (GPT, Plan(dp=2, tp=2, sp=True, zero=1), 1),
    (GPT, Plan(cp=2, dp=2), 1),
    (GPT, Plan(cp=2, context="ulysses"), 1),
    (GPT, Plan(cp=4, context="unified", ulysses=2), 1),
    (GPT, Plan(pp=2, tp=2), 4),
    (GPT, Plan(pp=2, dp=2, schedule="gpipe"), 2),
    (GPT, Plan(pp=2, schedule="zero-bubble"), 4),
    (GPT, Plan(pp=2, cp=2), 2),
    (MOE, Plan(ep=2, dp=2), 1),
    (GPT, Plan(matrix=Matrix(tx=2, ty=2, algorithm="cannon")), 1),
    (GPT, Plan(matrix=Matrix(tx=2, ty=2, algorithm="summa")), 1),
]


@pytest.mark.parametrize(
    ("case", "plan", "micro"), PLANS, ids=lambda each: name(each) if isinstance(each, Plan) else None
)
def test_all_ranks_at_once_have_the_clocks_of_each_alone(case, plan, micro):
    case = on_plan(case, plan, micro)
    program, random = step_program(case), np.random.default_rng(3)
    whole = random.uniform(0.5, 2.0, (STEPS, 2, *program.sizes.values()))  # two launches
    boxes = [
        tuple(slice(each.start, each.stop) for each in block.places.values()) for block in program.blocks
    ]
    paces = [
        StepPaces(computing=[step[(slice(None), *box)] for box in boxes], calls=np.ones(2)) for step in whole
    ]
    walk = Walk(case, program, Hashed(), paces, np.random.default_rng(0)).run()
    for launch in range(2):
        paced = whole[:, launch].reshape(STEPS, -1)
        expected = step_ends(case, Hashed(), lambda step, rank, paced=paced: paced[step, rank], STEPS)
        assert walk.lengths[launch] == pytest.approx(np.diff(expected), rel=1e-9)
    assert not walk.meetings
    assert not walk.messages


def drawn(case, costs, launches=1, seed=0):
    program = step_program(case)
    one = np.ones((launches, *program.sizes.values()))
    boxes = [
        tuple(slice(each.start, each.stop) for each in block.places.values()) for block in program.blocks
    ]
    paces = [
        StepPaces(computing=[one[(slice(None), *box)] for box in boxes], calls=np.ones(launches))
    ] * STEPS
    return Walk(case, program, costs, paces, np.random.default_rng(seed), traced=True).run()


class Even:
    """A product takes its FLOPs in ns, and nothing else takes any time."""

    def segment(self, segment):
        return SegmentCost(values=np.array([1e-9 * segment.amounts.get("product flops", 0.0)]))

    def call(self, *_):
        return CallCost(last=np.zeros(1), late=np.zeros(1))

    priced = False
    completion = call


def test_a_delayed_rank_makes_all_others_wait_by_as_much():
    case = on_plan(GPT, Plan(dp=4))
    late = replace(case, inject=Inject(rank=2, phase="forward", delay_s=0.5))
    walk, healthy = drawn(late, Even()), drawn(case, Even())
    assert walk.lengths == pytest.approx(healthy.lengths + 0.5)
    assert walk.spent["wait imbalance"] == pytest.approx(0.5 * 3 / 4)
    assert walk.spent["injected"] == pytest.approx(0.5 / 4)


def test_jitter_costs_the_largest_of_the_ranks_in_every_step():
    case = replace(
        on_plan(GPT, Plan(dp=8)), jitter=Jitter(distribution="uniform", mean_s=0.5, phase="forward")
    )
    longer = (
        drawn(case, Even(), launches=2000).lengths - drawn(replace(case, jitter=Jitter()), Even()).lengths
    )
    assert longer.mean() == pytest.approx(8 / 9, rel=0.01)  # the largest of eight uniform numbers


def test_what_a_step_spends_adds_up_to_its_length():
    walk = drawn(on_plan(GPT, Plan(pp=2, dp=2), 4), Even())
    assert sum(walk.spent.values()) == pytest.approx(walk.lengths.mean())
    assert walk.spent["wait bubble"] > 0
    for rank in {span.rank for span in walk.spans}:
        parts = [span for span in walk.spans if span.rank == rank and span.kind in PARTS]
        assert all(before.stop_s == pytest.approx(after.start_s) for before, after in pairwise(parts))
        assert sum(part.stop_s - part.start_s for part in parts) == pytest.approx(walk.lengths[0, -1])


class Wired(Even):
    """Nothing computes, and every call keeps a link for a second: one for all axes, or each its own."""

    priced = True

    def __init__(self, *, one_link):
        self.one_link = one_link

    def segment(self, _):
        return SegmentCost(values=np.zeros(1))

    def call(self, call, _):
        ends = call.event != "start"
        link = "all" if self.one_link else call.axis
        return CallCost(last=np.ones(1) * ends, late=np.zeros(1), priced=ends, busy_s=1.0 * ends, link=link)

    def completion(self, start, size):
        return self.call(replace(start, event="wait"), size)


def test_calls_of_all_axes_that_use_a_link_send_one_after_the_other():
    case = on_plan(GPT, Plan(dp=2, cp=2, bucket_bytes=1024))
    (block, *_) = step_program(case).blocks
    sent = sum(
        isinstance(each, AxisCall) and each.event in ("call", "start") and each.verb != "receive"
        for each in block.step
    )
    assert drawn(case, Wired(one_link=True)).lengths == pytest.approx(sent)
    assert drawn(case, Wired(one_link=False)).lengths.max() < sent
