"""What is computed again has the bits of what is kept; it saves and costs what is predicted."""

from dataclasses import replace

import numpy as np
import pytest
from kept_activations import kept_bytes, message_bytes
from plans import TEXT, counted, each_rank, multiplied, name, on_plan, predicted_calls

from pscale.config import Data, Matrix, Model, Plan, Train
from pscale.nn import counts
from pscale.nn.routing import RouterStats
from pscale.parallel.recompute import executed_flops, segments
from pscale.parallel.schedule_timing import pipeline_bubble
from pscale.training.dry_run import scratch_bytes, step_calls
from pscale.training.prediction import memory_bytes, predict
from pscale.worker.verify import assembled, outcome

GPT = replace(
    TEXT,
    model=Model(layers=5, width=12, heads=4, sequence=24, vocabulary=67, dtype="float64"),
    data=Data(kind="synthetic"),
    train=Train(batch=8, steps=2, warmup=0, lr=1e-2, clip=0.5),
)
MIXED = {"kind": "moe", "layers": 3, "experts": 4, "top_k": 2, "capacity_factor": 0.75, "balance_weight": 0.1}
MOE = replace(GPT, model=replace(GPT.model, every=2, **MIXED))
BLOCK = replace(GPT, model=replace(GPT.model, kind="block", layers=1, vocabulary=0))
SP, GATHERED, ULYSSES = {"sp": True}, {"context": "all-gather"}, {"context": "ulysses"}
KEPT = {"zero": 3, "reshard_after_forward": False}
EVEN = replace(GPT, model=replace(GPT.model, vocabulary=66))
PLANS = [
    (BLOCK, 1, "selective", Plan()),
    (GPT, 1, "selective", Plan(tp=2, **SP)),
    (GPT, 1, "selective", Plan(cp=3)),
    (GPT, 1, "selective", Plan(cp=2, **GATHERED)),
    (GPT, 2, "selective", Plan(cp=2, **ULYSSES)),
    (GPT, 1, "full", Plan(tp=2)),
    (GPT, 2, "full", Plan(tp=2, cp=2, **SP)),
    (GPT, 2, "full", Plan(dp=2, zero=3)),
    (MOE, 2, "full", Plan(ep=2, zero=2)),
    (MOE, 1, "full", Plan(tp=2, cp=2, **SP)),
    (GPT, 2, "every-2", Plan(dp=2, zero=3)),
    (GPT, 2, "every-3", Plan(dp=2, **KEPT)),
    (MOE, 1, "every-2", Plan(ep=2, tp=2)),
    (GPT, 4, "every-2", Plan(pp=2, dp=2, zero=3)),
    (GPT, 4, "every-3", Plan(pp=2, dp=2, **KEPT)),
    (GPT, 4, "selective", Plan(pp=2, schedule="interleaved", virtual_stages=2)),
    (GPT, 4, "full", Plan(pp=2, tp=2, schedule="zero-bubble", zero=1)),
    (GPT, 4, "every-2", Plan(pp=2, dp=2, schedule="zero-bubble", zero=3)),
    (EVEN, 1, "selective", Plan(matrix=Matrix(tx=2, ty=2))),
    (EVEN, 2, "every-2", Plan(matrix=Matrix(tx=2, ty=2, algorithm="cannon"))),
    (EVEN, 1, "full", Plan(matrix=Matrix(ty=2, tz=2, algorithm="agarwal"))),
    (EVEN, 4, "every-2", Plan(pp=2, matrix=Matrix(tx=2, algorithm="summa"))),
]


def run(case, plan, folder):
    """Return losses, tensors and loads of experts, and of every rank its calls and the bytes of its pool."""

    def act(trainer, mesh):
        result = outcome(trainer, mesh)
        calls, pool = counted(trainer.recorder, case.train.steps), trainer.stage.buffers.total_bytes
        held = trainer.replicas.memory_bytes()["exchange"] + pool
        return result, calls, held, trainer.expert_load.columns(mesh.world, range(case.train.steps))

    ranks = each_rank(case, plan, folder, act, record=True)
    tensors = {
        (kind, *key): whole
        for kind in ("weights", "gradients")
        for key, whole in assembled([part for rank, *_ in ranks for part in getattr(rank, kind)]).items()
    }
    _, calls, held, _ = zip(*ranks, strict=True)
    return ranks[0][0].losses, tensors, list(calls), held, ranks[0][3]


def predicted_pool(case, rank):
    """Return what `run` counts; what the calls of MPI arrange in is not seen there."""
    kinds = memory_bytes(case, rank)
    return kinds["activations"] + kinds["exchange"] - scratch_bytes(case, rank)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "micro_batches", "checkpoint", "plan"), PLANS, ids=name)
def test_every_bit_is_that_of_activations_that_are_kept(case, micro_batches, checkpoint, plan, folder):
    case = on_plan(case, plan, micro_batches)
    again = replace(plan, checkpoint=checkpoint)
    losses, tensors, *_, routed = run(case, plan, folder)
    found, same, calls, held, routed_again = run(case, again, folder)
    np.testing.assert_array_equal(found, losses)
    for key, kept in tensors.items():
        np.testing.assert_array_equal(same[key], kept, err_msg=str(key))
    assert routed_again == routed
    assert calls == predicted_calls(case, again)
    case = on_plan(case, again)
    slack = micro_batches * message_bytes(case) if plan.pp > 1 else 0  # messages come when they come
    for rank in range(plan.ranks):
        assert abs(held[rank] - predicted_pool(case, rank)) <= slack


