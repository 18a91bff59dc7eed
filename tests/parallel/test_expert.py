from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from thread_mesh import run_ranks

from pscale.config import Case, Model, Plan, Timing, Train
from pscale.data import prepare
from pscale.errors import PlanError
from pscale.mesh import grid
from pscale.parallel import check
from pscale.parallel.expert import buffer_bytes
from pscale.parallel.predict import predict
from pscale.parallel.strategies import GROUPS
from pscale.worker.build import build
from pscale.worker.job import make_trainer
from pscale.worker.recorder import VERBS, Kind, Recorder

MODEL = Model(
    kind="moe", layers=3, width=16, heads=2, sequence=12, experts=4, top_k=2, every=2, dtype="float64"
)


def case_of(plan, model=MODEL, batch=16, **train):
    train = Train(batch=batch, warmup=0, steps=1, **train)
    timing = Timing(overhead_steps=0)
    return Case(suite="s", label="l", ranks=plan.ranks, plan=plan, model=model, train=train, timing=timing)


@pytest.mark.parametrize(
    "case",
    [
        case_of(Plan(ep=2)),
        case_of(Plan(ep=4, dp=2, bucket_bytes=20_000), micro_batches=2),
        case_of(Plan(ep=2, dp=3, reduction="gather-broadcast"), replace(MODEL, every=1), 24, micro_batches=4),
        case_of(Plan(ep=4, reduction="all-reduce"), clip=None),
        case_of(Plan(dp=2)),
        case_of(Plan(ep=2, tp=2, dp=2), micro_batches=2),
    ],
    ids=[
        "ep 2",
        "ep 4 x dp 2",
        "ep 2 x dp 3, on a root",
        "ep 4 without clipping",
        "dp 2",
        "ep 2 x tp 2 x dp 2",
    ],
)
def test_a_step_makes_the_calls_and_holds_the_parameters_that_are_predicted(case, tmp_path):
    sizes = case.plan.sizes
    names = [grid.axis_name(span) for span in grid.groups(sizes, GROUPS)]
    recorders = [Recorder(names) for _ in range(case.ranks)]

    def one(mesh):
        batches = prepare(case.data, case.model, case.train, mesh.axis("dp", "ep"), tmp_path)
        recorder = recorders[mesh.world.rank]
        trainer = make_trainer(case, mesh, batches, recorder)
        recorder.clear()
        recorder.enabled = True
        trainer.step(0)
        batches.close()
        return sum(param.data.nbytes for unit in trainer.stage.units for param in unit.layer.params)

    held_bytes = run_ranks(sizes, one, recorders)
    for rank, recorder in enumerate(recorders):
        predicted, rows = predict(case, rank), recorder.rows()
        calls = np.isin(rows["kind"], (Kind.CALL, Kind.ROOT, Kind.POSTED))
        found = Counter(
            (names[axis], VERBS[verb], size)
            for axis, verb, size in zip(
                *(rows[name][calls] for name in ("axis", "verb", "bytes")), strict=True
            )
        )
        expected = Counter()
        for call in predicted.calls:
            expected[call.axis, call.verb, call.sent_bytes] += call.count
        assert found == expected
        assert held_bytes[rank] == predicted.memory_bytes["parameters"]


@pytest.mark.parametrize("plan", [Plan(ep=2), Plan(ep=2, tp=2)], ids=["ep 2", "ep 2 x tp 2"])
def test_a_rank_keeps_the_activations_and_exchanges_in_the_memory_that_are_predicted(plan):
    case = case_of(plan, replace(MODEL, every=3))

    def one(mesh):
        stage = build(case.model, case.plan, mesh)
        for unit in stage.units:
            for param in unit.layer.params:
                param.data = param.initial(1)
        x = np.zeros((case.train.batch // 2, MODEL.sequence), np.intp)
        targets = x
        for unit in stage.units:
            x, _ = unit.layer.forward(x)
        stage.loss.forward(x, targets, 1.0)
        return stage.buffers.held_bytes

    predicted = predict(case).memory_bytes
    assert run_ranks(case.plan.sizes, one) == [predicted["activations"]] * plan.ranks
    slots = 4 * 8 * 8  # of 4 experts, in 8 sequences ceil(2 x 1.25 x 12 / 4)
    assert buffer_bytes(case, 0) == slots * MODEL.width * 8


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (case_of(Plan(ep=3), batch=15), ["experts 4", "ep 3", "ep 1 or 2 or 4", "experts 6"]),
        (case_of(Plan(ep=2, dp=2), Model()), ["ep 2", "gpt", "dp 4"]),
        (case_of(Plan(cp=2)), ["cp 2", "moe"]),
        (case_of(Plan(tp=2, sp=True)), ["sp with tp 2", "moe"]),
        (case_of(Plan(ep=4, dp=3)), ["batch 16", "dp 3 × ep 4", "12 or 24"]),
    ],
    ids=["experts", "none", "context", "tensor", "batch"],
)
def test_a_plan_that_cannot_be_is_refused_with_the_values_that_would_work(case, words):
    with pytest.raises(PlanError) as caught:
        check(case)
    assert all(word in str(caught.value) for word in words), str(caught.value)
