"""The training loop of one rank: what a step is, and nothing of how it is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pscale.config import Case, Train
from pscale.config.axes import BATCH_AXES
from pscale.data import Batches
from pscale.data.batches import sequence_share
from pscale.mesh.axis import Mesh
from pscale.nn.dtypes import dtype_of
from pscale.nn.offload.activations import ActivationOffloader
from pscale.nn.offload.storage import Storage
from pscale.nn.optimizers import learning_rate
from pscale.parallel import saved_state
from pscale.parallel.context.form import layout_of
from pscale.parallel.pipeline import Boundary, activation_shape, timetable
from pscale.parallel.schedule import Action
from pscale.parallel.zero import Replicas
from pscale.runs.tensor_files import TensorFolder
from pscale.training.build import Passes, Stage, build, paused
from pscale.training.step_records import ExpertLoad, LossScaling


class Recorder(Protocol):
    """Told of every step and phase."""

    def step(self, index: int) -> AbstractContextManager[Any]:
        """Return the block of code that makes up step `index`."""
        ...

    def phase(self, name: str, action: Action | None = None) -> AbstractContextManager[Any]:
        """Return the block of code that makes up a phase, or one action's part of it; phases do not nest."""
        ...


R = TypeVar("R", bound=Recorder)


@dataclass(frozen=True, kw_only=True)
class Trainer(Generic[R]):
    """One rank's part of the job. `losses` holds this rank's share of every step's loss."""

    stage: Stage
    boundary: Boundary
    batches: Batches
    replicas: Replicas
    recorder: R
    train: Train
    target_weight: float  # 1 / tokens of the global batch, so that sums over ranks are means over tokens
    sharing: int  # replicas that share the batch
    place: int  # of this one among them
    losses: NDArray[np.float64]
    expert_load: ExpertLoad
    loss_scaling: LossScaling
    offloader: ActivationOffloader  # of what blocks keep for backward
    storage: Storage | None = None  # of what is offloaded
    validation: Batches | None = None  # that are evaluated
    start: int = 0  # steps of the training before the first of this job
    under_way: dict[tuple[int, int], list[Any]] = field(default_factory=dict)  # by micro-batch and part

    def step(self, index: int, meet: Callable[[], None] | None = None) -> None:
        """Run one optimizer step on this rank's samples of global batch `index`; last of all, `meet`."""
        with self.recorder.step(index), self.loss_scaling.tolerating():
            self.forward_backward(index)
            self.update(index)
            if meet is not None:
                with self.recorder.phase("update"):
                    meet()

    def save(self, case: Case, mesh: Mesh, folder: Path, index: int) -> tuple[Path, int]:
        """Save the state after step `index` in a folder; return where, and this rank's bytes. Collective."""
        facts = saved_state.facts_of(case, self.replicas, self.start + index + 1)
        facts["loss_scale"] = self.loss_scaling.state
        return saved_state.save(self.replicas, mesh, folder, facts)

    def load(self, mesh: Mesh, state: TensorFolder, *, broadcast: bool = False) -> dict[str, float]:
        """Replace the state by a saved one, which one rank reads for all if `broadcast`. Collective."""
        self.loss_scaling.state = state.facts["loss_scale"]
        return saved_state.load(self.replicas, mesh, state, broadcast=broadcast)

    def forward_backward(self, index: int) -> None:
        """Bring the gradients of global batch `index` together, at the scale of the loss."""
        self.loss_scaling.begin(index)
        self.stage.draws.seed, self.stage.draws.step = self.train.seed, self.start + index
        self.replicas.start_step()
        self.boundary.start_step()
        for action in self.boundary.actions:
            self._act(index, action)
        with self.recorder.phase("backward"):
            self.boundary.finish()
        with self.recorder.phase("sync"):
            self.replicas.finish()
        self.losses[index] += self.expert_load.note(index)

    def evaluate(self) -> float:
        """Return this rank's share of the loss of all validation batches; no weight changes. Collective."""
        forwards = [action for action in self.boundary.actions if action.kind == "forward"]
        count = self.train.evaluate.batches
        with self.replicas.forward_alone(), paused(*self.stage.routers, self.stage.draws):
            return sum(self._validation_loss(batch, forwards) for batch in range(count)) / count

    def _validation_loss(self, batch: int, forwards: Sequence[Action]) -> float:
        edge, loss, nothing = self.boundary, 0.0, ActivationOffloader(self.stage.buffers, None)
        passes = Passes(stage=self.stage, replicas=self.replicas, offloader=nothing)
        assert self.validation is not None
        sending = []
        for action in forwards:
            inputs, targets = self.validation.fill(batch, action.micro)
            x = edge.receive_copy(action) if edge.receives(action) else inputs
            x = passes.forward(action.part, x)[0]  # what it keeps for backward is gone at once
            if edge.sends(action):
                sending.append(edge.send_copy(action, x))
            else:
                loss += self.stage.loss.forward(x, targets, self.target_weight)[0]
        for pending in sending:
            pending.wait()
        return loss

    def update(self, index: int) -> None:
        """Clip by the norm of the whole model's gradient and do the optimizer's step; none after overflow."""
        with self.recorder.phase("update"):
            factor, scale, clip = 1.0, self.loss_scaling.value, self.train.clip
            if clip is not None or self.loss_scaling.watched:
                norm = math.sqrt(self.replicas.square_norm()) / scale
                if not self.loss_scaling.accepts(index, norm):
                    return
                factor = min(1.0, clip / norm) if clip is not None and norm else 1.0
            self.replicas.update(learning_rate(self.train, index + self.start, self.sharing), factor / scale)

    def _act(self, index: int, action: Action) -> None:
        sequences = self.train.batch // self.sharing
        self.stage.draws.first = self.place * sequences + action.micro * sequences // self.train.micro_batches
        match action.kind:
            case "forward":
                self._forward(index, action)
            case "backward" | "input":
                with self.recorder.phase("backward", action):
                    self._backward(action)
            case "weight":
                with self.recorder.phase("backward", action):
                    self._weight_gradients(action)

    def _forward(self, index: int, action: Action) -> None:
        """Take the data or what the stage before has sent; end in the loss or at the next stage."""
        edge = self.boundary
        first, last = not edge.receives(action), not edge.sends(action)
        if first or last:
            with self.recorder.phase("data", action):
                inputs, targets = self.batches.fill(index + self.start, action.micro)
        with self.recorder.phase("forward", action):
            x = inputs if first else edge.receive(action)
            x, caches = self._passes.forward(action.part, x)
            if last:
                scale = self.loss_scaling.value
                value, gradient = self.stage.loss.forward(x, targets, self.target_weight * scale)
                self.losses[index] += value / scale
                caches.insert(0, gradient)
            else:
                edge.send(action, x)
        self.under_way[action.micro, action.part] = caches

    def _backward(self, action: Action) -> None:
        """Find the gradients; tell the replicas of every unit, unless products for it are deferred."""
        edge, caches = self.boundary, self.under_way.pop((action.micro, action.part))
        self.offloader.begin(caches)
        deferred = []

        def done(number: int) -> None:
            if action.kind == "backward":
                self.replicas.ready(number, last=self._is_last(action))
            else:
                deferred.append((number, self.stage.deferred[:]))
                self.stage.deferred.clear()

        # No name here, which would hold its memory: the gradient of logits is the largest array.
        dx = self._passes.backward(
            action.part, edge.receive(action) if edge.receives(action) else caches.pop(0), caches, done
        )
        if dx is not None:
            edge.send(action, dx)
        if deferred:
            self.under_way[action.micro, action.part] = deferred

    def _weight_gradients(self, action: Action) -> None:
        """Do the products for gradients of weights that the backward of the same part has deferred."""
        for unit, products in self.under_way.pop((action.micro, action.part)):
            for multiply in products:
                multiply()
            self.replicas.ready(unit, last=self._is_last(action))

    @property
    def _passes(self) -> Passes:
        return Passes(stage=self.stage, replicas=self.replicas, offloader=self.offloader)

    def _is_last(self, action: Action) -> bool:
        return action.micro == self.train.micro_batches - 1