@pytest.mark.parametrize(
    ("case", "micro_batches", "checkpoint", "plan"),
    [
        *PLANS[:3],
        PLANS[-4],
        PLANS[-3],
        (MOE, 2, "full", Plan(ep=2)),
        (GPT, 1, "every-2", Plan(cp=2, tp=2, **SP)),
    ],
    ids=name,
)
def test_what_is_multiplied_is_what_was_predicted(case, micro_batches, checkpoint, plan, folder):
    again = replace(plan, checkpoint=checkpoint)
    case = on_plan(case, again, micro_batches)
    assert multiplied(case, again, folder) == executed_flops(case)


def test_a_segment_is_of_so_many_blocks_and_never_of_the_ends():
    names = ["embedding", *(f"block.{number}" for number in range(5)), "head"]

    def cut(checkpoint):
        found = segments(Plan(checkpoint=checkpoint), names, 10)
        return [(segment.units.start - 10, len(segment.units)) for segment in found if segment.recomputed]

    assert cut("none") == cut("selective") == []
    assert cut("full") == [(number, 1) for number in range(1, 6)]
    assert cut("every-2") == [(1, 2), (3, 2), (5, 1)]
    assert cut("every-9") == [(1, 5)]


TALL = replace(
    GPT,
    model=Model(layers=24, width=64, heads=4, sequence=64, vocabulary=8, dtype="float32"),
    train=replace(GPT.train, batch=2, micro_batches=1),
)


@pytest.mark.parametrize("plan", [Plan(), Plan(tp=4), Plan(tp=4, sp=True)], ids=name)
def test_memory_is_that_of_the_literature(plan):
    """Elements of a layer: (4 + 12 / t) s b h + a s^2 b / t, all over t with sp; s b h of a kept input."""
    case = on_plan(TALL, plan)
    model, t, outside = case.model, plan.tp, plan.tp if plan.sp else 1
    sbh = model.sequence * case.train.batch * model.width
    scores = model.heads * case.train.batch * counts.scores_per_head(model.sequence) / t
    layer = 4 * sbh / outside + 12 * sbh / t + scores

    def held(checkpoint):
        return memory_bytes(on_plan(case, replace(plan, checkpoint=checkpoint)), 0)["activations"] / 4

    assert held("none") == pytest.approx(model.layers * layer, rel=0.05)
    assert held("selective") == pytest.approx(model.layers * (layer - scores) + scores, rel=0.05)
    # Beside the layer that is live, gradients: inside the MLP, of its input and output, of gathered tokens.
    live = layer + 4 * sbh / t + 2 * sbh / outside + sbh * plan.sp
    assert held("full") == pytest.approx(model.layers * sbh / outside + live, rel=0.05)
    assert held("every-4") == pytest.approx(model.layers / 4 * sbh / outside + live + 3 * layer, rel=0.05)


def test_full_costs_a_forward_less_the_last_product_and_selective_two_products_of_scores():
    model, batch = TALL.model, TALL.train.batch
    tokens = batch * model.sequence
    scores = batch * model.width * counts.scores_per_head(model.sequence)

    def again(checkpoint):
        return predict(on_plan(TALL, Plan(checkpoint=checkpoint)))

    assert again("selective").recomputed_flops == 24 * 4 * scores
    assert again("full").recomputed_flops == 24 * (16 * tokens * model.width**2 + 4 * scores)
    skipped = 6 * 8 * tokens * model.width**2
    assert again("every-4").recomputed_flops == 24 * (24 * tokens * model.width**2 + 4 * scores) - skipped
    for checkpoint in ("selective", "full", "every-4"):
        prediction = again(checkpoint)
        assert prediction.executed_flops - prediction.recomputed_flops == again("none").executed_flops
        assert prediction.model_flops == again("none").model_flops


def test_a_full_checkpoint_makes_ten_of_twelve_sums_of_tensor_ranks():
    def sums(checkpoint):
        case = on_plan(TALL, Plan(tp=4, checkpoint=checkpoint))
        return sum(call.count for call in step_calls(case, 0) if call.verb == "all_reduce")

    assert sums("full") - sums("none") == 24  # of two a layer in forward, one: the last output is not needed
    assert sums("every-4") - sums("none") == 24 // 4 * 7


def test_stages_keep_the_input_of_a_block_for_each_micro_batch_under_way():
    case = on_plan(TALL, Plan(pp=4, checkpoint="full"), 2)
    assert kept_bytes(case, 1) == 2 * 6 * message_bytes(case)
    assert pipeline_bubble(case) == pytest.approx(pipeline_bubble(on_plan(case, Plan(pp=4), 2)), rel=0.05)


def test_a_router_that_counts_again_is_caught(folder, monkeypatch):
    plan = Plan(ep=2)
    losses, *_ = run(on_plan(MOE, plan), plan, folder)

    count = RouterStats.add

    def never_pause(stats, *decided):
        stats.paused = False
        count(stats, *decided)

    monkeypatch.setattr(RouterStats, "add", never_pause)
    found, *_ = run(on_plan(MOE, plan), replace(plan, checkpoint="full"), folder)
    assert np.abs(found - losses).max() > 1e-3
