"""Runs of whole plans on threads, and what to compare them by."""

from collections import Counter
from dataclasses import replace

import numpy as np
from thread_mesh import run_ranks

from pscale.config import Case, Data, Model, Timing, Train
from pscale.data import prepare
from pscale.mesh.grid import axis_name, groups
from pscale.parallel import strategies
from pscale.worker.job import make_trainer, replica_spread
from pscale.worker.recorder import VERBS, Kind, Recorder
from pscale.worker.verify import assembled, outcome

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
    """Return losses, whole tensors by kind, layer and name, and how far replicas differ after STEPS steps.

    The tensors are the weights at the end and the gradients of the first step.
    """
    case = replace(case, ranks=plan.ranks, plan=plan)

    def one(mesh):
        batches = prepare(case.data, case.model, case.train, mesh.axis("dp", "ep"), folder)
        trainer = change(make_trainer(case, mesh, batches, Recorder([])))
        result = outcome(trainer, mesh)
        batches.close()
        return result, replica_spread(trainer.replicas, mesh)

    ranks = run_ranks(plan.sizes, one)
    tensors = {
        (kind, *name): whole
        for kind in ("weights", "gradients")
        for name, whole in assembled([part for result, _ in ranks for part in getattr(result, kind)]).items()
    }
    return ranks[0][0].losses, tensors, max(spread for _, spread in ranks)


def difference(found, expected):
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def largest_difference(found, expected):
    assert found.keys() == expected.keys()
    return max(difference(found[name], expected[name]) for name in expected)


def each_rank(case, plan, folder, act):
    """Return what `act(trainer)` gives on every rank; recorders know the axes and are off."""
    case = replace(case, ranks=plan.ranks, plan=plan)
    names = [axis_name(span) for span in groups(plan.sizes, strategies.GROUPS)]
    recorders = [Recorder(names) for _ in range(plan.ranks)]

    def one(mesh):
        batches = prepare(case.data, case.model, case.train, mesh.axis("dp", "ep"), folder)
        return act(make_trainer(case, mesh, batches, recorders[mesh.world.rank]))

    return run_ranks(plan.sizes, one, recorders)


def counted_calls(case, plan, folder):
    """Return how often every rank makes each (axis, verb, payload) in one step."""

    def step(trainer):
        recorder = trainer.recorder
        recorder.enabled = True
        trainer.step(0)
        rows = recorder.rows()
        made = np.isin(rows["kind"], (Kind.CALL, Kind.ROOT, Kind.POSTED))
        calls = zip(rows["axis"][made], rows["verb"][made], rows["bytes"][made], strict=True)
        return Counter((recorder.axes[axis], VERBS[verb], int(size)) for axis, verb, size in calls)

    return each_rank(case, plan, folder, step)


def predicted_calls(case, plan):
    """Return what `counted_calls` should."""
    case = replace(case, ranks=plan.ranks, plan=plan)
    counters = [Counter() for _ in range(plan.ranks)]
    for rank, counter in enumerate(counters):
        for call in strategies.calls(case, rank):
            counter[call.axis, call.verb, call.sent_bytes] += call.count
    return counters
