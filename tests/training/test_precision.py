"""Numbers of 16 bits: stored and sent so, computed with in float32, on many ranks what one computes."""

from dataclasses import replace

import numpy as np
import pytest
from nn.test_kernels import fused_kernels
from plans import (
    TEXT,
    each_rank,
    largest_difference,
    name,
    on_plan,
    predicted_calls,
    predicted_state,
    serial,
    train,
)
from training.test_memory import held, planned, predicted

from pscale.config import Matrix, Model, Plan, Precision
from pscale.config.training import ROUNDOFF
from pscale.mesh.alone import SelfMesh
from pscale.nn import kernels
from pscale.nn.dtypes import dtype_of, tolerance
from pscale.nn.kernels.sixteen_bit import HalfFusedKernels, HalfKernels
from pscale.nn.routing import RouterStats
from pscale.worker.routing_replay import RoutingRecord, RoutingReplay
from pscale.worker.verify import on_one_rank

pytestmark = pytest.mark.slow

SMALL = replace(
    TEXT,
    model=Model(layers=2, width=16, heads=4, sequence=16, dtype="bf16"),
    # Adam would blow up what is but rounding to a step, as in the bias of the keys.
    train=replace(TEXT.train, batch=8, steps=2, micro_batches=2, optimizer="sgd", lr=0.1),
)


@pytest.fixture(autouse=True)
def _narrow():
    before = kernels.current()
    kernels.use(HalfKernels())
    yield
    kernels.use(before)


PLANS = [
    ("bf16", Plan(dp=2, reduction="gather-broadcast")),
    ("fp16", Plan(dp=2, tp=2)),
    ("bf16", Plan(tp=2, pp=2, sp=True, embedding="column")),
    ("bf16", Plan(cp=2, zero=1)),
    ("fp16", Plan(cp=2, pp=2, context="all-gather", schedule="zero-bubble")),
    ("bf16", Plan(cp=2, tp=2, context="ulysses", checkpoint="selective")),
    ("bf16", Plan(dp=2, zero=2, pp=2, schedule="interleaved", virtual_stages=2)),
    ("fp16", Plan(dp=4, zero=3, shard=2, checkpoint="full")),
    ("bf16", Plan(dp=2, zero=1, offload="activations")),
    ("bf16", Plan(matrix=Matrix(tx=2, ty=2, algorithm="summa"))),
    ("fp16", Plan(matrix=Matrix(tx=2, ty=2, algorithm="cannon"))),
    ("bf16", Plan(matrix=Matrix(tx=2, tz=2, algorithm="agarwal"))),
    ("fp16", Plan(matrix=Matrix(ty=2, tz=2, algorithm="axonn"), zero=1)),
]


def in_(dtype, **precision):
    model = replace(SMALL.model, dtype=dtype)
    return replace(SMALL, model=model, precision=Precision(initial_scale=256.0, **precision))


@pytest.mark.parametrize(("dtype", "plan"), PLANS, ids=name)
def test_plans_compute_what_one_rank_does_but_for_some_roundings_and_call_and_hold_what_was_predicted(
    dtype, plan, folder
):
    case = in_(dtype)
    run, expected = train(case, plan, folder), serial(case, folder)
    assert largest_difference(run.tensors, expected.tensors) <= tolerance(dtype)
    assert run.losses == pytest.approx(expected.losses, rel=tolerance(dtype))
    assert run.spread == 0
    assert run.counted == predicted_calls(case, plan)
    assert run.memory == predicted_state(case, plan)


ROUTED = [
    ("bf16", 2, Plan(ep=2, pp=2, zero=1)),
    ("fp16", 1, Plan(tp=2, dp=2)),
    ("bf16", 2, Plan(tp=2, ep=2, checkpoint="full")),
    ("fp16", 2, Plan(tp=2, sp=True, zero=2)),
    ("bf16", 1, Plan(cp=2, ep=2, context="ulysses")),
    ("bf16", 2, Plan(cp=2, pp=2, schedule="zero-bubble")),
    ("fp16", 2, Plan(cp=2, tp=2, sp=True, dp=2, zero=3)),
]


def routed(dtype, top_k=2):
    case = in_(dtype)
    model = replace(case.model, kind="moe", experts=4, top_k=top_k, capacity_factor=0.75, every=1)
    return replace(case, model=model)


