"""What `verify` says of a case on threads, with all that it counts."""

import json
from dataclasses import replace

import pytest
from plans import TEXT, name, on_plan
from thread_mesh import run_ranks

from pscale.config import Evaluate, Plan, Save
from pscale.mesh.grid import axis_name, groups
from pscale.nn.offload.storage import Storage
from pscale.parallel.ranks import GROUPS
from pscale.parallel.zero import ParameterGroup
from pscale.training.trainer import Trainer
from pscale.worker.job import JobSpec
from pscale.worker.recorder import Recorder
from pscale.worker.verify import rounding, verify


def verified(case, folder):
    """Return what rank 0 leaves of a case on threads."""
    names = [axis_name(span) for span in groups(case.plan.sizes, GROUPS)]
    recorders = [Recorder(names) for _ in range(case.ranks)]
    spec = JobSpec(case=case, task="verify", repeat=0, folder=folder, data=folder, launched_unix_s=0.0)
    run_ranks(case.plan.sizes, lambda mesh: verify(spec, mesh, recorders[mesh.world.rank]), recorders)
    return json.loads((folder / "result.json").read_text())["verified"]


def text(plan, micro_batches=1, **data):
    case = replace(TEXT, data=replace(TEXT.data, **data), train=replace(TEXT.train, steps=3))
    return on_plan(case, plan, micro_batches)


@pytest.mark.parametrize("loading", ["memory", "scatter", "mpi-io", "files"])
@pytest.mark.parametrize(
    ("plan", "micro_batches"),
    [(Plan(dp=2), 1), (Plan(dp=2, pp=2, schedule="zero-bubble"), 2), (Plan(dp=2, tp=2, zero=3), 2)],
    ids=name,
)
def test_every_way_of_loading_moves_what_was_predicted_and_trains_on_the_same(
    plan, micro_batches, loading, tmp_path
):
    found = verified(text(plan, micro_batches, loading=loading), tmp_path)
    assert found["passed"], found
    assert any(verb == "scatter" for _, _, verb, *_ in found["counted"]) == (loading == "scatter")


@pytest.mark.parametrize(
    ("plan", "dtype"),
    [(Plan(dp=2, zero=1), "float64"), (Plan(dp=2, tp=2, zero=3), "float64"), (Plan(dp=2), "bf16")],
    ids=name,
)
def test_a_plan_goes_on_from_its_own_state_and_from_that_of_one_rank(plan, dtype, tmp_path):
    case = saving(plan, dtype)
    found = verified(case, tmp_path)
    assert found["passed"], found
    errors = dict(found["errors"]["resumed"])
    assert errors["same plan"] == 0
    assert len(errors) == (3 if dtype == "float64" else 1)
    assert {verb for _, verb, _ in found["files"]["counted"]} == {"save", "load"}
    assert any(axis.startswith("load: ") for _, axis, *_ in found["counted"])


@pytest.mark.parametrize(
    ("plan", "micro_batches"),
    [(Plan(dp=2, tp=2, zero=3, sp=True), 2), (Plan(pp=2, schedule="zero-bubble", cp=2), 2)],
    ids=name,
)
def test_an_evaluation_makes_the_calls_that_were_predicted_and_finds_the_serial_loss(
    plan, micro_batches, tmp_path
):
    case = text(plan, micro_batches)
    case = replace(case, train=replace(case.train, evaluate=Evaluate(every=2, batches=3)))
    found = verified(case, tmp_path)
    assert found["passed"], found
    assert any(axis.startswith("evaluation: ") for _, axis, *_ in found["counted"])


def saving(plan, dtype="float64"):
    case = text(plan)
    train = replace(case.train, steps=4, save=Save(every=2))
    return replace(case, train=train, model=replace(case.model, dtype=dtype))


def test_a_state_without_one_moment_is_found(tmp_path, monkeypatch):
    state = ParameterGroup.state

    def lacking(self, **changes):
        return (each for each in state(self, **changes) if not each.tensor.name.endswith(":1"))

    monkeypatch.setattr(ParameterGroup, "state", lacking)
    found = verified(saving(Plan(dp=2)), tmp_path)
    assert not found["passed"]
    assert found["errors"]["resumed"][0][0] == "same plan"
    assert min(error for _, error in found["errors"]["resumed"]) > found["limits"]["resumed"]


def test_one_call_more_in_one_of_all_steps_is_found(tmp_path, monkeypatch):
    update = Trainer.update

    def calling_once(self, index):
        if index == 1:
            self.boundary._axis.barrier()
        update(self, index)

    monkeypatch.setattr(Trainer, "update", calling_once)
    found = verified(text(Plan(pp=2)), tmp_path)
    assert not found["passed"]
    assert [row for row in found["counted"] if row not in found["predicted"]] == [
        [rank, "pp", "barrier", 1 / 3, 0] for rank in range(2)
    ]


def test_what_is_offloaded_leaves_no_file_open(tmp_path, monkeypatch):
    closed, close = [], Storage.close
    monkeypatch.setattr(Storage, "close", lambda self: (closed.append(self), close(self)))
    assert verified(text(Plan(dp=2, offload="optimizer")), tmp_path)["passed"]
    assert len(set(map(id, closed))) == 2


def test_rounding_that_steps_blow_up_is_told_from_a_small_mistake(tmp_path, monkeypatch):
    """Adam makes lr / epsilon times as much of it where a gradient is near zero, also on one rank."""
    steep = text(Plan(dp=4))
    steep = replace(steep, train=replace(steep.train, lr=0.05, epsilon=1e-7, clip=None))
    found = verified(steep, tmp_path)
    (_, weight), limits = found["errors"]["weight"][0], found["limits"]
    assert limits["gradient"] == rounding(steep) < 1e-12
    assert rounding(steep) < weight < limits["weight"] < 1e-9
    assert found["passed"]
    update = Trainer.update

    def wrong_by_a_millionth(self, index):
        rate = self.train.lr * (1 + 1e-6 * (self.sharing > 1 and index == 2))
        update(replace(self, train=replace(self.train, lr=rate)), index)

    monkeypatch.setattr(Trainer, "update", wrong_by_a_millionth)
    assert not verified(steep, tmp_path)["passed"]
