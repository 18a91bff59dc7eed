"""The parallel run is the serial run: the same global batch gives the same result under every plan."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from plans import BLOCK, LINEAR, TEXT, difference, largest_difference, train

from pscale.config import Plan
from pscale.mesh.solo import Solo
from pscale.parallel.reduction import AllReduce


@cache
def serial(case_name, folder):
    return train({"gpt": TEXT, "block": BLOCK, "linear": LINEAR}[case_name], Plan(), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("files")


@pytest.mark.parametrize("case", [TEXT, BLOCK, LINEAR], ids=lambda case: case.model.kind)
@pytest.mark.parametrize("dp", [2, 4, 8])
@pytest.mark.parametrize("reduction", ["bucketed", "all-reduce", "gather-broadcast"])
def test_losses_and_weights_do_not_depend_on_the_number_of_ranks(case, dp, reduction, folder):
    serial_losses, serial_weights, _ = serial(case.model.kind, folder)
    losses, weights, spread = train(case, Plan(dp=dp, reduction=reduction, bucket_bytes=20_000), folder)
    assert difference(losses, serial_losses) < 1e-12
    assert largest_difference(weights, serial_weights) < 1e-12
    assert spread == 0


@pytest.mark.parametrize("micro_batches", [2, 4])
def test_accumulating_micro_batches_gives_what_the_whole_batch_gives(micro_batches, folder):
    case = replace(TEXT, train=replace(TEXT.train, micro_batches=micro_batches))
    serial_losses, serial_weights, _ = serial("gpt", folder)
    losses, weights, _ = train(case, Plan(dp=2), folder)
    assert difference(losses, serial_losses) < 1e-12
    assert largest_difference(weights, serial_weights) < 1e-12


def test_training_makes_the_loss_fall(folder):
    losses, _, _ = serial("linear", folder)
    assert all(later < earlier for earlier, later in pairwise(losses))


def test_a_missing_reduction_is_caught(folder):
    def forget_to_reduce(trainer):
        for held in trainer.replicas._held:
            held.reduction = AllReduce(np.zeros(1), Solo(""))
        return trainer

    _, serial_weights, _ = serial("gpt", folder)
    _, weights, spread = train(TEXT, Plan(dp=2), folder, forget_to_reduce)
    assert largest_difference(weights, serial_weights) > 1e-6
    assert spread > 1e-6