def assemble(
    case: Case,
    mesh: Mesh,
    batches: Batches,
    recorder: R,
    storage: Storage | None = None,
    *,
    start: int = 0,
    validation: Batches | None = None,
) -> Trainer[R]:
    """Build this rank's trainer, its weights without values, to go on after `start` steps.

    `storage` is for what the plan offloads, `validation` what is evaluated.
    """
    stage, train, plan = build(case.model, case.plan, mesh, case.train.batch), case.train, case.plan
    layout = layout_of(case.model, plan)
    runs = layout.runs(mesh.axis("cp").rank)
    steps = train.warmup + train.steps + 2 * case.timing.overhead_steps + 1  # the last profiles kernels
    boundary = Boundary(
        mesh.axis("pp"),
        timetable(plan, train.micro_batches),
        activation_shape(case.model, plan, train.batch // plan.batch_parts // train.micro_batches),
        dtype=dtype_of(case.model.dtype),
        buffers=stage.buffers,
    )
    return Trainer(
        stage=stage,
        boundary=boundary,
        batches=sequence_share(batches, runs, layout.sequence),
        validation=validation and sequence_share(validation, runs, layout.sequence),
        replicas=Replicas([unit.layer.params for unit in stage.units], mesh, case, storage),
        storage=storage,
        offloader=ActivationOffloader(stage.buffers, storage if plan.offloads_activations else None),
        recorder=recorder,
        train=replace(train, warmup=start + train.warmup),  # as learning rates see it
        start=start,
        target_weight=1 / (train.batch * case.model.sequence),
        sharing=plan.batch_parts,
        place=mesh.axis(*BATCH_AXES).rank,
        losses=np.zeros(steps),
        expert_load=ExpertLoad(stage.routers, case.model, steps, copies=plan.mixture_copies),
        loss_scaling=LossScaling(case, steps, stage.routers),
    )
