"""The process of step.py that runs pscale's step."""

from __future__ import annotations

import json
import sys
from time import perf_counter, process_time
from typing import Any

import numpy as np
from figures import blas

from pscale.config import Case, Model, Plan, Train
from pscale.mesh.alone import SelfMesh
from pscale.nn import kernels
from pscale.parallel.zero import Replicas
from pscale.training.build import Stage, build
from pscale.worker.environment import use_kernels
from pscale.worker.roofline import measure_gemm

GEMM_SIZE, GEMM_SECONDS = 2048, 0.5
TRAIN = Train(optimizer="adamw", lr=3e-4, clip=1.0)


class Runner:
    """A model with data, ready to step."""

    def __init__(self, model: Model, batch: int, train: Train = TRAIN):
        self.train, mesh = train, SelfMesh()
        self.stage: Stage = build(model, Plan(), mesh)
        params = [unit.layer.params for unit in self.stage.units]
        case = Case(suite="step", label="plain", model=model, train=train)
        self.replicas = Replicas(params, mesh, case)
        self.replicas.fill(case.train.seed, lambda _: None)
        random = np.random.default_rng(2)
        self.x, self.targets = random.integers(0, model.vocabulary, (2, batch, model.sequence))

    def differentiate(self) -> float:
        self.replicas.start_step()
        caches, x = [], self.x
        for unit in self.stage.units:
            x, cache = unit.layer.forward(x)
            caches.append(cache)
        loss, dx = self.stage.loss.forward(x, self.targets, 1 / self.x.size)
        for unit in reversed(self.stage.units):
            dx = unit.layer.backward(dx, caches.pop())
        return loss

    def step(self) -> float:
        loss = self.differentiate()
        norm = self.replicas.square_norm() ** 0.5
        self.replicas.update(self.train.lr, min(1.0, (self.train.clip or 1.0) / norm))
        return loss


def gradients(model: Model, batch: int, start: str, out: str) -> None:
    """Write weights with data, and the loss with all gradients."""
    runner = Runner(model, batch)
    units = runner.stage.units
    params = {f"{unit.name}/{param.name}": param for unit in units for param in unit.layer.params}
    random = np.random.default_rng(3)
    for param in params.values():
        param.data[...] += 0.1 * random.normal(size=param.shape)  # no gain of one, no bias of zero
    weights = {name: param.data for name, param in params.items()}
    np.savez(start, allow_pickle=False, x=runner.x, targets=runner.targets, **weights)
    loss = runner.differentiate()
    np.savez(out, allow_pickle=False, loss=loss, **{name: param.grad for name, param in params.items()})


def about() -> dict[str, Any]:
    keep = ("internal_api", "version", "architecture", "threading_layer", "num_threads")
    used = {"kernels": kernels.current().name, "kernel_threads": kernels.current().threads}
    return {
        **used,
        "numpy": np.__version__,
        "blas": [{key: pool.get(key) for key in keep} for pool in blas()],
    }


def main() -> None:
    runner: Runner | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {}
        match request:
            case {"do": "gradients", "model": model, "batch": batch, "start": start, "out": out}:
                gradients(Model(**model), batch, start, out)
            case {"do": "prepare", "model": model, "batch": batch}:
                runner = Runner(Model(**model), batch)
            case {"do": "step"}:
                assert runner is not None
                begin, begin_cpu = perf_counter(), process_time()
                loss = runner.step()
                answer = {"s": perf_counter() - begin, "cpu_s": process_time() - begin_cpu, "loss": loss}
            case {"do": "gemm"}:
                answer = {"gflops": measure_gemm(GEMM_SIZE, "float32", GEMM_SECONDS).gflops}
            case {"do": "about"}:
                answer = about()
            case {"do": "use", "kernels": choice, "threads": threads}:
                use_kernels(choice, threads)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
