"""Blocks of other kinds than GPT-2's are the serial run under every plan, and call what is predicted."""

from dataclasses import replace

import numpy as np
import pytest
from plans import TEXT, assert_is_serial, each_rank, multiplied, name, on_plan

from pscale.config import Data, Matrix, Plan
from pscale.nn.buffers import Buffers
from pscale.nn.common_layers import Draws, Dropout
from pscale.parallel.recompute import executed_flops

pytestmark = pytest.mark.slow

MODELS = {
    "llama": {
        "norm": "rmsnorm",
        "bias": False,
        "mlp": "swiglu",
        "mlp_width": 24,
        "positions": "rope",
        "kv_heads": 2,
        "rope_base": 100.0,
    },
    "gated": {"norm": "rmsnorm", "mlp": "swiglu", "positions": "rope"},
    "bare": {"bias": False, "mlp_width": 48, "attention": "block"},
    "dropped": {"dropout": 0.2, "kv_heads": 2},
}
CASES = {
    key: replace(
        TEXT,
        model=replace(TEXT.model, width=24, sequence=12, vocabulary=24, **fields),
        data=Data(kind="synthetic"),
        train=replace(TEXT.train, batch=24, micro_batches=2, steps=4),
    )
    for key, fields in MODELS.items()
}
TIED = {"tied": replace(CASES["llama"], model=replace(CASES["llama"].model, tied=True, vocabulary=25))}
MIXTURES = {
    key: replace(case, model=replace(case.model, kind="moe", experts=4, top_k=2))
    for key, case in CASES.items()
}
PLANS = [
    Plan(dp=2, zero=3),
    Plan(tp=2),
    Plan(tp=2, sp=True, dp=2, zero=1, checkpoint="full"),
    Plan(pp=2, schedule="zero-bubble", tp=2),
    Plan(cp=2, context="ring", tp=2, sp=True),
    Plan(cp=2, context="ulysses", zero=2, dp=2, checkpoint="selective"),
    Plan(cp=2, context="all-gather", pp=2, schedule="gpipe"),
    Plan(cp=4, context="unified", ulysses=2),
    Plan(matrix=Matrix(tx=2, ty=2, algorithm="cannon")),
    Plan(matrix=Matrix(tx=3, ty=2, algorithm="summa")),
    Plan(matrix=Matrix(tx=2, ty=2, tz=2, algorithm="agarwal"), checkpoint="full"),
    Plan(matrix=Matrix(tx=2, ty=1, tz=2, algorithm="axonn"), dp=2, zero=3),
]
RUNS = [
    *(("llama", plan) for plan in PLANS),
    *(("gated", plan) for plan in (PLANS[2], *PLANS[8:])),
    *(("bare", plan) for plan in (PLANS[2], *PLANS[8:])),
    *(("dropped", plan) for plan in PLANS),
]
MOE = [Plan(ep=2, tp=2), Plan(ep=2, cp=2, zero=3, checkpoint="full"), Plan(ep=2, pp=2, tp=2, sp=True)]


@pytest.mark.parametrize(("key", "plan"), RUNS, ids=name)
def test_every_plan_is_the_serial_run_and_calls_what_is_predicted(key, plan, folder):
    assert_is_serial(CASES[key], plan, folder)


def test_every_step_and_seed_and_sequence_drops_other_features():
    masks = [_dropped(*place) for place in ((1, 0, 0), (1, 1, 0), (1, 0, 1), (2, 0, 0))]
    for number, mask in enumerate(masks):
        assert 0.15 < mask.mean() < 0.25
        for other in masks[:number]:
            assert 0.25 < (mask != other).mean() < 0.4  # as of independent draws: 2 x 0.2 x 0.8


def _dropped(seed, step, first):
    layer = Dropout(0.2, 5, Draws(seed=seed, step=step, first=first), runs=[slice(0, 40)], buffers=Buffers())
    return layer.forward(np.ones((1, 40, 50)))[0] == 0


