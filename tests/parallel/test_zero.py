"""Sharded replicas one at a time: what moves when, what stays, what a plan may ask for."""

import itertools
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from plans import each_rank

from pscale.config import Case, Data, Model, Plan, Timing, Train
from pscale.data import prepare
from pscale.mesh import nonblocking
from pscale.mesh.alone import EmulatedComm, SelfMesh, alone
from pscale.mesh.axis import Axis
from pscale.nn.param import Param
from pscale.parallel.shards import Shards
from pscale.parallel.strategies import check
from pscale.worker.job import make_trainer
from pscale.worker.recorder import Recorder

CASE = Case(
    suite="s",
    label="l",
    model=Model(kind="gpt", layers=3, width=192, heads=2, sequence=16, dtype="float64"),
    data=Data(kind="synthetic"),
    train=Train(batch=2, steps=6, warmup=0),
    timing=Timing(overhead_steps=0),
)
KEPT = {"zero": 3, "reshard_after_forward": False}


class Echo(Axis):
    """The first of two ranks, of which the other has the same; tells when exchanges start and end."""

    def __init__(self, log):
        super().__init__("dp", EmulatedComm((), ()), nonblocking.Recorder(), nonblocking.RequestQueue())
        self.size, self.log = 2, log

    def start_all_gather(self, x, out):
        if not np.shares_memory(x, out):
            out[: x.size] = x
        out[x.size :] = x
        return self._started("gather", out)

    def start_reduce_scatter(self, x, out):
        np.multiply(x[: out.size], 2, out=out)
        return self._started("reduce", x)

    def _started(self, verb, whole):
        self.log.append((f"start {verb}", whole.size))
        return Told(self.log, (f"end {verb}", whole.size))


class Told:
    def __init__(self, log, event):
        self.log, self.event = log, event

    def poll(self):
        return False

    def wait(self):
        self.log.append(self.event)


class EchoMesh(SelfMesh):
    def __init__(self):
        super().__init__()
        self.log = []
        self.sizes, self.coordinates = {"dp": 2}, {"dp": 0}

    def axis(self, *axes):
        return Echo(self.log) if "dp" in axes else alone("")


def trainer_of(tmp_path, micro_batches=1, **plan):
    mesh = EchoMesh()
    train = replace(CASE.train, batch=2 * micro_batches, micro_batches=micro_batches)
    case = replace(CASE, plan=Plan(dp=2, **plan), train=train)
    batches = prepare(case.data, case.model, replace(train, batch=2 * micro_batches), SelfMesh(), tmp_path)
    return make_trainer(case, mesh, batches, Recorder([])), mesh.log


def held(params, kind):
    return {getattr(param, kind).shape == param.shape for param in params}


def test_shards_cover_everything_once_and_are_equal():
    for size in range(1, 20):
        for parts in range(1, 9):
            layout = Shards(size=size, parts=parts)
            owned = [layout.owned(part) for part in range(parts)]
            assert [place for each in owned for place in range(size)[each]] == list(range(size))
            assert [layout.count(part) for part in range(parts)] == [each.stop - each.start for each in owned]
            assert layout.padded == parts * layout.shard >= size
            assert layout.padded - size < parts


@pytest.mark.parametrize("stage", [{"zero": 1}, {"zero": 2}, {"zero": 3}, KEPT], ids=str)
def test_a_steady_step_allocates_nothing_of_the_size_of_a_block(stage, tmp_path):
    trainer, log = trainer_of(tmp_path, micro_batches=2, **stage)
    for index in range(2):
        trainer.step(index)
    log.clear()
    tracemalloc.start()
    trainer.step(2)
    peaks = []
    for index in range(3, 6):  # what every step allocates, and not what the interpreter does now and then
        tracemalloc.clear_traces()
        trainer.step(index)
        peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    block = sum(param.size for param in trainer.stage.units[1].layer.params)
    assert min(peaks) < block * 8 / 4, f"{peaks} bytes"  # the norm's chunk is there for a moment


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_between_steps_only_shards_stay(stage, tmp_path):
    trainer, _ = trainer_of(tmp_path, zero=stage)
    params = [param for unit in trainer.stage.units for param in unit.layer.params]
    for index in range(2):
        assert held(params, "data") == {stage < 3}
        assert held(params, "grad") == {stage < 2}
        trainer.step(index)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_stays_of_all_units_lies_in_one_piece_of_memory_for_each_purpose(stage, tmp_path):
    trainer, _ = trainer_of(tmp_path, zero=stage)
    [group] = trainer.replicas._groups
    pieces = group.pieces
    assert len(pieces) == len(trainer.stage.units)
    weights, gradients = ([getattr(each, kind).own for each in pieces] for kind in ("weights", "gradients"))
    moments = group.optimizer.state
    for arrays in (weights, gradients, moments[: len(pieces)], moments[len(pieces) :]):
        assert len({id(array.base) for array in arrays}) == 1


