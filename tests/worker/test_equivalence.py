"""The parallel run is the serial run: the same global batch gives the same result on any number of ranks."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from thread_mesh import run_ranks

from pscale.config import Case, Data, Model, Plan, Timing, Train
from pscale.data import prepare
from pscale.parallel.data import AllReduce
from pscale.worker.job import make_trainer, replica_spread
from pscale.worker.recorder import Recorder

STEPS = 10
TEXT = Case(
    suite="s",
    label="l",
    model=Model(layers=2, width=32, heads=4, sequence=16, dtype="float64"),
    train=Train(batch=16, steps=STEPS, warmup=0, lr=1e-2, clip=0.5),
    timing=Timing(overhead_steps=0),
)
BLOCK = replace(
    TEXT,
    model=Model(kind="block", layers=1, width=16, heads=2, sequence=8, vocabulary=0, dtype="float64"),
    data=Data(kind="synthetic"),
)
LINEAR = replace(
    TEXT,
    model=Model(kind="linear", layers=0, width=5, heads=1, sequence=1, vocabulary=0, dtype="float64"),
    data=Data(kind="linear", samples=400),
    train=Train(batch=400, steps=STEPS, warmup=0, optimizer="sgd", lr=0.3, clip=None),
)


def as_it_is(trainer, _axis):
    return trainer


def train(case, dp, tmp_path, change=as_it_is):
    """Return losses, final weights and how far replicas differ after STEPS steps on `dp` ranks."""
    case = replace(case, ranks=dp, plan=replace(case.plan, dp=dp))

    def one(mesh):
        axis = mesh.axis("dp")
        batches = prepare(case.data, case.model, case.train, axis, tmp_path)
        trainer = change(make_trainer(case, axis, batches, Recorder(["dp"])), axis)
        for step in range(STEPS):
            trainer.step(step)
        batches.close()
        losses = trainer.losses.copy()
        mesh.world.all_reduce(losses)
        return losses, trainer.stage.arena.data.copy(), replica_spread(trainer.stage, axis)

    return run_ranks(dp, one)[0]


def difference(found, expected):
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("case", [TEXT, BLOCK, LINEAR], ids=lambda case: case.model.kind)
@pytest.mark.parametrize("dp", [2, 4, 8])
@pytest.mark.parametrize("reduction", ["bucketed", "all-reduce", "gather-broadcast"])
def test_losses_and_weights_do_not_depend_on_the_number_of_ranks(case, dp, reduction, tmp_path):
    case = replace(case, plan=Plan(reduction=reduction, bucket_bytes=20_000))
    serial_losses, serial_weights, _ = train(case, 1, tmp_path)
    losses, weights, spread = train(case, dp, tmp_path)
    assert difference(losses, serial_losses) < 1e-12
    assert difference(weights, serial_weights) < 1e-12
    assert spread == 0


@pytest.mark.parametrize("micro_batches", [2, 4])
def test_accumulating_micro_batches_gives_what_the_whole_batch_gives(micro_batches, tmp_path):
    case = replace(TEXT, train=replace(TEXT.train, micro_batches=micro_batches))
    serial_losses, serial_weights, _ = train(TEXT, 1, tmp_path)
    losses, weights, _ = train(case, 2, tmp_path)
    assert difference(losses, serial_losses) < 1e-12
    assert difference(weights, serial_weights) < 1e-12


def test_training_makes_the_loss_fall(tmp_path):
    losses, _, _ = train(LINEAR, 1, tmp_path)
    assert all(later < earlier for earlier, later in pairwise(losses))


def test_a_missing_reduction_is_caught(tmp_path):
    def forget_to_reduce(trainer, axis):
        return replace(trainer, replicas=AllReduce(np.zeros(1), axis))

    _, serial_weights, _ = train(TEXT, 1, tmp_path)
    _, weights, spread = train(TEXT, 2, tmp_path, forget_to_reduce)
    assert difference(weights, serial_weights) > 1e-6
    assert spread > 1e-6