ENDS = [
    Plan(),
    Plan(dp=2, tp=2, sp=True, bucket_bytes=4096),
    Plan(pp=2, dp=2),
    Plan(pp=2, tp=2, schedule="zero-bubble", reduction="gather-broadcast", dp=2),
    Plan(dp=2, zero=1, cp=2, offload="optimizer"),
    Plan(pp=2, dp=3, zero=2),
    Plan(pp=2, dp=2, zero=3, tp=2, sp=True),
    Plan(dp=4, shard=2, zero=3),
    Plan(tp=2, embedding="column", dp=2, zero=1),
    Plan(tp=2, embedding="column", sp=True, cp=2),
    Plan(tp=2, embedding="column", sp=True, pp=2, checkpoint="full"),
    Plan(matrix=Matrix(tx=2, ty=2, algorithm="cannon"), pp=2),
    Plan(matrix=Matrix(tx=3, ty=2, algorithm="summa"), dp=2, zero=3),
    Plan(matrix=Matrix(tx=2, ty=2, tz=2, algorithm="agarwal")),
    Plan(matrix=Matrix(tx=2, ty=1, tz=2, algorithm="axonn"), dp=2, zero=2),
    Plan(matrix=Matrix(ty=2, tz=2, algorithm="axonn"), pp=2),
]


@pytest.mark.parametrize("plan", ENDS, ids=name)
@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_gradients_of_both_ends_of_a_tied_table_meet(plan, optimizer, folder):
    case = replace(TIED["tied"], train=replace(TIED["tied"].train, optimizer=optimizer))
    if plan.matrix.ranks > 1:
        case = replace(case, model=replace(case.model, vocabulary=24))
    assert_is_serial(case, plan, folder)

    def copies(trainer, _):
        trainer.step(0)
        return [value.copy() for param, value in trainer.replicas.weights() if param.tied]

    if plan.tp * plan.matrix.ranks == 1:
        tables = [table for rank in each_rank(case, plan, folder, copies) for table in rank]
        assert len(tables) >= 2
        for table in tables[1:]:
            np.testing.assert_array_equal(table, tables[0])


def test_a_tied_table_has_the_gradients_of_the_embedding_and_of_the_head(folder):
    def ends(trainer):
        named = {param.name: param for unit in trainer.stage.units for param in unit.layer.params}
        return named["token"], named["head.weight"]

    def apart(trainer, _):
        table, head = ends(trainer)
        head.data[...] = table.data.T
        trainer.forward_backward(0)
        return trainer.losses[0], table.grad + head.grad.T

    def tied(trainer, _):
        trainer.forward_backward(0)
        return trainer.losses[0], next(grad for param, grad in trainer.replicas.gradients() if param.tied)

    case = TIED["tied"]
    [(loss, expected)] = each_rank(
        replace(case, model=replace(case.model, tied=False)), Plan(), folder, apart
    )
    [(same, found)] = each_rank(case, Plan(), folder, tied)
    assert same == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("plan", [Plan(tp=2), Plan(cp=2, tp=2), Plan(cp=2, context="all-gather")], ids=name)
@pytest.mark.parametrize("key", ["llama", "dropped"])
def test_several_queries_of_a_key_go_with_scores_that_are_computed_again(key, plan, folder):
    model = replace(CASES[key].model, attention="block")
    assert_is_serial(replace(CASES[key], model=model), plan, folder)


@pytest.mark.parametrize("key", MIXTURES)
@pytest.mark.parametrize("plan", MOE, ids=name)
def test_experts_are_of_the_same_kind(key, plan, folder):
    assert_is_serial(MIXTURES[key], plan, folder)


@pytest.mark.parametrize("plan", [Plan(tp=2), PLANS[2], PLANS[5], PLANS[10]], ids=name)
def test_the_ranks_together_multiply_what_is_predicted(plan, folder):
    case = on_plan(CASES["llama"], plan)
    assert multiplied(case, plan, folder) == executed_flops(case)
