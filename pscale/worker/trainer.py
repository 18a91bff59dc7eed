"""The training loop of one rank: what a step is, and nothing of how it is measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.config import Train
from pscale.data import Batches
from pscale.nn.offload.keeping import Keeping
from pscale.nn.offload.pages import Bytes
from pscale.nn.offload.storage import Storage
from pscale.nn.rate import learning_rate
from pscale.parallel.pipeline import Boundary
from pscale.parallel.replicas import Replicas
from pscale.parallel.schedule import Action
from pscale.worker.build import Stage
from pscale.worker.passes import Passes
from pscale.worker.recorder import Recorder
from pscale.worker.routed import Routed
from pscale.worker.scaled import Scaled


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """One rank's part of the job. `losses` holds this rank's share of every step's loss."""

    stage: Stage
    boundary: Boundary
    batches: Batches
    replicas: Replicas
    recorder: Recorder
    train: Train
    target_weight: float  # 1 / tokens of the global batch, so that sums over ranks are means over tokens
    sharing: int  # replicas that share the batch
    losses: NDArray[np.float64]
    routed: Routed
    scaled: Scaled
    storage: Storage | None = None  # of what is offloaded
    keeping: Keeping[Bytes] = field(default_factory=Keeping)  # of what blocks keep for backward
    under_way: dict[tuple[int, int], list[Any]] = field(default_factory=dict)  # by micro-batch and part

    def step(self, index: int, meet: Callable[[], None] | None = None) -> None:
        """Run one optimizer step on this rank's samples of global batch `index`; last of all, `meet`."""
        with self.recorder.step(index), self.scaled.tolerating():
            self.differentiate(index)
            self.update(index)
            if meet is not None:
                with self.recorder.phase("update"):
                    meet()

    def differentiate(self, index: int) -> None:
        """Bring the gradients of global batch `index` together, at the scale of the loss."""
        self.scaled.begin(index)
        self.replicas.start_step()
        self.boundary.start_step()
        for action in self.boundary.actions:
            self._act(index, action)
        with self.recorder.phase("backward"):
            self.boundary.finish()
        with self.recorder.phase("sync"):
            self.replicas.finish()
        self.losses[index] += self.routed.note(index)

    def update(self, index: int) -> None:
        """Clip by the norm of the whole model's gradient and do the optimizer's step; none after overflow."""
        with self.recorder.phase("update"):
            factor, scale, clip = 1.0, self.scaled.value, self.train.clip
            if clip is not None or self.scaled.watched:
                norm = math.sqrt(self.replicas.square_norm()) / scale
                if not self.scaled.accepts(index, norm):
                    return
                factor = min(1.0, clip / norm) if clip is not None and norm else 1.0
            self.replicas.update(learning_rate(self.train, index, self.sharing), factor / scale)

    def _act(self, index: int, action: Action) -> None:
        match action.kind:
            case "forward":
                self._forward(index, action)
            case "backward" | "input":
                with self.recorder.phase("backward", action):
                    self._backward(action)
            case "weight":
                with self.recorder.phase("backward", action):
                    self._multiply(action)

    def _forward(self, index: int, action: Action) -> None:
        """Take the data or what the stage before has sent; end in the loss or at the next stage."""
        edge = self.boundary
        first, last = not edge.receives(action), not edge.sends(action)
        if first or last:
            with self.recorder.phase("data", action):
                inputs, targets = self.batches.fill(index, action.micro)
        with self.recorder.phase("forward", action):
            x = inputs if first else edge.receive(action)
            x, caches = self._passes.forward(action.part, x)
            if last:
                scale = self.scaled.value
                value, cache = self.stage.loss.forward(x, targets, self.target_weight * scale)
                self.losses[index] += value / scale
                caches.append(cache)
            else:
                edge.send(action, x)
        self.under_way[action.micro, action.part] = caches

    def _backward(self, action: Action) -> None:
        """Find the gradients; tell the replicas of every unit, unless products for it are put off."""
        edge, caches = self.boundary, self.under_way.pop((action.micro, action.part))
        of_loss = None if edge.receives(action) else caches.pop()
        self.keeping.begin(caches)
        dx: NDArray[Any] | None = (
            edge.receive(action) if of_loss is None else self.stage.loss.backward(of_loss)
        )
        assert dx is not None
        put_off = []

        def done(number: int) -> None:
            if action.kind == "backward":
                self.replicas.ready(number, last=self._is_last(action))
            else:
                put_off.append((number, self.stage.deferred.collect()))

        dx = self._passes.backward(action.part, dx, caches, done)
        if dx is not None:
            edge.send(action, dx)
        if put_off:
            self.under_way[action.micro, action.part] = put_off

    def _multiply(self, action: Action) -> None:
        """Do the products for gradients of weights that the backward of the same part has put off."""
        for number, products in self.under_way.pop((action.micro, action.part)):
            for multiply in products:
                multiply()
            self.replicas.ready(number, last=self._is_last(action))

    @property
    def _passes(self) -> Passes:
        return Passes(stage=self.stage, replicas=self.replicas, keeping=self.keeping)

    def _is_last(self, action: Action) -> bool:
        return action.micro == self.train.micro_batches - 1
