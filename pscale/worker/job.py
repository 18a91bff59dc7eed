"""One MPI job from case to results: prepare, warm up, measure, check, collect."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from pscale.config import Case
from pscale.data import Batches, prepare
from pscale.data.share import sequence_share
from pscale.mesh import grid
from pscale.mesh.axis import Axis, Mesh
from pscale.nn import counts
from pscale.nn.loss_scale import make_loss_scale
from pscale.nn.offload.activations import Activations
from pscale.nn.offload.keeping import Keeping
from pscale.nn.offload.pages import Bytes
from pscale.nn.offload.scratch import folder_of
from pscale.nn.offload.storage import Storage
from pscale.nn.param import Param
from pscale.number import number, wide
from pscale.parallel import recompute
from pscale.parallel.flops import executed_flops
from pscale.parallel.layout import layout_of
from pscale.parallel.pipeline import Boundary, activation_shape, timetable
from pscale.parallel.ranks import GROUPS, make_replicas
from pscale.parallel.replicas import ALIKE, Replicas
from pscale.parallel.tensor import Shared
from pscale.worker.build import Stage, build
from pscale.worker.gemm import measure_gemm
from pscale.worker.host import during
from pscale.worker.measure import Measured, measure, recording_call_s, recording_ratio, warm_up
from pscale.worker.order import Order
from pscale.worker.recorder import Recorder
from pscale.worker.resident import resident_bytes, set_up
from pscale.worker.routed import Routed
from pscale.worker.scaled import Scaled
from pscale.worker.trainer import Trainer

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
    batches = prepare(case.data, case.model, case.train, mesh.axis("dp", "ep"), order.folder)
    timeline.mark("data_prepare_s")
    peak = _gemm_peak(case, mesh.world)
    timeline.mark("gemm_s")
    set_up(mesh.axis(*span) for span in grid.groups(mesh.sizes, GROUPS))
    empty_rss_bytes = resident_bytes()  # data, and what BLAS and MPI keep, included: they are not the model's
    trainer = make_trainer(case, mesh, batches, recorder)
    timeline.mark("build_s")
    startup_s = time.time() - order.launched_unix_s
    warm_up(trainer, case.train.warmup)
    timeline.mark("warmup_s")
    measured = measure(trainer, mesh, case.train.warmup, case.train.steps, pace=case.timing.pace)
    memory = {
        "empty_rss_bytes": empty_rss_bytes,
        "peak_rss_bytes": measured.peak_rss_bytes,
        "peak_of_steps": measured.peak_of_steps,
        **_held(trainer, mesh),
    }
    stop = case.train.warmup + case.train.steps
    columns = {
        "weights": learned(trainer.replicas) if case.model.kind == "linear" else None,
        "replica_spread": replica_spread(trainer.replicas, mesh),
        "loss_spread": loss_spread(trainer, stop, mesh),
        "recording_ratio": recording_ratio(trainer, stop, case.timing.overhead_steps),
        "recording_call_s": recording_call_s(),
        "paces_s": measured.paces_s,
        "loss_unigram": batches.unigram_nats,
        "startup_s": startup_s,
        **trainer.routed.columns(mesh.world, range(case.train.warmup, stop)),
        **trainer.scaled.columns(stop),
        **timeline.parts,
    }
    batches.close()
    if trainer.storage is not None:
        trainer.storage.close()
    losses = trainer.losses[:stop].copy()
    mesh.world.all_reduce(losses)
    rank = {**peak, **memory, **_used(measured)}
    return JobResult(measured=measured, losses=losses.tolist(), columns=columns, rank=rank)


def make_trainer(case: Case, mesh: Mesh, batches: Batches, recorder: Recorder) -> Trainer:
    """Build this rank's stage; every replica starts from the weights of the first."""
    stage, train = build(case.model, case.plan, mesh, case.train.batch), case.train
    layout = layout_of(case.model, case.plan)
    params = [unit.layer.params for unit in stage.units]
    storage = make_storage(case, recorder)
    replicas = make_replicas(params, mesh, case, storage)
    for param, value in replicas.weights():
        mesh.axis(*param.sync).broadcast(value)
    steps = train.warmup + train.steps + 2 * case.timing.overhead_steps
    sequences = train.batch // case.plan.batch_parts // train.micro_batches
    boundary = Boundary(
        mesh.axis("pp"),
        timetable(case.plan, train.micro_batches),
        activation_shape(case.model, case.plan, sequences),
        dtype=number(case.model.dtype),
        buffers=stage.buffers,
    )
    return Trainer(
        stage=stage,
        boundary=boundary,
        batches=sequence_share(batches, layout.runs(mesh.axis("cp").rank), layout.sequence),
        replicas=replicas,
        storage=storage,
        keeping=make_keeping(case, mesh, stage, storage),
        recorder=recorder,
        train=train,
        target_weight=1 / (train.batch * case.model.sequence),
        sharing=case.plan.batch_parts,
        losses=np.zeros(steps),
        routed=Routed(stage.tallies, case.model, steps, copies=case.plan.mixture_copies),
        scaled=Scaled(make_loss_scale(case), steps, stage.tallies),
    )


