"""A dry run says what a job does, to the call and to the byte; textbooks say the same."""

from collections import Counter
from dataclasses import replace

import pytest
from dry_runs import predicted_program, recorded_program
from kept_activations import kept_bytes
from parallel.test_collectives import BARE
from plans import LINEAR, TEXT, each_rank, name, on_plan, predicted_state
from training.test_memory import PLANS, STAGES, planned
from training.test_offload import GPT, MOE
from training.test_offload import PLANS as OFFLOADED

from pscale.config import Matrix, Plan, Precision
from pscale.mesh.dry import AxisCall
from pscale.parallel.recompute import executed_flops
from pscale.parallel.strategies import check
from pscale.training.dry_run import dry_trainer, pool_use, program, rank_program, step_calls
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
def test_ranks_of_a_class_do_the_same(case):
    classes = {rank: each.phases for each in program(case) for rank in each.ranks}
    assert sorted(classes) == list(range(case.ranks))
    for rank in range(case.ranks):
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


B_S_H, LAYERS = 4 * 8 * 24 * 32, 4  # bytes of activations
UNITS = {4 * (64 + 24) * 32: 1, 4 * (12 * 32**2 + 13 * 32): LAYERS, 4 * (2 + 64) * 32: 1}  # bytes of weights
NORM = {("all_reduce", 8): 1}  # of a gradient that no rank has whole
TEXTBOOK = [
    # Shoeybi et al., 2019: four sums a layer, and those of the ends; the loss has three numbers a token.
    (Plan(tp=2), {("all_reduce", B_S_H): 4 * LAYERS + 2, ("all_reduce", 4 * 8 * 24): 3} | NORM),
    # Korthikanti et al., 2022: of each pair of products three gathers and two scattered sums; what
    # has no part in the pairs is summed.
    (
        Plan(tp=2, sp=True),
        {
            ("all_gather", B_S_H // 2): 6 * LAYERS + 3,
            ("reduce_scatter", B_S_H): 4 * LAYERS + 2,
            ("all_reduce", 4 * 8 * 24): 3,
            ("all_reduce", 4 * 32 * (6 * LAYERS + 2 + 24)): 1,
            **NORM,
        },
    ),
    # Rajbhandari et al., 2020: every gradient is scattered, every weight gathered.
    *(
        (
            Plan(dp=2, zero=stage),
            {("reduce_scatter", size): count for size, count in UNITS.items()}
            | {("all_gather", size // 2): count for size, count in UNITS.items()}
            | NORM,
        )
        for stage in (1, 2)
    ),
    (Plan(dp=2, reduction="all-reduce"), {("all_reduce", sum(s * n for s, n in UNITS.items())): 1}),
]


@pytest.mark.parametrize(("plan", "expected"), TEXTBOOK, ids=name)
def test_calls_and_bytes_are_those_of_textbooks(plan, expected):
    found = {(call.verb, call.sent_bytes): call.count for call in step_calls(on_plan(GPT, plan), 0)}
    assert found == expected


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
