import numpy as np
import pytest
from nn.differences import hand
from thread_mesh import run_ranks

from pscale.config import Case, Model, Plan, Train
from pscale.errors import PlanError
from pscale.nn.buffers import Buffers
from pscale.nn.loss import CrossEntropy
from pscale.nn.param import share
from pscale.parallel import tensor
from pscale.parallel.strategies import check
from pscale.parallel.tensor import ParallelCrossEntropy


def case_of(plan, **sizes):
    model = Model(**{"heads": 6, "width": 24, "sequence": 16, **sizes})
    return Case(suite="s", label="l", ranks=plan.ranks, plan=plan, model=model, train=Train(batch=8))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (case_of(Plan(tp=4)), ["heads 6", "tp 4", "tp 1 or 2 with dp rest", "heads 4"]),
        (case_of(Plan(tp=6), kv_heads=2), ["kv_heads 2", "tp 6", "tp 1 or 2", "kv_heads 6"]),
        (case_of(Plan(tp=3), mlp_width=32), ["mlp_width 32", "tp 3", "tp 1 with", "mlp_width 30 or 33"]),
        (case_of(Plan(tp=3), kind="linear"), ["tp 3", "linear", "tp 1"]),
        (case_of(Plan(tp=6), vocabulary=5), ["vocabulary 5", "tp 6", "tp 1, 2 or 3"]),
        (case_of(Plan(tp=3, sp=True)), ["sequence 16", "tp 3", "15 or 18"]),
        (case_of(Plan(tp=3, cp=2, sp=True)), ["sequence 16", "tp 3 × cp 2", "12 or 24"]),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_the_values_that_would_work(case, words):
    with pytest.raises(PlanError) as caught:
        check(case)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize("plan", [Plan(sp=True), Plan(dp=2, sp=True), Plan(embedding="column")])
def test_choices_of_the_tensor_axis_mean_nothing_where_there_is_none(plan):
    check(case_of(plan, sequence=17))


def test_q_k_and_v_are_cut_each_for_itself():
    whole = np.arange(2 * 12).reshape(2, 12)  # two heads of width 2 in each of q, k, v

    class Second:
        size, rank = 2, 1

    part, shape = tensor.cut(whole.shape, 1, Second, groups=3)
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
