"""A dry run says what a job does, to the call and to the byte; closed forms say the same."""

from collections import Counter
from dataclasses import replace

import pytest
from dry_runs import predicted_program, recorded_program
from kept_activations import kept_bytes
from parallel.test_collectives import BARE
from plans import LINEAR, TEXT, each_rank, name, on_plan, predicted_calls, predicted_state
from training.test_memory import PLANS, STAGES, planned
from training.test_offload import GPT, MOE
from training.test_offload import PLANS as OFFLOADED

from pscale.config import Matrix, Plan, Precision
from pscale.mesh.dry import AxisCall
from pscale.parallel.recompute import executed_flops
from pscale.parallel.strategies import check
from pscale.training.dry_run import dry_trainer, pool_use, program, rank_program
from pscale.training.meta_arrays import Compute

pytestmark = pytest.mark.slow

GRIDS = [
    Plan(matrix=Matrix(tx=2, ty=2, algorithm=algorithm), checkpoint=checkpoint)
    for algorithm, checkpoint in [("axonn", "none"), ("cannon", "full"), ("summa", "selective")]
] + [Plan(matrix=Matrix(tx=1, ty=2, tz=2, algorithm="agarwal"), dp=2, zero=2)]
NARROW = replace(GPT, model=replace(GPT.model, dtype="bf16"), precision=Precision(reduce="float32"))


SCATTERED = replace(TEXT, model=replace(TEXT.model, layers=4), data=replace(TEXT.data, loading="scatter"))


def trained_by(optimizer, case=GPT):
    return replace(case, train=replace(case.train, optimizer=optimizer))


CASES = [
    *(on_plan(GPT, Plan(dp=2, reduction=reduction)) for reduction in ("bucketed", "gather-broadcast")),
    *(on_plan(GPT, Plan(dp=2, compression=kind)) for kind in ("topk", "powersgd", "int8")),
    *(on_plan(NARROW, plan) for plan in (Plan(dp=2), Plan(dp=2, zero=3), Plan(tp=2, sp=True))),
    *(
        on_plan(trained_by(each), Plan(dp=2, zero=1))
        for each in ("sgd", "adam", "lamb", "adafactor", "lion", "muon")
    ),
    *(on_plan(trained_by(each, MOE), Plan(ep=2, tp=2)) for each in ("lamb", "adafactor", "muon")),
    *(on_plan(GPT, plan) for plan in GRIDS),
    on_plan(MOE, Plan(ep=2, cp=2, checkpoint="every-2")),
    on_plan(LINEAR, Plan(dp=2)),
    on_plan(SCATTERED, Plan(dp=2, pp=3), 2),
    on_plan(BARE, Plan(dp=2, tp=3)),
    *(
        replace(on_plan(case, plan, micro), plan=replace(plan, offload=offload))
        for offload, case, micro, plan in OFFLOADED
    ),
]
MANY = [*CASES, *(planned(plan, 4) for plan in [*PLANS, *STAGES])]


def named(case):
    return f"{case.model.kind} {case.model.dtype} {case.train.optimizer} {name(case.plan)}"


@pytest.mark.parametrize("case", CASES, ids=named)
def test_every_rank_does_in_order_what_its_program_says(case, folder):
    def second_step(trainer, mesh):
        for step in range(2):
            trainer.step(step)
        return recorded_program(trainer.recorder, case.plan, mesh.world.rank)

    check(case)
    found = each_rank(case, case.plan, folder, second_step, record=True)
    assert found == [predicted_program(case, rank) for rank in range(case.ranks)]


@pytest.mark.parametrize("case", MANY, ids=named)
def test_calls_are_those_of_closed_forms_and_ranks_of_a_class_do_the_same(case):
    classes = {rank: each.phases for each in program(case) for rank in each.ranks}
    assert sorted(classes) == list(range(case.ranks))
    for rank, expected in enumerate(predicted_calls(case, case.plan)):
        assert calls_of(classes[rank]) == expected
        alone = rank_program(case, rank)
        assert alone == classes[rank] if not case.plan.zero else calls_in(alone) == calls_in(classes[rank])


@pytest.mark.parametrize("case", MANY, ids=named)
def test_replicas_that_hear_of_units_alone_take_what_whole_steps_do(case):
    found = [dry_trainer(case, rank, steps=2).replicas.memory_bytes() for rank in range(case.ranks)]
    assert found == predicted_state(case, case.plan)


@pytest.mark.parametrize("case", MANY, ids=named)
def test_what_is_kept_for_backward_is_what_the_literature_counts(case):
    if not case.plan.offloads_activations:
        found = [pool_use(case, rank).kept_bytes for rank in range(case.ranks)]
        assert found == [kept_bytes(case, rank) for rank in range(case.ranks)]


@pytest.mark.parametrize("case", [case for case in MANY if case.model.kind in ("gpt", "moe")], ids=named)
def test_what_the_pool_takes_does_not_depend_on_replicas(case):
    for rank in range(case.ranks):
        trainer = dry_trainer(case, rank, steps=2)
        pool, used = trainer.stage.buffers, pool_use(case, rank)
        assert (pool.total_bytes, pool.exchange_bytes) == (used.total_bytes, used.exchange_bytes)


@pytest.mark.parametrize(
    "plan",
    [Plan(), Plan(tp=2, dp=2), Plan(cp=2), Plan(checkpoint="full"), Plan(pp=2, schedule="zero-bubble")],
    ids=name,
)
def test_products_are_those_that_are_counted(plan):
    case = on_plan(GPT, plan, micro_batches=2)
    done = sum(
        len(each.ranks) * work.flops
        for each in program(case)
        for phase in each.phases
        for work in phase.operations
        if isinstance(work, Compute) and work.kernel in ("product", "attention")
    )
    assert done == executed_flops(case)


@pytest.mark.parametrize("sp", [False, True])
def test_what_products_cut_by_columns_exchange_in_backward_travels_behind_products(sp):
    case, under_way, hidden = on_plan(GPT, Plan(tp=2, sp=sp)), {}, Counter()
    for work in (work for phase in rank_program(case, 0) for work in phase.operations):
        if isinstance(work, Compute):
            under_way = {
                request: products + (work.kernel == "product") for request, products in under_way.items()
            }
        elif work.event == "start":
            under_way[work.request] = 0
        elif work.event == "wait":
            hidden[work.verb] += under_way.pop(work.request) > 0
    products = case.train.micro_batches * (2 * case.model.layers + 1)
    assert +hidden == (
        {"all_gather": products, "reduce_scatter": products} if sp else {"all_reduce": products}
    )


def test_what_repeats_in_a_deep_model_is_remembered_once():
    phases = rank_program(on_plan(GPT, Plan()), 0)
    operations = [each for phase in phases for each in phase.operations]
    assert len({id(each) for each in operations}) == len(set(operations)) < len(operations) / 2


def test_ranks_that_do_the_same_are_of_one_class():
    assert [each.ranks for each in program(planned(Plan(dp=4)))] == [(0, 1, 2, 3)]
    assert [each.ranks for each in program(planned(Plan(pp=2, dp=2)))] == [(0, 1), (2, 3)]
    roots = planned(Plan(dp=4, reduction="gather-broadcast"))
    assert [each.ranks for each in program(roots)] == [(0,), (1, 2, 3)]


def calls_in(phases):
    return [each for phase in phases for each in phase.operations if isinstance(each, AxisCall)]


def calls_of(phases):
    """Return how often each (axis, verb, payload) is called."""
    made = (each for each in calls_in(phases) if each.event in ("call", "start"))
    return Counter((each.axis, each.verb, each.bytes) for each in made)
