"""The parallel run is the serial run: the same global batch gives the same result under every plan."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from thread_mesh import run_ranks

from pscale.config import Case, Data, Model, Plan, Timing, Train
from pscale.data import prepare
from pscale.mesh.solo import Solo
from pscale.parallel.reduction import AllReduce
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
    # The bias of the keys has no gradient but rounding, which a small epsilon would blow up to a weight.
    train=replace(TEXT.train, epsilon=1e-6),
)
LINEAR = replace(
    TEXT,
    model=Model(kind="linear", layers=0, width=5, heads=1, sequence=1, vocabulary=0, dtype="float64"),
    data=Data(kind="linear", samples=400),
    train=Train(batch=400, steps=STEPS, warmup=0, optimizer="sgd", lr=0.3, clip=None),
)


def as_it_is(trainer):
    return trainer


def train(case, plan, folder, change=as_it_is):
    """Return losses, whole weights by layer and name, and how far replicas differ after STEPS steps."""
    case = replace(case, ranks=plan.ranks, plan=plan)

    def one(mesh):
        batches = prepare(case.data, case.model, case.train, mesh.axis("dp", "ep"), folder)
        trainer = change(make_trainer(case, mesh, batches, Recorder([])))
        for step in range(STEPS):
            trainer.step(step)
        batches.close()
        losses = trainer.losses.copy()
        mesh.world.all_reduce(losses)
        parts = [(param, value.copy()) for param, value in trainer.replicas.weights()]
        return losses, parts, replica_spread(trainer.replicas, mesh)

    ranks = run_ranks(plan.sizes, one)
    return ranks[0][0], assembled([parts for _, parts, _ in ranks]), max(spread for _, _, spread in ranks)


def assembled(ranks):
    """Put the parts of all ranks together: every element of every whole weight is held by some rank."""
    wholes = {}
    for parts in ranks:
        for param, value in parts:
            shape = param.cut.whole if param.cut else param.shape
            whole = wholes.setdefault((param.layer, param.name), np.full(shape, np.nan))
            if param.cut:
                param.cut.put(value, whole)
            else:
                whole[...] = value
    return wholes


@cache
def serial(case_name, folder):
    return train({"gpt": TEXT, "block": BLOCK, "linear": LINEAR}[case_name], Plan(), folder)


def difference(found, expected):
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def largest_difference(found, expected):
    assert found.keys() == expected.keys()
    return max(difference(found[name], expected[name]) for name in expected)


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
