from dataclasses import replace

import numpy as np
import pytest
from thread_mesh import run_ranks
from training.test_equivalence import MOE

from pscale.config import Model, Plan
from pscale.data import prepare
from pscale.mesh.alone import SelfMesh, alone
from pscale.nn.routing import RouterStats
from pscale.training.step_records import ExpertLoad
from pscale.worker.job import make_trainer
from pscale.worker.recorder import Recorder

MODEL = Model(kind="moe", layers=4, experts=2)


def test_shares_are_of_all_choices_and_imbalance_is_a_mean_over_steps_and_blocks():
    routers = [RouterStats(block=block, loads=np.zeros(2, np.int64)) for block in (1, 3)]
    kept = ExpertLoad(routers, MODEL, steps=3)
    for step, loads in enumerate([[(9, 9), (9, 9)], [(4, 4), (6, 2)], [(8, 0), (4, 4)]]):
        for stats, load in zip(routers, loads, strict=True):
            stats.loads += load
            stats.dropped, stats.loss = step, 0.5
        assert kept.note(step) == 1.0
    columns = kept.columns(alone("world"), range(1, 3))
    assert columns["dropped_share"] == (1 + 1 + 2 + 2) / 32
    assert columns["expert_imbalance"] == pytest.approx((1 + 1.5 + 2 + 1) / 4)


def test_a_model_without_experts_has_no_such_figures():
    kept = ExpertLoad((), replace(MODEL, kind="gpt"), steps=2)
    assert kept.note(0) == 0
    assert kept.columns(alone("world"), range(2)) == {"dropped_share": None, "expert_imbalance": None}


@pytest.mark.parametrize("plan", [Plan(ep=2, dp=2), Plan(dp=4)], ids=["ep 2 x dp 2", "dp 4"])
def test_figures_do_not_depend_on_the_plan(plan, tmp_path):
    case = replace(MOE, model=replace(MOE.model, capacity_factor=0.9))

    def one(mesh):
        batches = prepare(case.data, case.model, case.train, mesh, tmp_path)
        trainer = make_trainer(case, mesh, batches, Recorder([]))
        trainer.step(0)
        batches.close()
        return trainer.expert_load.columns(mesh.world, range(1))

    expected = one(SelfMesh())
    case = replace(case, ranks=plan.ranks, plan=plan)
    assert run_ranks(plan.sizes, one) == [expected] * plan.ranks
    assert 0.1 < expected["dropped_share"] < 0.9
    assert expected["expert_imbalance"] > 1
