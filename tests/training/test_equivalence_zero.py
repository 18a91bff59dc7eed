"""Sharded runs are the serial run, make the calls that are predicted, and hold what is predicted."""

from collections import Counter
from dataclasses import replace

import pytest
from plans import (
    BLOCK,
    LINEAR,
    TEXT,
    assert_is_serial,
    counted_calls,
    name,
    on_plan,
)

from pscale.config import Model, Plan
from pscale.nn import counts

pytestmark = pytest.mark.slow

TRAIN = replace(TEXT.train, batch=48)
SIZES = Model(layers=3, width=18, heads=3, sequence=15, vocabulary=257, dtype="float64")
MOMENTUM = {"optimizer": "sgd", "momentum": 0.9, "lr": 0.1}
CASES = {
    "gpt": replace(TEXT, model=SIZES, train=TRAIN),
    "gpt sgd": replace(TEXT, model=SIZES, train=replace(TRAIN, **MOMENTUM)),
    "block": replace(BLOCK, train=replace(BLOCK.train, batch=48)),
    "linear": replace(LINEAR, train=replace(LINEAR.train, batch=48, momentum=0.5, clip=0.1)),
}
KEPT = {"zero": 3, "reshard_after_forward": False}
STAGES = ({"zero": 1}, {"zero": 2}, {"zero": 3}, KEPT)
RUNS = [
    *(("gpt", Plan(dp=dp, **stage), 2 if dp in (3, 8) else 1) for stage in STAGES for dp in (2, 3, 4, 8)),
    *((kind, Plan(dp=3, **stage), 2) for stage in STAGES for kind in ("gpt sgd", "block")),
    *(("block", Plan(dp=8, **stage), 1) for stage in STAGES),
    *(("linear", Plan(dp=8, **stage), 1) for stage in STAGES),  # 5 weights on 8 ranks
    *(("gpt", Plan(dp=8, shard=shard, zero=zero), 2) for zero, shard in ((1, 2), (2, 4), (3, 2))),
    *(("gpt", Plan(dp=2, tp=3, sp=True, zero=zero), 2) for zero in (1, 2, 3)),
    ("gpt", Plan(dp=4, shard=2, tp=3, sp=True, zero=3), 1),
    ("gpt", Plan(tp=3, sp=True, zero=3), 2),
    ("block", Plan(tp=2, zero=3), 1),
    ("gpt", Plan(zero=3), 2),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "plan", "micro_batches"), RUNS, ids=name)
def test_every_way_to_share_is_the_serial_run_and_holds_and_calls_what_is_predicted(
    kind, plan, micro_batches, folder
):
    assert_is_serial(on_plan(CASES[kind], plan, micro_batches), plan, folder)


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_a_step_sends_what_the_literature_says(stage, micro_batches, folder):
    model = replace(SIZES, width=24, sequence=16)  # every unit divides by 4
    case = replace(CASES["gpt"], model=model, train=replace(TRAIN, micro_batches=micro_batches, clip=None))
    whole = counts.parameters(model) * 8
    sums, gathers = {
        1: (1, 1),
        2: (micro_batches, 1),
        3: (micro_batches, micro_batches * (2 if stage != KEPT else 1)),
    }[stage["zero"]]
    expected = {"reduce_scatter": sums * whole, "all_gather": gathers * whole // 4}
    for counted in counted_calls(case, Plan(dp=4, **stage), folder):
        sent = Counter()
        for (_, verb, size), count in counted.items():
            sent[verb] += size * count
        assert sent == expected
