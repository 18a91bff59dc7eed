"""Bare collectives make the calls that were predicted; their bandwidths are those of nccl-tests."""

from dataclasses import replace

import pytest
from plans import TEXT, counted_calls, each_rank, name, on_plan, predicted_calls
from synthetic import write_bare

from pscale.analysis.findings import Findings
from pscale.analysis.frames import load
from pscale.analysis.messages import of_network
from pscale.config import Data, Model, Plan, Train
from pscale.parallel.strategies import check
from pscale.training.prediction import memory_bytes

MODEL = Model(
    kind="collectives", layers=1, width=1, heads=1, sequence=1, vocabulary=0, message_bytes=240, calls=3
)
BARE = replace(
    TEXT,
    model=MODEL,
    data=Data(kind="synthetic"),
    train=Train(batch=6, steps=2, warmup=0, clip=None),
)


@pytest.mark.parametrize(("dtype", "op"), [("float32", "sum"), ("float64", "min"), ("bf16", "max")])
@pytest.mark.parametrize("plan", [Plan(), Plan(dp=3), Plan(dp=2, tp=3)], ids=name)
def test_every_verb_is_called_on_every_axis_and_holds_two_messages(plan, dtype, op, folder):
    def held(trainer, _):
        for step in range(2):
            trainer.step(step)
        return trainer.stage.buffers.exchange_bytes, trainer.losses[:2].tolist()

    case = on_plan(replace(BARE, model=replace(MODEL, dtype=dtype, op=op)), plan)
    check(case)
    assert counted_calls(case, plan, folder) == predicted_calls(case, plan)
    expected = 2 * 240 if plan.ranks > 1 else 0
    assert each_rank(case, plan, folder, held) == [(expected, [0.0, 0.0])] * plan.ranks
    arriving = sum((size - 1) * 240 // size for size in (plan.dp, plan.tp)) * (dtype == "bf16")
    assert memory_bytes(case, 0)["exchange"] == expected + arriving  # pscale adds up in memory of its own


def row(verb, rank, phase, **times):
    known = {"transfer_s": 0.0, "wait_s": 0.0, "hidden_s": 0.0, "exposed_s": 0.0}
    of_call = {"axis": "dp", "verb": verb, "rank": rank, "phase": phase, "count": 10, "bytes": 60}
    return {**of_call, **known, **times}


def test_bandwidths_are_of_the_algorithm_and_of_the_bus_as_nccl_tests_have_them(tmp_path):
    rows = [
        *(row("all_reduce", rank, "forward", transfer_s=0.2, wait_s=0.2 * rank) for rank in range(4)),
        *(row("all_reduce", rank, "backward", hidden_s=0.3, exposed_s=0.1) for rank in range(4)),
        *(row("all_gather", rank, "forward", transfer_s=0.1) for rank in range(4)),
        *(row("send", rank, "forward", exposed_s=0.1) for rank in range(4)),
        *(row("receive", rank, "forward", exposed_s=0.3, bytes=0) for rank in range(4)),
        row("barrier", 0, "forward", wait_s=1.0),
    ]
    gather, reduce, send = Findings(load(write_bare(tmp_path / "run", 4, {240: rows}))).rows("bandwidths")
    (headline,) = of_network([gather, reduce, send])
    assert (headline.topic, headline.text) == (
        "dp, 4 ranks",
        "An all-reduce of 240 B takes 50 ms; one of 240 B achieves 7.2e-06 GB/s bus bandwidth.",
    )
    assert (gather.verb, reduce.verb, send.verb) == ("all_gather", "all_reduce", "send")
    assert (reduce.call_s, reduce.least_s, reduce.most_s) == pytest.approx((0.05, 0.02, 0.08))
    assert reduce.algorithm_bytes_per_s == pytest.approx(240 / 0.05)
    assert reduce.bus_bytes_per_s == pytest.approx(240 / 0.05 * 2 * 3 / 4)
    assert reduce.hidden == pytest.approx(0.75)
    assert gather.bus_bytes_per_s == pytest.approx(240 / 0.01 * 3 / 4)
    assert gather.hidden is None
    assert send.call_s == pytest.approx(0.04)
    assert send.bus_bytes_per_s == send.algorithm_bytes_per_s
