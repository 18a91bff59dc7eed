"""Under a real MPI: ranks that share sequences train as one that has them whole, by the calls predicted."""

from dataclasses import replace

import numpy as np
import pytest
from jobs import counted, launch, predicted
from plans import TEXT, difference, train

from pscale.config import Launch, Plan, Timing

CASE = replace(
    TEXT,
    model=replace(TEXT.model, sequence=144),  # more tokens on a rank than a block of queries has
    train=replace(TEXT.train, batch=4, epsilon=1e-6, micro_batches=2),
    timing=Timing(gemm_peak=False, overhead_steps=0),
    launch=Launch(oversubscribe=True, bind="none"),
)
PLANS = [
    Plan(cp=4),
    Plan(cp=4, context="ulysses"),
    Plan(cp=2, dp=2, context="all-gather", placement="contiguous"),
    Plan(cp=2, tp=2),
]


@pytest.fixture(scope="module")
def serial_losses(tmp_path_factory):
    return train(CASE, Plan(), tmp_path_factory.mktemp("serial"))[0]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_shared_sequences_give_the_losses_of_whole_ones_and_the_calls_predicted(
    plan, tmp_path, serial_losses
):
    case = replace(CASE, ranks=plan.ranks, plan=plan)
    columns, rows = launch(case, tmp_path)
    assert difference(np.array(columns["losses"]), serial_losses) < 1e-12
    assert counted(rows) == predicted(case)
