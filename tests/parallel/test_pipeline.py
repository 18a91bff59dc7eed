from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from thread_mesh import run_ranks

from pscale.config import Case, Model, Plan, Train
from pscale.mesh.grid import coordinates
from pscale.nn import counts
from pscale.nn.buffers import Buffers
from pscale.parallel.pipeline import Boundary, activation_shape, partition, stage_units, timetable
from pscale.training.build import build
from pscale.training.dry_run import step_calls
from pscale.training.prediction import predict


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_no_cut_has_a_cheaper_heaviest_part_or_is_as_cheap_and_more_even(parts):
    random = np.random.default_rng(3)
    for _ in range(20):
        costs = random.integers(0, 9, 7).tolist()

        def loads(cuts, costs=costs):
            edges = (0, *cuts, len(costs))
            return [sum(costs[start:stop]) for start, stop in pairwise(edges)]

        def rank(loads):
            return max(loads), sum(load**2 for load in loads)

        found = partition(costs, parts)
        assert [unit for part in found for unit in part] == list(range(len(costs)))
        assert all(found)
        best = min(rank(loads(cuts)) for cuts in combinations(range(1, len(costs)), parts - 1))
        assert rank([sum(costs[unit] for unit in part) for part in found]) == best


def test_three_layers_on_two_stages_leave_the_head_to_the_one_with_fewer():
    model = Model(layers=3, width=16, heads=2, sequence=8, vocabulary=64)
    plan = Plan(pp=2)
    assert stage_units(model, plan, 0) == {0: range(3)}
    assert stage_units(model, plan, 1) == {1: range(3, 5)}


def test_chunk_c_of_stage_r_is_part_c_stages_plus_r():
    model, plan = Model(layers=8), Plan(pp=2, schedule="interleaved", virtual_stages=4)
    held = [stage_units(model, plan, stage) for stage in range(2)]
    assert [list(parts) for parts in held] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    in_order = [unit for part in range(8) for unit in held[part % 2][part]]
    assert in_order == list(range(10))


@pytest.mark.parametrize("plan", [Plan(pp=4, dp=2), Plan(pp=2, schedule="interleaved", virtual_stages=2)])
def test_a_stage_builds_its_own_units_and_no_others(plan):
    model = Model(layers=5, width=16, heads=2, sequence=8, vocabulary=19)
    case = Case(
        suite="s", label="l", ranks=plan.ranks, plan=plan, model=model, train=Train(batch=8, micro_batches=2)
    )
    stages = run_ranks(plan.sizes, lambda mesh: build(model, plan, mesh))
    names = [name for name, _ in counts.unit_parameters(model)]
    for rank, stage in enumerate(stages):
        parts = stage_units(model, plan, coordinates(plan.sizes, rank)["pp"]).values()
        assert [unit.name for unit in stage.units] == [names[unit] for part in parts for unit in part]
        assert [unit for part in stage.parts.values() for unit in part] == list(range(len(stage.units)))
        size = sum(param.size for unit in stage.units for param in unit.layer.params)
        assert predict(case, rank).memory_bytes["parameters"] == 4 * size
    assert predict(case).parameters == counts.parameters(model)


def test_what_crosses_a_boundary_shrinks_with_the_parts_of_a_sequence():
    model = Model(width=16, sequence=32)
    assert activation_shape(model, Plan(pp=2), 3) == (3, 32, 16)
    assert activation_shape(model, Plan(pp=2, cp=2, tp=4), 3) == (3, 16, 16)
    assert activation_shape(model, Plan(pp=2, cp=2, tp=4, sp=True), 3) == (3, 4, 16)


PLANS = [
    *(Plan(pp=4, schedule=schedule) for schedule in ("gpipe", "1f1b", "zero-bubble")),
    *(Plan(pp=pp, schedule="interleaved", virtual_stages=3) for pp in (2, 4)),
]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_every_message_reaches_the_action_that_needs_it_and_its_memory_is_free_in_the_end(plan):
    table = timetable(plan, micro_batches=8)

    def one(mesh):
        buffers = Buffers()
        edge = Boundary(mesh.axis("pp"), table, (3,), dtype=np.float64, buffers=buffers)
        ahead = 0
        for _ in range(2):
            edge.start_step()
            for action in edge.actions:
                if edge.receives(action):
                    values = edge.receive(action)
                    assert values.tolist() == [action.micro, action.part, len(action.kind)]
                    del values
                    ahead += bool(edge._receiving)
                if edge.sends(action):
                    output = buffers.take((3,), np.float64)
                    output[:] = action.micro, table.target(action).part, len(action.kind)
                    edge.send(action, output)
                    del output
            edge.finish()
            assert buffers.held_bytes == 0
        return ahead

    assert all(ahead > 0 for ahead in run_ranks(plan.sizes, one))


def test_one_stage_sends_nothing():
    case = Case(suite="s", label="l", train=Train(batch=8, micro_batches=4))
    assert step_calls(case, 0) == ()
    assert predict(case).memory_bytes["exchange"] == 0
    two = step_calls(replace(case, ranks=2, plan=Plan(pp=2)), 1)
    assert {call.verb: call.count for call in two} == {"send": 4, "receive": 4, "all_reduce": 1}