def noted(case, plan, folder):
    """Return the run of a plan, and what the routers of its ranks have noted."""
    notings = []

    def note(case, mesh):
        notings.append(RoutingRecord(case, mesh))
        return notings[-1]

    return train(case, plan, folder, routing=note), notings


def followed(noting, case, folder):
    """Return the serial run by the choices that were noted, and how far these are from its own."""
    followings = []

    def follow(case, mesh):
        followings.append(RoutingReplay(noting, case, mesh))
        return followings[-1]

    whole = on_plan(on_one_rank(case), Plan(), micro_batches=1)
    return train(whole, whole.plan, folder, routing=follow), dict(followings[0].errors())


def gradients(run):
    """Return those of the first step: the choices of later ones are not followed."""
    return {name: whole for name, whole in run.tensors.items() if name[0] == "gradients"}


def test_routers_show_their_choices_no_more_after_a_step_that_failed():
    stats = RouterStats(block=0, loads=np.zeros(4, np.int64))
    noting = RoutingRecord(on_one_rank(routed("bf16")), SelfMesh())
    with pytest.raises(ArithmeticError), noting([stats]):
        raise ArithmeticError
    assert stats.review is None


@pytest.mark.parametrize(("dtype", "top_k", "plan"), ROUTED, ids=name)
def test_so_do_plans_with_experts_that_choose_the_same_and_no_choice_is_worse_than_rounding_makes_it(
    dtype, top_k, plan, folder
):
    case = routed(dtype, top_k)
    run, notings = noted(case, plan, folder)
    assert all(np.array_equal(noting.experts, notings[0].experts) for noting in notings)
    expected, errors = followed(notings[0], case, folder)
    assert errors.keys() == {"block.0", "block.1"}
    assert max(errors.values()) <= tolerance(dtype)
    assert largest_difference(gradients(run), gradients(expected)) <= tolerance(dtype)
    assert run.losses[0] == pytest.approx(expected.losses[0], rel=tolerance(dtype))
    assert run.spread == 0
    assert run.counted == predicted_calls(case, plan)
    assert run.memory == predicted_state(case, plan)


def test_tokens_that_a_plan_sends_to_other_experts_than_the_best_are_found(folder):
    case = routed("bf16")
    _, (noting,) = noted(case, Plan(), folder)
    same, errors = followed(noting, case, folder)
    assert set(errors.values()) == {0}
    noting.experts[1, -1] ^= 1  # of the last sequence, in the last block
    run, errors = followed(noting, case, folder)
    assert errors["block.0"] == 0
    assert errors["block.1"] > tolerance("bf16")
    assert largest_difference(gradients(run), gradients(same)) > tolerance("bf16")


@pytest.mark.parametrize("plan", [PLANS[0][1], PLANS[1][1]], ids=name)
def test_a_sum_that_is_left_out_is_found(plan, folder):
    def forget(trainer):
        for group in trainer.replicas._groups:
            group.reduction.finish = lambda: None
            group.reduction.ready = lambda _: None
        return trainer

    run, expected = train(in_("bf16"), plan, folder, forget), serial(in_("bf16"), folder)
    assert largest_difference(run.tensors, expected.tensors) > 3 * tolerance("bf16")


@pytest.mark.parametrize(
    "plan",
    [Plan(dp=2), Plan(dp=2, zero=1, tp=2, sp=True), Plan(dp=2, zero=2), Plan(dp=4, zero=3, shard=2)],
    ids=name,
)
def test_sums_in_float32_are_sent_so_and_counted(plan, folder):
    wire, widened = in_("bf16"), in_("bf16", reduce="float32")
    run = train(widened, plan, folder)
    assert run.counted == predicted_calls(widened, plan)
    assert run.memory == predicted_state(widened, plan)
    assert largest_difference(run.tensors, serial(wire, folder).tensors) <= tolerance("bf16")
    of_gradients = "reduce_scatter" if plan.zero else "all_reduce"
    largest = [
        max(size for _, verb, size in calls[0] if verb == of_gradients)
        for calls in (run.counted, predicted_calls(wire, plan))
    ]
    assert largest[0] == 2 * largest[1]


