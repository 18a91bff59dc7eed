"""The profile of kernels counts what a plan multiplies, and times nothing but kernels."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from plans import LINEAR, STEPS, TEXT, each_rank, name

from pscale.config import Matrix, Plan
from pscale.nn import kernels
from pscale.nn.kernels.costs import Cost
from pscale.parallel.recompute import executed_flops
from pscale.runs.schema import PHASES
from pscale.worker.kernel_profile import OTHER, Profile, kernel_table, profile_kernels
from pscale.worker.recorder import Recorder

PLANS = [
    Plan(),
    Plan(checkpoint="full"),
    Plan(tp=2),
    Plan(dp=2, zero=1),
    Plan(pp=2, schedule="1f1b"),
    Plan(cp=2),
    Plan(matrix=Matrix(tx=2, ty=2)),
]


def profiled(case, plan, folder):
    """Return the rows of the table of every rank."""

    def one(trainer, _):
        before = kernels.current()
        trainer.step(0)
        table = profile_kernels(trainer, STEPS)
        assert kernels.current() is before
        trainer.step(1)
        return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]

    return each_rank(case, plan, folder, one, record=True)


MOE = replace(TEXT, model=replace(TEXT.model, kind="moe", experts=4, top_k=2))


@pytest.mark.parametrize(
    ("case", "plan"),
    [*((TEXT, plan) for plan in PLANS), (MOE, Plan(ep=2)), (MOE, Plan(tp=2))],
    ids=name,
)
def test_products_and_attention_of_all_ranks_are_the_flops_that_the_plan_executes(tmp_path, case, plan):
    case = replace(case, train=replace(case.train, micro_batches=2))
    flops = Counter()
    for rows in profiled(case, plan, tmp_path):
        for row in rows:
            flops[row["kernel"]] += int(row["flops"])
    planned = replace(case, ranks=plan.ranks, plan=plan)
    assert flops["product"] + flops["attention"] == executed_flops(planned)


def test_phases_have_the_kernels_that_they_call_and_what_is_outside_them(tmp_path):
    (rows,) = profiled(TEXT, Plan(), tmp_path)
    found = {phase: {row["kernel"] for row in rows if row["phase"] == phase} for phase in PHASES}
    assert found == {
        "data": {OTHER},
        "forward": {"activation", "attention", "elementwise", "embedding", "loss", "norm", "product", OTHER},
        "backward": {"activation", "attention", "embedding", "norm", "product", "reduction", OTHER},
        "sync": {OTHER},
        "update": {"optimizer", OTHER},
    }
    tokens, width, vocabulary = 16 * 16, 32, 256
    by_kernel = {(row["phase"], row["kernel"]): row for row in rows}
    lookup, loss = by_kernel["forward", "embedding"], by_kernel["forward", "loss"]
    assert (lookup["calls"], lookup["bytes"]) == (1, 8 * tokens * (1 + 2 * width))
    assert (loss["flops"], loss["bytes"]) == (5 * tokens * vocabulary, 8 * tokens * (1 + 2 * vocabulary))
    assert all(row["time_s"] > 0 for row in rows if row["kernel"] != OTHER)
    assert all(row["flops"] == row["bytes"] == row["calls"] == 0 for row in rows if row["kernel"] == OTHER)


def test_a_model_without_tokens_has_a_profile_too(tmp_path):
    (rows,) = profiled(LINEAR, Plan(), tmp_path)
    (loss,) = [row for row in rows if row["kernel"] == "loss"]
    assert (loss["flops"], loss["bytes"]) == (4 * 400, 8 * 3 * 400)


def test_communication_inside_a_kernel_is_none_of_its_time():
    now = iter([0, 0, 100, 300, 400, 1000])  # step, phase, kernel; end of kernel, phase and step
    recorder = Recorder(["dp"], now=lambda: next(now))
    profile, recorder.enabled = Profile(recorder), True
    with recorder.step(0), recorder.phase("backward"):
        next(now)
        profile.call(Cost("attention", 6, 8), recorder.call, "dp", "all_reduce", 8, 120, 170)
    table = kernel_table(recorder.rows(), profile)
    backward = table["phase"] == "backward"
    assert table["kernel"][backward].tolist() == ["attention", OTHER]
    assert table["flops"][backward].tolist() == [6, 0]
    spent = np.array([200 - 50, 400 - 200]) * 1e-9
    assert table["time_s"][backward] == pytest.approx(spent)
