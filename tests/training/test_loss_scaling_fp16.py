"""What a scaled loss is for: numbers of 16 bits whose range is narrow."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from plans import TEXT, each_rank, name

from pscale.config import Model, Plan, Precision
from pscale.nn import counts, kernels
from pscale.nn.kernels.sixteen_bit import HalfKernels
from pscale.training.prediction import memory_bytes

pytestmark = pytest.mark.slow

CASE = replace(
    TEXT,
    model=Model(layers=2, width=24, heads=4, sequence=24),
    train=replace(TEXT.train, batch=8, lr=3e-3, clip=1.0),
)


@pytest.fixture(autouse=True)
def _narrow():
    before = kernels.current()
    kernels.use(HalfKernels())
    yield
    kernels.use(before)


def of(dtype, steps, **precision):
    model, train = replace(CASE.model, dtype=dtype), replace(CASE.train, steps=steps)
    return replace(CASE, model=model, train=train, precision=Precision(**precision))


def test_small_gradients_are_lost_in_fp16_and_kept_at_a_scale(folder):
    """A mean over 16,384 times as many tokens has gradients as many times smaller."""

    def gradients(trainer, _):
        trainer = replace(trainer, target_weight=trainer.target_weight / 2**14)
        trainer.forward_backward(0)
        return {
            (param.layer, param.name): value.astype(float) / trainer.loss_scaling.value
            for param, value in trainer.replicas.gradients()
        }

    def found(dtype, scale):
        (tensors,) = each_rank(of(dtype, 1, loss_scale=scale), Plan(), folder, gradients)
        return tensors

    exact, plain, scaled = (found(*how) for how in (("float32", "none"), ("fp16", "none"), ("fp16", 2.0**22)))
    for which, expected in exact.items():
        size = np.linalg.norm(expected)
        assert np.linalg.norm(plain[which] - expected) > 0.1 * size
        assert np.linalg.norm(scaled[which] - expected) < 0.01 * size
    lost = sum(np.count_nonzero(plain[which] == 0) for which in exact) / sum(x.size for x in exact.values())
    assert lost > 0.5


def losses(trainer, mesh):
    for step in range(trainer.train.steps):
        trainer.step(step)
    found = trainer.losses[: trainer.train.steps].copy()
    mesh.world.all_reduce(found)
    return found, trainer.loss_scaling.columns(trainer.train.steps)


def test_fp16_with_a_scale_learns_as_float32_does(folder):
    steps = 32
    ((expected, _),) = each_rank(of("float32", steps), Plan(), folder, losses)
    for found, columns in each_rank(of("fp16", steps, initial_scale=2.0**12), Plan(), folder, losses):
        assert columns["skipped_steps"] == []
        assert np.abs(found / expected - 1).max() < 0.01
    assert expected[-1] < 0.7 * expected[0]


@pytest.mark.parametrize("plan", [Plan(dp=2, tp=2), Plan(pp=2, dp=2, zero=2)], ids=name)
def test_a_scale_that_is_too_large_backs_off_until_gradients_fit_the_same_on_all_ranks(plan, folder):
    case = of("fp16", 10, initial_scale=2.0**24)
    ranks = each_rank(replace(case, train=replace(case.train, micro_batches=2)), plan, folder, losses)
    (found, columns), *others = ranks
    assert all(other == columns for _, other in others)
    skipped, scales = columns["skipped_steps"], columns["loss_scales"]
    assert 2 < len(skipped) < 10
    for step, (before, after) in enumerate(pairwise(scales)):
        assert after == (before / 2 if step in skipped else before)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[: len(skipped) + 1], found[0], rtol=0.1)  # other samples, same weights


@pytest.mark.parametrize(("zero", "whole", "shared"), [(0, 16, 0), (1, 4, 12), (2, 2, 14), (3, 0, 16)])
def test_weights_gradients_copies_and_moments_are_those_of_the_zero_paper(zero, whole, shared):
    case = replace(of("fp16", 1), ranks=4, plan=Plan(dp=4, zero=zero))
    held = memory_bytes(case, 0)
    found = sum(held[kind] for kind in ("parameters", "gradients", "optimizer"))
    expected = (whole + shared / 4) * counts.parameters(case.model)
    assert found == pytest.approx(expected, rel=2e-3)  # shards differ by a few elements
