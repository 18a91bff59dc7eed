"""A loss that is scaled trains as one that is not, and an overflow anywhere skips the step everywhere."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from plans import each_rank, name, on_plan, predicted_calls, predicted_state, train
from training.test_equivalence_products import GPT, MOE

from pscale.config import Matrix, Plan, Precision


def in_float32(case, **precision):
    model = replace(case.model, dtype="float32")
    return replace(case, model=model, precision=Precision(**precision))


@pytest.mark.parametrize(
    ("case", "plan", "clip"),
    [
        (GPT, Plan(dp=2, tp=2, sp=True), None),
        (MOE, Plan(ep=2, pp=2, schedule="zero-bubble"), 0.5),
        (GPT, Plan(dp=2, cp=2, zero=3, checkpoint="full"), None),
    ],
    ids=name,
)
def test_a_power_of_two_changes_no_bit_of_what_float32_learns(case, plan, clip, folder):
    case = replace(case, train=replace(case.train, steps=10, clip=clip, micro_batches=plan.pp))
    plain = train(in_float32(case), plan, folder)
    scaled = in_float32(case, loss_scale="dynamic", initial_scale=2.0**10, growth_interval=3)
    run = train(scaled, plan, folder)
    np.testing.assert_array_equal(run.losses, plain.losses)
    for (kind, *of), value in run.tensors.items():
        expected = plain.tensors[kind, *of]
        np.testing.assert_array_equal(value, expected * (2.0**10 if kind == "gradients" else 1))
    assert run.counted == predicted_calls(scaled, plan)
    assert run.memory == predicted_state(scaled, plan)


PLANS = [
    Plan(dp=2, reduction="gather-broadcast"),
    Plan(dp=2, tp=2),
    Plan(tp=2, pp=2, sp=True),
    Plan(cp=2, pp=2, schedule="interleaved", virtual_stages=2),
    Plan(dp=2, ep=2),
    Plan(dp=2, zero=1, tp=2, offload="optimizer", offload_chunk_bytes=2048),
    Plan(dp=3, zero=2),
    Plan(dp=4, zero=3, shard=2),
    Plan(matrix=Matrix(tx=2, ty=2, algorithm="summa")),
]


@pytest.mark.parametrize(("plan", "clip"), [*zip(PLANS, cycle([0.5, None]))], ids=name)
def test_what_overflows_on_one_rank_skips_the_step_on_all(plan, clip, folder):
    case = in_float32(MOE if plan.ep > 1 else GPT, loss_scale="dynamic", initial_scale=64.0)
    case = replace(case, train=replace(case.train, batch=24, clip=clip, micro_batches=2))

    def steps(trainer, mesh):
        overflowing, replicas = False, trainer.replicas
        ready = replicas.ready

        def spoilt(unit, *, last):
            if overflowing and mesh.world.rank == plan.ranks - 1:
                trainer.stage.units[unit].layer.params[-1].grad.flat[-1] = np.inf
            ready(unit, last=last)

        replicas.ready = spoilt
        weights = []
        for step in range(3):
            overflowing = step == 1
            trainer.step(step)
            weights.append(np.concatenate([value.ravel().copy() for _, value in replicas.weights()]))
        return weights, trainer.loss_scaling.columns(3)

    for (first, skipped, last), columns in each_rank(case, plan, folder, steps):
        assert np.array_equal(first, skipped)
        assert np.isfinite(last).all()
        assert not np.array_equal(first, last)
        assert columns == {"loss_scales": [64.0, 64.0, 32.0], "skipped_steps": [1]}


def test_without_a_scale_nobody_looks(folder):
    case = on_plan(in_float32(replace(GPT, train=replace(GPT.train, clip=None))), Plan())
    assert not case.asks_for_norm
    (columns,) = each_rank(case, Plan(), folder, lambda trainer, _: trainer.loss_scaling.columns(1))
    assert columns == {"loss_scales": None, "skipped_steps": None}
