"""Products of strategies are the serial run, and call and hold what is predicted."""

from dataclasses import replace

import pytest
from plans import TEXT, assert_is_serial, name, on_plan

from pscale.config import Data, Model, Plan, Train

pytestmark = pytest.mark.slow

# Sizes that few things divide: 3 layers on 2 stages, a vocabulary of 257, units that no ranks divide.
# The bias of the keys has no gradient but rounding, which a small epsilon would blow up to a weight.
GPT = replace(
    TEXT,
    model=Model(layers=3, width=12, heads=4, sequence=24, vocabulary=257, dtype="float64"),
    data=Data(kind="synthetic"),
    train=Train(batch=12, steps=4, warmup=0, lr=1e-2, clip=0.5, epsilon=1e-4),
)
# Experts refuse a third of the choices.
MOE = replace(
    GPT,
    model=replace(
        GPT.model, kind="moe", experts=4, top_k=2, capacity_factor=0.75, every=1, balance_weight=0.1
    ),
)
SWITCH = replace(GPT, model=replace(MOE.model, top_k=1, every=2))

ZERO_BUBBLE = {"schedule": "zero-bubble"}
GPIPE = {"schedule": "gpipe"}
INTERLEAVED = {"schedule": "interleaved", "virtual_stages": 2}
KEPT = {"zero": 3, "reshard_after_forward": False}
SP = {"sp": True}

PRODUCTS = [
    (MOE, 1, Plan(ep=2)),
    (SWITCH, 1, Plan(ep=4)),
    # two ranks have all that is one: what is shared, and with whom, differs
    (GPT, 2, Plan(dp=2, tp=2, zero=1)),
    (GPT, 1, Plan(dp=2, tp=2, zero=3, **SP)),
    (GPT, 1, Plan(dp=2, cp=2, zero=3)),
    (GPT, 2, Plan(dp=2, cp=2, context="ulysses", zero=2)),
    (GPT, 1, Plan(cp=2, tp=2, **SP)),
    (GPT, 1, Plan(cp=2, tp=2, context="ulysses")),
    (GPT, 3, Plan(pp=2, tp=2, **SP)),
    (GPT, 3, Plan(pp=2, cp=2, context="all-gather", **ZERO_BUBBLE)),
    (GPT, 3, Plan(dp=2, pp=2, zero=1)),
    (GPT, 3, Plan(dp=2, pp=2, zero=3, **ZERO_BUBBLE)),
    (GPT, 6, Plan(dp=2, pp=2, **KEPT)),
    (GPT, 6, Plan(dp=2, pp=2, **KEPT, **ZERO_BUBBLE)),
    (GPT, 3, Plan(dp=2, pp=2, zero=3, **GPIPE)),
    (replace(GPT, model=replace(GPT.model, layers=4)), 2, Plan(dp=2, pp=2, zero=3, **INTERLEAVED)),
    (MOE, 1, Plan(cp=2, ep=2)),
    (MOE, 2, Plan(cp=2, context="ulysses", placement="contiguous", zero=2)),
    (MOE, 1, Plan(tp=2, ep=2, **SP)),
    (MOE, 2, Plan(tp=2, dp=2, zero=3, **SP)),
    (SWITCH, 3, Plan(pp=2, ep=2, zero=2, **ZERO_BUBBLE)),
    # six ranks
    (GPT, 6, Plan(dp=2, pp=3, zero=2, **ZERO_BUBBLE)),
    (GPT, 6, Plan(dp=2, pp=3, zero=3, **ZERO_BUBBLE)),
    (GPT, 1, Plan(cp=3, tp=2, zero=1, **SP)),
    (MOE, 1, Plan(cp=3, tp=2, context="all-gather", **SP)),
    # eight ranks: three axes, and four
    (GPT, 3, Plan(dp=2, tp=2, pp=2, zero=1)),
    (GPT, 3, Plan(dp=2, tp=2, pp=2, zero=3, **SP, **ZERO_BUBBLE)),
    (GPT, 1, Plan(dp=2, tp=2, cp=2, zero=3, **SP)),
    (GPT, 3, Plan(tp=2, pp=2, cp=2, **SP)),
    (GPT, 1, Plan(dp=4, tp=2, shard=2, zero=2)),
    (MOE, 1, Plan(dp=2, tp=2, ep=2, zero=1)),
    (MOE, 1, Plan(cp=4, ep=2, context="ulysses")),
    (MOE, 1, Plan(cp=4, ep=2, context="unified", ulysses=2, zero=3)),
    (MOE, 2, Plan(cp=6, context="unified", ulysses=2, placement="contiguous")),
    (SWITCH, 3, Plan(pp=2, tp=2, ep=2, zero=1, **SP, **ZERO_BUBBLE)),
    # twelve and sixteen: four axes, and all five
    (GPT, 2, Plan(dp=3, tp=2, pp=2, zero=3, **SP)),
    (MOE, 1, Plan(cp=3, tp=2, ep=2, zero=3, **SP)),
    (GPT, 3, Plan(dp=2, tp=2, pp=2, cp=2, zero=1, **SP)),
    (MOE, 3, Plan(tp=2, pp=2, cp=2, ep=2, zero=3, **SP)),
]


@pytest.mark.parametrize(("case", "micro_batches", "plan"), PRODUCTS, ids=name)
def test_every_plan_is_the_serial_run(case, micro_batches, plan, folder):
    assert_is_serial(on_plan(case, plan, micro_batches), plan, folder)


def test_five_axes_have_thirty_two_ranks(folder):
    plan = Plan(dp=2, tp=2, pp=2, cp=2, ep=2, zero=3, **SP, **ZERO_BUBBLE)
    case = replace(SWITCH, train=replace(SWITCH.train, batch=8, micro_batches=2, steps=2))
    assert_is_serial(case, plan, folder)
