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
ZB = {"schedule": "zero-bubble"}
KEPT = {"zero": 3, "reshard_after_forward": False}

# Plan, micro-batches
TABLE = [
    (Plan(dp=2, pp=2, zero=3, **ZB), 3),
    (Plan(dp=2, pp=3, zero=2, **ZB), 3),
    (Plan(dp=2, pp=3, zero=3, **ZB), 6),
    (Plan(dp=2, pp=2, **KEPT), 3),
    (Plan(dp=2, pp=2, **KEPT, **ZB), 6),
    (Plan(dp=2, pp=2, zero=3), 6),
    (Plan(dp=2, pp=3, zero=3, schedule="gpipe"), 3),
]


@pytest.mark.parametrize(("plan", "micro_batches"), TABLE, ids=name)
def test_every_product_is_the_serial_run(plan, micro_batches, folder):
    assert_is_serial(on_plan(GPT, plan, micro_batches), plan, folder)
