"""What ranks hold is what was predicted, for every strategy; ranks are threads."""

from dataclasses import replace

import pytest
from kept_activations import kept_bytes, message_bytes
from plans import BLOCK, LINEAR, TEXT, each_rank, name

from pscale.config import Data, Model, Plan
from pscale.config.metrics import MEMORY_KINDS as KINDS
from pscale.nn import counts
from pscale.training.dry_run import scratch_bytes
from pscale.training.prediction import fullest_rank, memory_bytes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


MODEL = Model(layers=4, width=48, heads=4, sequence=96, vocabulary=67)
MOE = replace(MODEL, kind="moe", experts=4, top_k=2)
LLAMA = {
    "norm": "rmsnorm",
    "bias": False,
    "mlp": "swiglu",
    "mlp_width": 120,
    "positions": "rope",
    "dropout": 0.1,
    "kv_heads": 4,
    "heads": 8,
}

PLANS = [
    Plan(),
    Plan(dp=2, reduction="gather-broadcast"),
    Plan(dp=2, zero=1),
    Plan(dp=3, zero=2),
    Plan(dp=2, zero=3),
    Plan(dp=4, zero=3, shard=2),
    Plan(tp=4),
    Plan(tp=2, embedding="column"),
    Plan(tp=2, sp=True),
    Plan(tp=4, sp=True, embedding="column"),
    Plan(cp=3),
    Plan(cp=4, placement="contiguous"),
    Plan(cp=2, context="ulysses"),
    Plan(cp=4, context="unified", ulysses=2),
    Plan(cp=4, tp=2, sp=True, context="unified", ulysses=2, placement="contiguous"),
    Plan(cp=3, context="all-gather"),
    Plan(tp=2, cp=2),
    Plan(tp=2, cp=2, sp=True, zero=2),
    Plan(dp=2, ep=2, zero=2),
    Plan(ep=4),
    Plan(ep=2, tp=2),
    Plan(ep=2, tp=2, sp=True),
    Plan(ep=2, cp=2, zero=3),
]
STAGES = [
    Plan(pp=2, schedule="gpipe"),
    Plan(pp=4),
    Plan(pp=2, dp=2, zero=2),
    Plan(pp=2, schedule="interleaved", virtual_stages=2),
    Plan(pp=2, schedule="zero-bubble", tp=2),
    Plan(pp=2, cp=2, context="ulysses"),
]


def planned(plan, micro_batches=2):
    train = replace(TEXT.train, batch=3 * plan.batch_parts * micro_batches, micro_batches=micro_batches)
    model, data = MOE if plan.ep > 1 else MODEL, Data(kind="synthetic")
    return replace(TEXT, model=model, data=data, train=train, ranks=plan.ranks, plan=plan)


def held(trainer, _):
    """Return what is held by kind after three steps; what the calls of MPI arrange in is not seen here."""
    for step in range(3):
        trainer.step(step)
    pool, kinds = trainer.stage.buffers, dict(trainer.replicas.memory_bytes())
    kinds["activations"] = pool.total_bytes - pool.exchange_bytes
    kinds["exchange"] += pool.exchange_bytes
    return kinds


def predicted(case, rank):
    kinds = memory_bytes(case, rank)
    kinds["exchange"] -= scratch_bytes(case, rank)  # in MPI alone
    return kinds


@pytest.mark.parametrize("plan", PLANS, ids=name)
def test_every_rank_holds_the_bytes_of_every_kind_that_are_predicted(plan, folder):
    case = planned(plan)
    assert each_rank(case, plan, folder, held) == [predicted(case, rank) for rank in range(plan.ranks)]


@pytest.mark.parametrize("plan", PLANS[4:], ids=name)
def test_so_it_is_for_blocks_of_another_kind(plan, folder):
    case = planned(plan)
    case = replace(case, model=replace(case.model, **LLAMA))
    assert each_rank(case, plan, folder, held) == [predicted(case, rank) for rank in range(plan.ranks)]


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(
    "plan",
    [Plan(), Plan(tp=2, cp=2), Plan(cp=3), Plan(cp=2, context="ulysses"), Plan(cp=3, context="all-gather")],
    ids=name,
)
def test_so_it_is_where_scores_are_not_kept(plan, folder):
    plain = planned(plan)
    case = replace(plain, model=replace(plain.model, attention="block"))
    assert each_rank(case, plan, folder, held) == [predicted(case, rank) for rank in range(plan.ranks)]
    assert predicted(case, 0)["activations"] < predicted(plain, 0)["activations"]


@pytest.mark.parametrize("case", [BLOCK, LINEAR], ids=lambda case: case.model.kind)
@pytest.mark.parametrize("plan", [Plan(), Plan(dp=2, zero=2)], ids=name)
def test_so_it_is_for_models_without_a_vocabulary(case, plan, folder):
    case = replace(case, ranks=plan.ranks, plan=plan)
    assert each_rank(case, plan, folder, held) == [predicted(case, rank) for rank in range(plan.ranks)]


@pytest.mark.parametrize("plan", STAGES, ids=name)
def test_stages_differ_from_it_by_no_more_than_messages_that_come_sooner_or_later(plan, folder):
    case = planned(plan, micro_batches=4)
    message = message_bytes(case)
    for rank, found in enumerate(each_rank(case, plan, folder, held)):
        expected = predicted(case, rank)
        assert [found[kind] for kind in KINDS[:3]] == [expected[kind] for kind in KINDS[:3]]
        pool, on_paper = (kinds["activations"] + kinds["exchange"] for kinds in (found, expected))
        assert abs(pool - on_paper) <= case.train.micro_batches * message


@pytest.mark.parametrize("plan", [*PLANS, *STAGES], ids=name)
def test_no_rank_needs_more_than_the_one_that_is_named(plan):
    case = planned(plan, micro_batches=4)
    totals = [sum(memory_bytes(case, rank).values()) for rank in range(plan.ranks)]
    assert totals[fullest_rank(case)] == max(totals)


@pytest.mark.parametrize("plan", [*PLANS, *STAGES], ids=name)
def test_most_of_the_activations_are_those_that_the_literature_counts(plan):
    case = planned(replace(plan, zero=0, shard=0), micro_batches=4)
    for rank in range(plan.ranks):
        kept, held = kept_bytes(case, rank), memory_bytes(case, rank)
        assert 0.6 * held["activations"] < kept < held["activations"] + held["exchange"]


@pytest.mark.parametrize(("stage", "parts"), [(1, (1, 1, 4)), (2, (1, 4, 4)), (3, (4, 4, 4))])
def test_each_stage_of_zero_holds_its_share_alone(stage, parts, folder):
    plan = Plan(dp=4, zero=stage)
    whole = counts.parameters(MODEL) * 4
    for found in each_rank(planned(plan), plan, folder, held):
        shares = [found[kind] for kind in ("parameters", "gradients", "optimizer")]
        for share, copies, part in zip(shares, (1, 1, 2), parts, strict=True):
            assert share == pytest.approx(copies * whole / part, rel=2e-3)  # shards differ by a few elements
