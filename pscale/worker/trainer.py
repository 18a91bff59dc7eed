"""The training loop of one rank: what a step is, and nothing of how it is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.config import Train
from pscale.data import Batches
from pscale.parallel.replicas import Replicas
from pscale.worker.build import Stage
from pscale.worker.recorder import Recorder
from pscale.worker.routed import Routed


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """One rank's part of the job. `losses` holds this rank's share of every step's loss."""

    stage: Stage
    batches: Batches
    replicas: Replicas
    recorder: Recorder
    train: Train
    target_weight: float  # 1 / tokens of the global batch, so that sums over ranks are means over tokens
    lr: float
    losses: NDArray[np.float64]
    routed: Routed

    def step(self, index: int) -> None:
        """Run one optimizer step on this rank's samples of global batch `index`."""
        with self.recorder.step(index):
            self.differentiate(index)
            self.update()

    def differentiate(self, index: int) -> None:
        """Bring the gradients of global batch `index` together."""
        record, micro_batches = self.recorder, self.train.micro_batches
        self.replicas.start_step()
        for micro in range(micro_batches):
            with record.phase("data"):
                inputs, targets = self.batches.fill(index, micro)
            self.losses[index] += self._micro_batch(inputs, targets, last=micro == micro_batches - 1)
        with record.phase("sync"):
            self.replicas.finish()
        self.losses[index] += self.routed.note(index)

    def update(self) -> None:
        """Clip by the norm of the whole model's gradient and do the optimizer's step."""
        with self.recorder.phase("update"):
            scale = 1.0
            if self.train.clip is not None:
                norm = math.sqrt(self.replicas.square_norm())
                scale = min(1.0, self.train.clip / norm) if norm else 1.0
            self.replicas.update(self.lr, scale)

    def _micro_batch(self, inputs: NDArray[Any], targets: NDArray[Any], *, last: bool) -> float:
        """Run forward and backward; tell the replicas of every unit whose gradients are final."""
        units, loss = self.stage.units, self.stage.loss
        with self.recorder.phase("forward"):
            caches = []
            x = inputs
            for number, unit in enumerate(units):
                self.replicas.gather(number)
                x, cache = unit.layer.forward(x)
                self.replicas.release(number)
                caches.append(cache)
            value, loss_cache = loss.forward(x, targets, self.target_weight)
        with self.recorder.phase("backward"):
            dx: NDArray[Any] | None = loss.backward(loss_cache)
            for number in reversed(range(len(units))):
                assert dx is not None, "only the first unit ends the backward pass"
                self.replicas.gather(number)
                dx = units[number].layer.backward(dx, caches.pop())
                self.replicas.ready(number, last=last)
        return value


def effective_lr(train: Train, dp: int) -> float:
    """Return the learning rate after scaling with the number of data-parallel ranks (linear, square root)."""
    return train.lr * {"none": 1.0, "linear": float(dp), "sqrt": math.sqrt(dp)}[train.lr_scaling]