def make_storage(case: Case, recorder: Recorder) -> Storage | None:
    """Return the file for what the plan offloads, if anything."""
    if case.plan.offload == "none":
        return None
    folder = folder_of(case.plan.offload_folder)
    return Storage(folder, chunk_bytes=case.plan.offload_chunk_bytes, notes=recorder)


def make_keeping(case: Case, mesh: Mesh, stage: Stage, storage: Storage | None) -> Keeping[Bytes]:
    """Return how what blocks keep for backward is kept: in memory, or in the file."""
    if storage is None or not case.plan.offloads_activations:
        return Keeping()
    from pscale.parallel.on_paper import on_paper  # noqa: PLC0415 - other jobs start without planning

    return Keeping(Activations(stage.buffers, storage, on_paper(case, mesh.world.rank).file_bytes))


def learned(replicas: Replicas) -> list[float]:
    """Return all weights in forward order."""
    return [float(weight) for _, value in replicas.weights() for weight in value.ravel()]


def _gemm_peak(case: Case, world: Axis) -> dict[str, float | None]:
    """Measure this rank's matrix product while all ranks do the same, as they will in a step."""
    if not case.timing.gemm_peak:
        return {"gemm_peak_gflops": None, "gemm_cores": None}
    world.barrier()
    gemm = measure_gemm(_GEMM_SIZE, wide(number(case.model.dtype)), _GEMM_SECONDS)
    return {"gemm_peak_gflops": gemm.gflops, "gemm_cores": gemm.cores}


def replica_spread(replicas: Replicas, mesh: Mesh) -> float:
    """Return the largest difference of a weight between replicas, relative to its tensor's largest value."""
    worst = 0.0
    for param, value in replicas.weights():
        axis = mesh.axis(*_holders(param))
        high, low = (value.astype(wide(value.dtype)) for _ in range(2))
        axis.all_reduce(high, "max")
        axis.all_reduce(low, "min")
        scale = max(float(np.abs(high).max()), float(np.abs(low).max()))
        spread = float((high - low).max()) / scale if scale else 0.0
        worst = spread if np.isnan(spread) else max(worst, spread)
    everywhere = np.array([worst])
    mesh.world.all_reduce(everywhere, "max")  # ranks hold different parameters
    return float(everywhere[0])


def loss_spread(trainer: Trainer, stop: int, mesh: Mesh) -> float:
    """Return the largest relative difference between losses of the ranks that compute the same."""
    spread = np.zeros(1)
    shared = trainer.stage.loss
    if isinstance(shared, Shared) and trainer.routed.alike(shared.axis.size):
        high, low = trainer.losses[:stop].copy(), trainer.losses[:stop].copy()
        shared.axis.all_reduce(high, "max")
        shared.axis.all_reduce(low, "min")
        spread[0] = ((high - low) / np.where(high == 0, 1.0, np.abs(high))).max(initial=0.0)
    mesh.world.all_reduce(spread, "max")
    return float(spread[0])


def _holders(param: Param) -> tuple[str, ...]:
    """Return the dims whose ranks hold the same: also those that see the same tokens."""
    cut = param.cut.dims if param.cut else ()
    return tuple(dict.fromkeys((*param.sync, *({*ALIKE} - {*cut}))))


def _used(measured: Measured) -> dict[str, Any]:
    """Return what the measured steps cost this process, as columns of the `ranks` table."""
    before, after = measured.before, measured.after
    spent_s = {
        thread: cpu_s - before.thread_cpu_s.get(thread, 0.0) for thread, cpu_s in after.thread_cpu_s.items()
    }
    order = sorted(spent_s, key=lambda thread: (thread != after.main_thread, -spent_s[thread]))
    return {
        "cpu_s": after.cpu_s - before.cpu_s,
        "thread_cpu_s": [spent_s[thread] for thread in order],
        "thread_cpus": [after.thread_cpus.get(thread, "") for thread in order],
        "involuntary_switches": after.involuntary_switches - before.involuntary_switches,
        **during(before.host, after.host),
    }


def _held(trainer: Trainer, mesh: Mesh) -> dict[str, int]:
    """Return what this rank holds by kind, as columns of the `ranks` table."""
    pool, held = trainer.stage.buffers, dict(trainer.replicas.memory_bytes())
    held["activations"] = pool.total_bytes - pool.exchange_bytes
    held["exchange"] += pool.exchange_bytes + mesh.scratch_bytes
    held["offloaded"] = trainer.storage.size_bytes if trainer.storage else 0
    return {**{f"{kind}_bytes": size for kind, size in held.items()}, "buffers_bytes": pool.total_bytes}


def work(case: Case) -> dict[str, Any]:
    """Return what the case computes, as columns of the `cases` table: sizes, FLOPs, tokens."""
    model = case.model
    return {
        "parameters": counts.parameters(model),
        "tokens": case.train.batch * model.sequence,
        "model_flops": counts.model_flops(model, case.train.batch),
        "executed_flops": executed_flops(case),
        "recomputed_flops": recompute.flops(case),
    }