def logged(trainer, log):
    """Return what starts, ends and runs in the second step, by number of the unit."""
    sizes = {}
    for number, unit in enumerate(trainer.stage.units):
        size = sum(param.size for param in unit.layer.params)
        sizes.setdefault(size + size % 2, number)
        for verb in ("forward", "backward"):
            run = getattr(unit.layer, verb)

            def told(*arguments, run=run, event=(verb, size + size % 2)):
                log.append(event)
                return run(*arguments)

            setattr(unit.layer, verb, told)
    trainer.step(0)
    log.clear()
    trainer.step(1)
    return log


def test_the_next_unit_is_fetched_while_one_computes(tmp_path):
    trainer, log = trainer_of(tmp_path, zero=3)
    events = [verb for verb, _ in logged(trainer, log)]
    units = len(trainer.stage.units)
    runs = [place for place, verb in enumerate(events) if verb in ("forward", "backward")]
    assert len(runs) == 2 * units
    for number, place in enumerate(runs):
        started, ended = (events[:place].count(f"{when} gather") for when in ("start", "end"))
        # The last unit is used twice in a row: it is gathered again when its forward is done.
        ahead = number not in (units - 1, 2 * units - 1)
        assert (started, ended) == (number + 1 + ahead, number + 1)


def test_the_gradients_of_a_unit_travel_while_the_next_runs_backward(tmp_path):
    trainer, log = trainer_of(tmp_path, zero=2)
    events = [
        verb for verb, _ in logged(trainer, log) if verb not in ("start gather", "end gather", "forward")
    ]
    one = ["start reduce", "backward", "end reduce"]
    assert events == ["backward", *one * (len(trainer.stage.units) - 1), "start reduce", "end reduce"]


def test_a_unit_that_is_kept_is_gathered_once_while_any_micro_batch_needs_it(tmp_path):
    trainer, log = trainer_of(tmp_path, **KEPT)
    replicas = trainer.replicas
    log.clear()
    for _ in range(2):  # two forwards before any backward, as in a pipeline
        replicas.gather(0)
        replicas.release(0)
    for last in (False, True):
        replicas.gather(0)
        replicas.drop(0)
        replicas.ready(0, last=last)
    assert [verb for verb, _ in log if "gather" in verb] == ["start gather", "end gather"]


def test_another_order_of_units_is_learned_and_fetched_memory_given_back(tmp_path):
    trainer, log = trainer_of(tmp_path, zero=3)
    replicas = trainer.replicas
    for order in ((0, 1, 2), (0, 2, 1), (0, 2, 1), (0,), (0,)):
        log.clear()
        replicas.start_step()
        for unit in order:
            replicas.gather(unit)
            assert held(trainer.stage.units[unit].layer.params, "data") == {True}
            replicas.release(unit)
        replicas.finish()
        for unit in trainer.stage.units:
            assert held(unit.layer.params, "data") == {False}
    assert [verb for verb, _ in log] == ["start gather", "end gather"]


def plan_of(**plan):
    made = Plan(**plan)
    return Case(suite="s", label="l", ranks=made.ranks, plan=made, train=Train(batch=24))


@pytest.mark.parametrize(
    "plan", [{"zero": 3}, {"dp": 4, "shard": 4, "zero": 1}, {"dp": 2, "shard": 2, "zero": 3}]
)
def test_a_single_set_of_shards_or_a_single_rank_are_fine(plan):
    check(plan_of(**plan))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_every_rank_begins_with_the_weights_that_the_first_drew(stage, tmp_path, monkeypatch):
    draws = itertools.count(1)
    monkeypatch.setattr(Param, "initial", lambda param, _: np.full(param.shape, float(next(draws))))

    def one(trainer, _):
        return [set(value.ravel().tolist()) for _, value in trainer.replicas.weights()]

    first, other = each_rank(CASE, Plan(dp=2, zero=stage), tmp_path, one)
    assert first == other
    assert {len(values) for values in first} == {1}
