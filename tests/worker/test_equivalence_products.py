"""Every product of strategies is the serial run, and makes and holds what is predicted."""

from dataclasses import replace

import pytest
from plans import TEXT, assert_is_serial, name, on_plan

from pscale.config import Data, Model, Plan, Train

# Sizes that few things divide: 3 layers on 2 stages, vocabulary 257, an odd width of a head, odd units.
# The bias of the keys has no gradient but rounding, which a small epsilon would blow up to a weight.
GPT = replace(
    TEXT,
    model=Model(layers=3, width=12, heads=4, sequence=24, vocabulary=257, dtype="float64"),
    train=Train(batch=12, steps=4, warmup=0, lr=1e-2, clip=0.5, epsilon=1e-6),
    data=Data(kind="synthetic"),
)
MOE = replace(
    GPT,
    model=replace(
        GPT.model, kind="moe", experts=4, top_k=2, capacity_factor=0.75, every=1, balance_weight=0.1
    ),
)
ZB = {"schedule": "zero-bubble"}
KEPT = {"zero": 3, "reshard_after_forward": False}

# Model, plan, micro-batches
TABLE = [
    (MOE, Plan(cp=2), 1),
    (MOE, Plan(cp=2, placement="contiguous", context="all-gather"), 2),
    (MOE, Plan(tp=2, sp=True), 1),
    (MOE, Plan(tp=2), 1),
    (MOE, Plan(cp=4, context="ulysses", ep=2), 1),
    (MOE, Plan(cp=2, tp=2, sp=True), 1),
    (MOE, Plan(cp=3, tp=2, sp=True, ep=2, zero=3), 1),
    (MOE, Plan(pp=2, tp=2, sp=True, ep=2, zero=1, **ZB), 2),
    (GPT, Plan(dp=2, pp=2, zero=3, **ZB), 3),
    (GPT, Plan(dp=2, pp=3, zero=2, **ZB), 3),
    (GPT, Plan(dp=2, pp=3, zero=3, **ZB), 6),
    (GPT, Plan(dp=2, pp=2, **KEPT), 3),
    (GPT, Plan(dp=2, pp=2, **KEPT, **ZB), 6),
    (GPT, Plan(dp=2, pp=2, zero=3), 6),
    (GPT, Plan(dp=2, pp=3, zero=3, schedule="gpipe"), 3),
]


@pytest.mark.parametrize(("case", "plan", "micro_batches"), TABLE, ids=name)
def test_every_product_is_the_serial_run(case, plan, micro_batches, folder):
    assert_is_serial(on_plan(case, plan, micro_batches), plan, folder)
