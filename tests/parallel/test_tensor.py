import numpy as np
import pytest
from nn.differences import hand
from thread_mesh import run_ranks

from pscale.config import Case, Model, Plan, Train
from pscale.mesh.dry import DryMesh
from pscale.nn.buffers import Buffers
from pscale.nn.loss import CrossEntropy
from pscale.nn.param import share
from pscale.parallel.matrix.grid import Partition, cut
from pscale.parallel.strategies import check
from pscale.parallel.tensor import ParallelCrossEntropy


def case_of(plan, **sizes):
    model = Model(**{"heads": 6, "width": 24, "sequence": 16, **sizes})
    return Case(suite="s", label="l", ranks=plan.ranks, plan=plan, model=model, train=Train(batch=8))


@pytest.mark.parametrize("plan", [Plan(sp=True), Plan(dp=2, sp=True), Plan(embedding="column")])
def test_choices_of_the_tensor_axis_mean_nothing_where_there_is_none(plan):
    check(case_of(plan, sequence=17))


def test_q_k_and_v_are_cut_each_for_itself():
    whole = np.arange(2 * 12).reshape(2, 12)  # two heads of width 2 in each of q, k, v

    part, shape = cut(whole.shape, Partition(columns=("tp",)), DryMesh({"tp": 2}, 1, print), groups=3)
    np.testing.assert_array_equal(part.take(whole).reshape(shape)[0], [2, 3, 6, 7, 10, 11])


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_the_loss_of_logits_that_are_cut_is_that_of_the_whole(ranks):
    random = np.random.default_rng(3)
    logits, targets = 30 * random.normal(size=(2, 4, 7)) + 1e3, random.integers(0, 7, (2, 4), np.uint8)
    expected, gradient = CrossEntropy().forward(logits.copy(), targets, 0.2)

    def one(mesh):
        axis, buffers = mesh.axis("tp"), Buffers()
        mine = share(7, axis.size, axis.rank)
        loss = ParallelCrossEntropy(axis, first=mine.start, buffers=buffers)
        return loss.forward(hand(logits[..., mine], buffers), targets, 0.2)

    values, parts = zip(*run_ranks({"tp": ranks}, one), strict=True)
    assert values == pytest.approx([expected] * ranks, rel=1e-14)
    np.testing.assert_allclose(np.concatenate(parts, axis=-1), gradient, rtol=1e-12, atol=1e-14)
