"""The loss of held-out text is the serial one under every plan, and evaluating changes nothing."""

from dataclasses import replace

import numpy as np
import pytest
from patience import share
from plans import TEXT, assert_is_serial, each_rank, name, on_plan, serial

from pscale.config import Evaluate, Plan
from pscale.data import check, find_corpus
from pscale.errors import UsageError

EVALUATED = replace(TEXT, train=replace(TEXT.train, evaluate=Evaluate(every=2, batches=2)))
MOE = replace(EVALUATED, model=replace(TEXT.model, kind="moe", experts=4, every=1))
TIED = replace(EVALUATED, model=replace(TEXT.model, tied=True, dropout=0.2))
DEEP = replace(EVALUATED, model=replace(TEXT.model, layers=4))

PLANS = [
    (EVALUATED, Plan(dp=2, tp=2, zero=3, sp=True), 2),
    (EVALUATED, Plan(dp=2, zero=3, reshard_after_forward=False), 2),
    (EVALUATED, Plan(cp=2, checkpoint="full"), 1),
    (DEEP, Plan(pp=2, schedule="interleaved", virtual_stages=2), 2),
    (EVALUATED, Plan(pp=2, schedule="zero-bubble", dp=2, zero=1), 4),
    (DEEP, Plan(pp=4, offload="both"), 4),
    (MOE, Plan(ep=2, cp=2), 1),
    (TIED, Plan(pp=2, tp=2), 2),
    (MOE, Plan(tp=2, ep=2, zero=2), 2),
]


@pytest.mark.parametrize(("case", "plan", "micro"), PLANS[:2] + PLANS[3:4], ids=name)
def test_the_loss_of_held_out_text_is_the_serial_one(case, plan, micro, tmp_path):
    assert_evaluates_as_serial(case, plan, micro, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("case", "plan", "micro"), share(PLANS), ids=name)
def test_products_of_plans_evaluate_as_the_serial_program(case, plan, micro, tmp_path):
    assert_evaluates_as_serial(case, plan, micro, tmp_path)


def assert_evaluates_as_serial(case, plan, micro, folder):
    """Evaluate after every second step: steps, their calls and memory are those of a run without."""
    case = on_plan(case, case.plan, micro)
    expected = serial(case, folder)
    assert expected.losses[-1] > 0
    assert_is_serial(case, plan, folder)

    def act(trainer, mesh):
        found, pools = [], []
        for step in range(4):
            trainer.step(step)
            pools.append(trainer.stage.buffers.total_bytes)
            found.append(trainer.evaluate())
            pools.append(trainer.stage.buffers.total_bytes)
        losses = np.array([*found, *trainer.losses[:4]])
        mesh.world.all_reduce(losses)
        return losses, pools

    def validated(plan):
        ranks = each_rank(case, plan, folder, act)
        if not plan.offloads_activations:  # what is on its way to the file is so for longer or shorter
            assert [pools for _, pools in ranks] == [[pools[0]] * 8 for _, pools in ranks], (
                "as much as a step"
            )
        return ranks[0][0]

    np.testing.assert_allclose(validated(plan), validated(Plan()), rtol=1e-12)
    np.testing.assert_allclose(validated(plan)[4:], expected.losses[:4], rtol=1e-12)


def test_no_byte_that_is_held_out_is_trained_on(tmp_path):
    text, held_out = bytes(range(1, 101)) * 90, bytes([200]) * 1000
    (tmp_path / "text").write_bytes(text + held_out)
    case = replace(EVALUATED, data=replace(TEXT.data, source=str(tmp_path / "text")))

    def act(trainer, _):
        seen = [trainer.batches.fill(step, 0)[0] for step in range(100)]
        trained_on = max(int(each.max()) for each in seen)
        return trained_on, trainer.validation.fill(0, 0)[0].min()

    assert each_rank(case, Plan(), tmp_path, act) == [(100, 200)]


def test_too_little_text_and_data_without_text_are_refused(tmp_path):
    (tmp_path / "text").write_bytes(b"a" * 17 * 16 * 9)
    find_corpus.cache_clear()
    data = replace(TEXT.data, source=str(tmp_path / "text"))
    check(data, TEXT.model, TEXT.train)
    with pytest.raises(UsageError, match="holds out 1/10, but a batch of 16 windows"):
        check(data, TEXT.model, EVALUATED.train)
    with pytest.raises(UsageError, match=r"train.evaluate needs data\.kind text"):
        check(replace(TEXT.data, kind="synthetic"), TEXT.model, EVALUATED.train)
