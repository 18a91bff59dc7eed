"""The parallel run is the serial run: the same global batch gives the same result under every plan."""

from itertools import pairwise

import pytest
from plans import BLOCK, LINEAR, TEXT, assert_is_serial, on_plan, serial

from pscale.config import Plan


@pytest.mark.parametrize("case", [TEXT, BLOCK, LINEAR], ids=lambda case: case.model.kind)
@pytest.mark.parametrize("dp", [2, 4, 8])
@pytest.mark.parametrize("reduction", ["bucketed", "all-reduce", "gather-broadcast"])
def test_losses_and_weights_do_not_depend_on_the_number_of_ranks(case, dp, reduction, folder):
    assert_is_serial(case, Plan(dp=dp, reduction=reduction, bucket_bytes=20_000), folder)


@pytest.mark.parametrize("micro_batches", [2, 4])
def test_accumulating_micro_batches_gives_what_the_whole_batch_gives(micro_batches, folder):
    assert_is_serial(on_plan(TEXT, Plan(dp=2), micro_batches), Plan(dp=2), folder)


def test_training_makes_the_loss_fall(folder):
    assert all(later < earlier for earlier, later in pairwise(serial(LINEAR, folder).losses))
