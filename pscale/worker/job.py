"""One MPI job from case to results: prepare, warm up, measure, check, collect."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from pscale.config import Case
from pscale.data import Batches, prepare
from pscale.mesh.axis import Axis, Mesh
from pscale.nn import counts
from pscale.nn.optim import make_optimizer
from pscale.parallel.data import replicas
from pscale.worker import observe
from pscale.worker.build import Stage, build
from pscale.worker.gemm import measure_gemm
from pscale.worker.measure import Measured, measure, recording_call_s, recording_ratio, warm_up
from pscale.worker.order import Order
from pscale.worker.recorder import Recorder
from pscale.worker.trainer import Trainer, effective_lr

_GEMM_SIZE, _GEMM_SECONDS = 1024, 0.25


@dataclass(kw_only=True)
class Timeline:
    """Seconds that each part of the start took."""

    parts: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=perf_counter)

    def mark(self, name: str) -> None:
        """Say that everything since the last mark was `name`."""
        self.parts[name], self._last = perf_counter() - self._last, perf_counter()


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What one rank knows when the job is done."""

    measured: Measured
    losses: list[float]  # of the global batch, every step from the first warm-up step on
    columns: dict[str, Any]  # of the `cases` table
    rank: dict[str, Any]  # of the `ranks` table


def run(order: Order, mesh: Mesh, recorder: Recorder, timeline: Timeline) -> JobResult:
    """Run the ordered case on this rank."""
    case = order.case
    empty_rss_bytes = observe.resident_bytes()
    dp = mesh.axis("dp")
    batches = prepare(case.data, case.model, case.train, dp, order.folder)
    timeline.mark("data_prepare_s")
    trainer = make_trainer(case, dp, batches, recorder)
    timeline.mark("build_s")
    peak = _gemm_peak(case, mesh.world)
    timeline.mark("gemm_s")
    startup_s = time.time() - order.launched_unix_s
    warm_up(trainer, case.train.warmup)
    timeline.mark("warmup_s")
    mesh.world.barrier()
    measured = measure(trainer, case.train.warmup, case.train.steps)
    arena, stop = trainer.stage.arena, case.train.warmup + case.train.steps
    columns = {
        "weights": arena.data.tolist() if case.model.kind == "linear" else None,
        "replica_spread": replica_spread(trainer.stage, dp),
        "recording_ratio": recording_ratio(trainer, stop, case.timing.overhead_steps),
        "recording_call_s": recording_call_s(),
        "loss_unigram": batches.unigram_nats,
        "startup_s": startup_s,
        **timeline.parts,
    }
    batches.close()
    losses = trainer.losses[:stop].copy()
    mesh.world.all_reduce(losses)
    rank = {**peak, "empty_rss_bytes": empty_rss_bytes, **_used(measured)}
    return JobResult(measured=measured, losses=losses.tolist(), columns=columns, rank=rank)


def make_trainer(case: Case, dp: Axis, batches: Batches, recorder: Recorder) -> Trainer:
    """Build this rank's stage; every replica starts from the weights of the first."""
    stage = build(case.model, case.train.seed)
    dp.broadcast(stage.arena.data)
    train = case.train
    return Trainer(
        stage=stage,
        batches=batches,
        replicas=replicas(case.plan, stage.arena.grad, [unit.slice for unit in stage.units], dp),
        optimizer=make_optimizer(train, stage.arena),
        recorder=recorder,
        train=train,
        target_weight=1 / (train.batch * case.model.sequence),
        lr=effective_lr(train, case.plan.dp),
        losses=np.zeros(train.warmup + train.steps + 2 * case.timing.overhead_steps),
    )


def _gemm_peak(case: Case, world: Axis) -> dict[str, float | None]:
    """Measure this rank's matrix product while all ranks do the same, as they will in a step."""
    if not case.timing.gemm_peak:
        return {"gemm_peak_gflops": None, "gemm_cores": None}
    world.barrier()
    gemm = measure_gemm(_GEMM_SIZE, case.model.dtype, _GEMM_SECONDS)
    return {"gemm_peak_gflops": gemm.gflops, "gemm_cores": gemm.cores}


def replica_spread(stage: Stage, axis: Axis) -> float:
    """Return the largest difference of a weight between replicas, relative to its tensor's largest value."""
    worst = 0.0
    for param in (param for unit in stage.units for param in unit.layer.params):
        high, low = param.data.copy(), param.data.copy()
        axis.all_reduce(high, "max")
        axis.all_reduce(low, "min")
        scale = max(float(np.abs(high).max()), float(np.abs(low).max()))
        spread = float((high - low).max()) / scale if scale else 0.0
        worst = spread if np.isnan(spread) else max(worst, spread)
    return worst


def _used(measured: Measured) -> dict[str, Any]:
    """Return what the measured steps cost this process, as columns of the `ranks` table."""
    before, after = measured.before, measured.after
    threads = [cpu_s - before.thread_cpu_s.get(thread, 0.0) for thread, cpu_s in after.thread_cpu_s.items()]
    return {
        "cpu_s": after.cpu_s - before.cpu_s,
        "thread_cpu_s": sorted(threads, reverse=True),
        "involuntary_switches": after.involuntary_switches - before.involuntary_switches,
        "steal_s": after.steal_s - before.steal_s,
        "peak_rss_bytes": observe.peak_resident_bytes(),
    }


def work(case: Case) -> dict[str, Any]:
    """Return what the case computes, as columns of the `cases` table: sizes, FLOPs, tokens."""
    model = case.model
    return {
        "parameters": counts.parameters(model),
        "tokens": case.train.batch * model.sequence,
        "model_flops": counts.model_flops(model, case.train.batch),
        "executed_flops": counts.executed_flops(model, case.train.batch),
    }
