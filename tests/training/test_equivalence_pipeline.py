"""A pipeline is the serial run: every schedule, any number of stages, alone and with replicas of stages."""

from dataclasses import replace

import pytest
from plans import (
    TEXT,
    assert_is_serial,
    difference,
    each_rank,
    error_of,
    name,
    on_plan,
    serial,
    train,
)

from pscale.config import Data, Model, Plan
from pscale.parallel.pipeline import timetable
from pscale.training.dry_run import step_calls

pytestmark = pytest.mark.slow

DEEP = replace(
    TEXT,
    model=Model(layers=4, width=16, heads=2, sequence=8, vocabulary=19, dtype="float64"),
    data=Data(kind="synthetic"),
)
ODD = replace(DEEP, model=replace(DEEP.model, layers=3, vocabulary=257), train=replace(DEEP.train, batch=12))
DEEPER = replace(DEEP, model=replace(DEEP.model, layers=8))
ONE_CHUNK = ("gpipe", "1f1b", "zero-bubble")
SCHEDULES = (*ONE_CHUNK, "interleaved")
INTERLEAVED = [(2, 2, 2), (2, 2, 4), (2, 2, 8), (4, 2, 4), (4, 2, 8)]  # pp, virtual stages, micro-batches


def plan(schedule, pp, chunks=1, **more):
    return Plan(pp=pp, schedule=schedule, virtual_stages=chunks, **more)


def with_micro_batches(case, micro_batches):
    return on_plan(case, case.plan, micro_batches)


@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8])
@pytest.mark.parametrize("pp", [2, 4])
@pytest.mark.parametrize("schedule", ONE_CHUNK)
def test_losses_and_weights_do_not_depend_on_stages_or_schedule(schedule, pp, micro_batches, folder):
    assert_is_serial(with_micro_batches(DEEP, micro_batches), plan(schedule, pp), folder)


@pytest.mark.parametrize(("pp", "chunks", "micro_batches"), INTERLEAVED)
def test_stages_may_hold_several_parts_of_the_model(pp, chunks, micro_batches, folder):
    case = with_micro_batches(DEEP if pp * chunks <= 4 else DEEPER, micro_batches)
    assert_is_serial(case, plan("interleaved", pp, chunks), folder)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_one_stage_does_what_the_serial_run_does_under_every_schedule(schedule, folder):
    how = plan(schedule, 1, 2 if schedule == "interleaved" else 1)
    assert_is_serial(with_micro_batches(DEEP, 2), how, folder)


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("schedule", ONE_CHUNK)
def test_layers_and_micro_batches_need_not_divide_by_the_stages(schedule, micro_batches, folder):
    assert_is_serial(with_micro_batches(ODD, micro_batches), plan(schedule, 2), folder)


PRODUCTS = [
    plan("gpipe", 2, dp=2),
    plan("1f1b", 4, dp=2, reduction="all-reduce"),
    plan("interleaved", 2, 2, dp=2, bucket_bytes=20_000),
    plan("zero-bubble", 2, dp=2, bucket_bytes=20_000),
    plan("zero-bubble", 4, dp=2, reduction="gather-broadcast"),
    plan("gpipe", 2, tp=2, sp=True),
    plan("1f1b", 2, tp=2, dp=2),
    plan("interleaved", 2, 2, tp=2),
    plan("zero-bubble", 2, tp=2, sp=True, dp=2),
]


@pytest.mark.parametrize("how", PRODUCTS, ids=name)
def test_replicas_of_stages_train_as_one(how, folder):
    assert_is_serial(with_micro_batches(DEEP, 4), how, folder)


@pytest.mark.parametrize("loading", ["scatter", "mpi-io"])  # those in which ranks meet
def test_every_loading_mode_feeds_the_ends_of_a_pipeline(loading, folder):
    case = with_micro_batches(replace(TEXT, data=replace(TEXT.data, loading=loading)), 2)
    losses = train(case, plan("1f1b", 2, dp=2), folder).losses
    assert difference(losses, serial(TEXT, folder).losses) < 1e-12


MEASURED = [
    *(plan(schedule, pp) for schedule in ONE_CHUNK for pp in (2, 4)),
    *(plan("interleaved", 2, chunks) for chunks in (2, 4)),
    plan("interleaved", 4, 2),
    plan("1f1b", 2, dp=2, bucket_bytes=20_000),
    plan("zero-bubble", 4, dp=2, reduction="gather-broadcast"),
    plan("interleaved", 2, 2, tp=2),
    plan("1f1b", 2, tp=2, sp=True),
    plan("zero-bubble", 2, tp=2),
    plan("zero-bubble", 2, tp=2, sp=True, dp=2),
]


def test_a_steady_step_takes_no_new_memory(folder):
    def steps(trainer, _):
        sizes = []
        for step in range(6):
            trainer.step(step)
            sizes.append(trainer.stage.buffers.total_bytes)
        return sizes

    message = 2 * 8 * 16 * 8  # two sequences
    for how in (plan("gpipe", 2), plan("zero-bubble", 4), plan("interleaved", 2, 2)):
        for sizes in each_rank(with_micro_batches(DEEP, 8), how, folder, steps):
            # How many messages are under way at once depends on who is fast.
            assert sizes[-1] - sizes[0] <= 8 * message


def test_all_messages_of_a_job_are_as_many_as_the_formula_says():
    for how in MEASURED:
        table = timetable(how, 8)
        case = replace(with_micro_batches(DEEPER, 8), ranks=how.ranks, plan=how)
        made = [call for rank in range(how.ranks) for call in step_calls(case, rank) if call.verb == "send"]
        assert sum(call.count for call in made) == 2 * 8 * (table.parts - 1) * how.dp * how.tp
        assert {call.sent_bytes for call in made} == {
            16 // how.dp // 8 * 8 * 16 * 8 // (how.tp if how.sp else 1)
        }


@pytest.mark.parametrize("kind", ["forward", "backward", "weight"])
def test_what_is_lost_between_stages_is_caught(kind, folder):
    def lose(trainer):
        edge = trainer.boundary

        def receive(action):
            array = type(edge).receive(edge, action)
            if {"input": "backward"}.get(action.kind, action.kind) == kind:
                array.fill(0)
            return array

        edge.receive = receive
        if kind == "weight":
            for unit in trainer.stage.units:
                for param in unit.layer.params:
                    param.deferred = []  # products that nobody ever does
        return trainer

    case = with_micro_batches(DEEP, 2)
    error, _ = error_of(case, plan("zero-bubble", 2), folder, lose)
    assert error > 1e-6
