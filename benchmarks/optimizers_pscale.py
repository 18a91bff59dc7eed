"""The process of optimizers.py that runs pscale's optimizers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from arena import Arena

from pscale.config import Model, Plan, Train
from pscale.mesh.alone import SelfMesh
from pscale.nn.optimizers import make_optimizer
from pscale.nn.optimizers.base import update
from pscale.nn.optimizers.state import Flat
from pscale.training.build import build
from pscale.worker.environment import use_kernels

# Adafactor has its epsilon beside squares, PyTorch as a bound on them: so small that neither matters.
SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.1, "momentum": 0.9},
    "adam": {"lr": 1e-3, "beta2": 0.95},
    "adamw": {"lr": 1e-3, "beta2": 0.95, "weight_decay": 0.1},
    "lamb": {"lr": 1e-2, "beta2": 0.95, "weight_decay": 0.1},
    "lion": {"lr": 1e-4, "beta2": 0.99, "weight_decay": 0.1},
    "muon": {"lr": 1e-2, "beta2": 0.95, "momentum": 0.95, "weight_decay": 0.1},
    "adafactor": {"lr": 1e-2, "epsilon": 1e-15, "weight_decay": 0.1},
}


class Runner:
    """The parameters of a GPT with gradients drawn at random; everything that has two dims is decayed."""

    def __init__(self, optimizer: str, layers: int, width: int, dtype: str):
        model = Model(kind="gpt", layers=layers, width=width, heads=1, dtype=dtype)
        stage = build(model, Plan(), SelfMesh())
        self.params = {
            f"{unit.name}/{param.name}": param for unit in stage.units for param in unit.layer.params
        }
        for param in self.params.values():
            param.decay = len(param.shape) > 1
        self.arena = Arena(list(self.params.values()), dtype)
        self.train = Train(optimizer=optimizer, **SETTINGS[optimizer])
        self.random = np.random.default_rng(1)
        self.arena.data[:] = 0.1 * self.random.normal(size=self.arena.data.size)
        self.optimizer = make_optimizer(
            self.train, [Flat(self.arena.data, self.arena.grad, self.arena.params)]
        )
        self.draw()

    def draw(self) -> None:
        self.arena.grad[:] = 0.01 * self.random.normal(size=self.arena.grad.size)

    def step(self) -> None:
        update(self.optimizer, 1, self.train.lr)


def main() -> None:
    runner: Runner | None = None
    for line in sys.stdin:
        request, answer = json.loads(line), {}
        match request.pop("do"):
            case "use":
                use_kernels(request["kernels"], request["threads"])
            case "train":
                steps, out = request.pop("steps"), request.pop("out")
                runner = Runner(**request)
                for _ in range(steps):
                    runner.step()
                    runner.draw()
                np.savez(
                    out, allow_pickle=False, **{name: param.data for name, param in runner.params.items()}
                )
            case "prepare":
                runner = Runner(**request)
            case "step":
                assert runner is not None
                begin = perf_counter()
                runner.step()
                answer = {"s": perf_counter() - begin}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
