"""Runs of whole plans on threads, and what to compare them by."""

import json
import math
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from dry_runs import predicted_program, recorded_program
from thread_mesh import run_ranks

from pscale.config import Case, Data, Model, Plan, Timing, Train
from pscale.data import prepare
from pscale.mesh.grid import axis_name, groups
from pscale.nn.kernels import reference
from pscale.parallel.ranks import GROUPS
from pscale.runs.schema import VERBS, Kind
from pscale.training.dry_run import state_use, step_calls
from pscale.worker.job import loss_spread, make_trainer, replica_spread
from pscale.worker.recorder import Recorder
from pscale.worker.verify import assembled, free_routing, on_one_rank, outcome

STEPS = 10
TEXT = Case(
    suite="s",
    label="l",
    model=Model(layers=2, width=32, heads=4, sequence=16, dtype="float64"),
    data=Data(source=str(Path(json.__file__).parent / "*.py")),  # soon read
    # What has no gradient but rounding, as the bias of the keys, a small epsilon would blow up to a weight:
    # by lr / epsilon, on some processors more than on others.
    train=Train(batch=16, steps=STEPS, warmup=0, lr=1e-2, clip=0.5, epsilon=1e-4),
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


def as_it_is(trainer):
    return trainer


class Run(NamedTuple):
    """What a program of STEPS steps gives; the tensors are first gradients and last weights, whole."""

    losses: np.ndarray
    tensors: dict  # by kind, layer and name
    spread: float  # of replicas, and of losses on ranks that compute the same
    counted: list[Counter]  # by rank: (axis, verb, payload) of a step
    memory: list[dict]  # by rank: bytes of model state and its exchange
    programs: list[list]  # by rank: what it did in the second step, in order


def on_plan(case, plan, micro_batches=None):
    train = case.train if micro_batches is None else replace(case.train, micro_batches=micro_batches)
    return replace(case, ranks=plan.ranks, plan=plan, train=train)


def train(case, plan, folder, change=as_it_is, routing=lambda *_: free_routing):
    """Run all steps on threads, with what `change` makes of every rank's trainer.

    `routing`, of case and mesh, watches or makes the choices of the first step's experts.
    """

    def one(trainer, mesh):
        result = outcome(trainer, mesh, routing(on_plan(case, plan), mesh))
        calls = counted(trainer.recorder, case.train.steps)
        spread = replica_spread(trainer.replicas, mesh), loss_spread(trainer, case.train.steps, mesh)
        program = recorded_program(trainer.recorder, plan, mesh.world.rank)
        return result, calls, trainer.replicas.memory_bytes(), program, max(spread)

    ranks = each_rank(case, plan, folder, lambda trainer, mesh: one(change(trainer), mesh), record=True)
    tensors = {
        (kind, *name): whole
        for kind in ("weights", "gradients")
        for name, whole in assembled([part for result, *_ in ranks for part in getattr(result, kind)]).items()
    }
    return Run(
        losses=ranks[0][0].losses,
        tensors=tensors,
        spread=max(spread for *_, spread in ranks),
        counted=[calls for _, calls, *_ in ranks],
        memory=[memory for _, _, memory, *_ in ranks],
        programs=[program for *_, program, _ in ranks],
    )


_SERIAL = {}


def serial(case, folder):
    """Return the run on one rank, of the whole batch at once; each is done once."""
    whole = on_plan(on_one_rank(case), Plan(), micro_batches=1)
    if whole.id not in _SERIAL:
        _SERIAL[whole.id] = train(whole, whole.plan, folder)
    return _SERIAL[whole.id]


def assert_is_serial(case, plan, folder, limit=1e-12):
    """Run the plan: the results are the serial ones, and what it calls and holds is what was predicted."""
    run, expected = train(case, plan, folder), serial(case, folder)
    assert difference(run.losses, expected.losses) <= limit
    assert largest_difference(run.tensors, expected.tensors) <= limit
    assert run.spread == 0
    assert run.counted == predicted_calls(case, plan)
    assert run.memory == predicted_state(case, plan)
    assert run.programs == predicted_programs(case, plan)


def error_of(case, plan, folder, change=as_it_is):
    """Return how far a run with a mistake is from the serial one, and its replicas from each other."""
    run = train(case, plan, folder, change)
    return largest_difference(run.tensors, serial(case, folder).tensors), run.spread


def difference(found, expected):
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def largest_difference(found, expected):
    assert found.keys() == expected.keys()
    return max(difference(found[name], expected[name]) for name in expected)


def each_rank(case, plan, folder, act, *, record=False):
    """Return what `act(trainer, mesh)` gives on every rank; recorders know the axes."""
    case = on_plan(case, plan)
    names = [axis_name(span) for span in groups(plan.sizes, GROUPS)]
    recorders = [Recorder(names) for _ in range(plan.ranks)]

    def one(mesh):
        batches = prepare(case.data, case.model, case.train, mesh, folder)
        recorder = recorders[mesh.world.rank]
        trainer = make_trainer(case, mesh, batches, recorder)
        recorder.clear()
        recorder.enabled = record
        result = act(trainer, mesh)
        batches.close()
        return result

    return run_ranks(plan.sizes, one, recorders)


def counted(recorder, steps):
    """Return how often a rank makes each (axis, verb, payload) in a step."""
    rows = recorder.rows()
    made = np.isin(rows["kind"], (Kind.CALL, Kind.ROOT, Kind.POSTED)) & (rows["step"] < steps)
    calls = zip(rows["axis"][made], rows["verb"][made], rows["bytes"][made], strict=True)
    counts = Counter((recorder.axes[axis], VERBS[verb], int(size)) for axis, verb, size in calls)
    assert all(count % steps == 0 for count in counts.values()), "every step makes the same calls"
    return Counter({call: count // steps for call, count in counts.items()})


def counted_calls(case, plan, folder):
    """Return how often every rank makes each (axis, verb, payload) in one step."""

    def step(trainer, _):
        trainer.step(0)
        return counted(trainer.recorder, 1)

    return each_rank(case, plan, folder, step, record=True)


def predicted_calls(case, plan):
    """Return what `counted_calls` should."""
    counters = [Counter() for _ in range(plan.ranks)]
    for rank, counter in enumerate(counters):
        for call in step_calls(on_plan(case, plan), rank):
            counter[call.axis, call.verb, call.sent_bytes] += call.count
    return counters


def predicted_programs(case, plan):
    """Return what every rank does in a step, in order."""
    return [predicted_program(on_plan(case, plan), rank) for rank in range(plan.ranks)]


def predicted_state(case, plan):
    """Return what `memory_bytes` of every rank's replicas should."""
    return [state_use(on_plan(case, plan), rank).memory_bytes for rank in range(plan.ranks)]


def most_kept(case, plan, folder):
    """Return what every rank keeps between a forward of all its units and backward."""

    def forward(trainer, _):
        return held_after_forward(trainer.stage, *trainer.batches.fill(0, 0))

    return each_rank(case, plan, folder, forward)


def held_after_forward(stage, x, targets):
    """Return what the pool of a stage holds between forward of all its units and backward."""
    caches = []
    for unit in stage.units:
        x, cache = unit.layer.forward(x)
        caches.append(cache)
    caches.append(stage.loss.forward(x, targets, 1.0))
    return stage.buffers.held_bytes


def product_flops(model, a, product):
    """Return the FLOPs of a product, without the column of sums that attention may have beside a head."""
    inner, columns = (
        size - (not model.keeps_scores and size == model.width // model.heads + 1)
        for size in (a.shape[-1], product.shape[-1])
    )
    return 2 * math.prod(product.shape[:-1]) * columns * inner


def multiplied(case, plan, folder):
    """Return the FLOPs of the products of matrices in one step of all ranks."""
    multiply, lock, total = np.matmul, threading.Lock(), 0

    def counting(a, b, out=None):
        nonlocal total
        result = multiply(a, b, out=out)
        if a.ndim > 1 and b.ndim > 1:
            with lock:
                total += product_flops(case.model, a, result)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "matmul", counting)
        patch.setattr(reference, "add_product", lambda *_: False)
        each_rank(case, plan, folder, lambda trainer, _: trainer.step(0))
    return total


def name(value):
    """Return an id: of a plan what it does not leave as it is, of a case its kind of model."""
    if isinstance(value, Case):
        return value.model.kind
    if not isinstance(value, Plan):
        return str(value)
    changed = {key: each for key, each in vars(value).items() if each != getattr(Plan(), key)}
    return " ".join(f"{key}={each}" for key, each in changed.items()) or "serial"