@pytest.mark.parametrize(
    ("plan", "attention"),
    [
        (Plan(), "plain"),
        (Plan(tp=2, cp=2, zero=2), "plain"),
        (Plan(cp=2, context="ulysses"), "block"),
        (Plan(ep=2), "plain"),
    ],
    ids=name,
)
def test_a_number_takes_two_bytes_and_all_that_is_held_is_predicted(plan, attention, folder):
    wide = planned(plan)
    wide = replace(wide, model=replace(wide.model, layers=2, sequence=48, attention=attention))
    case = replace(wide, model=replace(wide.model, dtype="bf16"))
    found = each_rank(case, plan, folder, held)
    assert found == [predicted(case, rank) for rank in range(plan.ranks)]
    for kind, share in (("parameters", 1 / 2), ("gradients", 1 / 2), ("optimizer", 3 / 2)):
        assert found[0][kind] == share * predicted(wide, 0)[kind]
    assert 0.5 < found[0]["activations"] / predicted(wide, 0)["activations"] < 0.7


@pytest.mark.parametrize("plan", [plan for _, plan in PLANS if plan.matrix.ranks > 1], ids=name)
def test_so_is_what_a_rank_of_a_grid_holds(plan, folder):
    case = in_("bf16")
    case = on_plan(replace(case, train=replace(case.train, steps=3)), plan)
    assert each_rank(case, plan, folder, held) == [predicted(case, rank) for rank in range(plan.ranks)]


@pytest.mark.parametrize("computing", ["numpy", "fused"])
@pytest.mark.parametrize("attention", ["plain", "block"])
def test_one_rank_computes_what_float64_does_but_for_some_roundings(computing, attention, folder):
    if computing == "fused":
        fused = fused_kernels(1)
        kernels.use(HalfFusedKernels(fused.library, 1))
    case = replace(
        SMALL, model=replace(SMALL.model, attention=attention), train=replace(SMALL.train, steps=1)
    )
    exact = replace(case, model=replace(case.model, dtype="float64"))
    run, expected = (train(each, Plan(), folder) for each in (case, exact))
    assert largest_difference(run.tensors, expected.tensors) <= tolerance("bf16")
    assert run.losses == pytest.approx(expected.losses, rel=tolerance("bf16"))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_product_is_that_of_float32_rounded_once(dtype):
    a, b = (np.random.default_rng(3).normal(size=(600, 600)).astype(dtype_of(dtype)) for _ in range(2))
    for x, y in ((a, b), (a.T, b), (a, b.T), (a[0], b), (a.reshape(2, 300, 600), b.reshape(2, 600, 300))):
        exact = np.matmul(x.astype(np.float32), y.astype(np.float32))
        out = np.empty(exact.shape, dtype_of(dtype))
        HalfKernels().multiply(x, y, out)
        rounded = exact.astype(out.dtype).astype(np.float32)
        # The BLAS may add up rows of a tile in another order: of sums that differ by that, 3 in 1,000 are
        # rounded to another number of 16 bits, of those with a half that was rounded before, one in four.
        apart = out.astype(np.float32) != rounded
        assert np.count_nonzero(apart) < 5e-3 * out.size
        np.testing.assert_allclose(out.astype(np.float32), rounded, rtol=2 * ROUNDOFF[dtype], atol=1e-4)


@pytest.mark.parametrize("plan", [Plan(), Plan(dp=2, reduction="all-reduce"), Plan(dp=2, zero=3)], ids=name)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_gradients_of_many_micro_batches_are_as_exact_as_those_of_one_where_they_add_up_in_float32(
    dtype, plan, folder
):
    def gradients(of, plan=plan, micro_batches=1):
        def one(trainer, _):
            trainer.forward_backward(0)
            values = trainer.replicas.gradients()
            return np.concatenate([value.astype(float).ravel() for _, value in values])

        large = replace(of, train=replace(of.train, batch=64))
        return each_rank(on_plan(large, plan, micro_batches), plan, folder, one)[0]

    exact = gradients(replace(SMALL, model=replace(SMALL.model, dtype="float64")), Plan())

    def error(reduce, micro_batches):
        narrow = in_(dtype, reduce=reduce, loss_scale="none")
        return np.linalg.norm(gradients(narrow, micro_batches=micro_batches) - exact) / np.linalg.norm(exact)

    assert error("float32", 32) <= error("float32", 1)
    assert error("float32", 32) < 0.8 * error("wire", 32)
