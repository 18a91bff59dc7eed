"""One MPI job from case to results: prepare, warm up, measure, check; between steps evaluate, and save."""

from __future__ import annotations

import json
import shutil
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from pscale.config import Case, from_dict
from pscale.data import Batches, prepare, prepare_validation
from pscale.errors import PscaleError
from pscale.mesh import grid
from pscale.mesh.axis import Axis, Mesh
from pscale.nn import counts
from pscale.nn.dtypes import compute_dtype, dtype_of
from pscale.nn.offload.scratch import folder_of
from pscale.nn.offload.storage import Storage
from pscale.parallel import recompute, saved_state
from pscale.parallel.ranks import GROUPS
from pscale.parallel.recompute import executed_flops
from pscale.parallel.zero import Replicas
from pscale.runs.tensor_files import TensorFolder
from pscale.training.trainer import Trainer, assemble
from pscale.worker.kernel_profile import profile_kernels
from pscale.worker.measure import Measured, measure, recording_call_s, recording_ratio, warm_up
from pscale.worker.recorder import Recorder
from pscale.worker.roofline import measure_gemm, stream_gb_s
from pscale.worker.tables import Table
from pscale.worker.usage import resident_bytes, set_up, used
from pscale.worker.validity import loss_spread, replica_spread

_GEMM_SIZE, _GEMM_SECONDS = 1024, 0.25


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What the launcher asks of a job: a case to run once, and where its results go."""

    case: Case
    task: str  # "measure", "verify" or "probe": copies of one rank
    repeat: int
    folder: Path  # of this launch
    data: Path  # of the run's tables
    launched_unix_s: float
    counter: str = ""  # file of the StepCounter of whoever waits
    rank: int = 0  # that is probed, in `copies`, until so many `seconds` after the launch
    copies: int = 1
    seconds: float = 0.0
    cpu_time: bool = False  # and it is timed by its thread's own

    @property
    def processes(self) -> int:
        """How many processes there are of it."""
        return self.copies if self.task == "probe" else self.case.ranks

    @classmethod
    def read(cls, folder: Path) -> JobSpec:
        """Read what the launcher left in `folder`."""
        document = json.loads((folder / "case.json").read_text(encoding="utf-8"))
        known = {name: document[name] for name in cls.__dataclass_fields__.keys() & document.keys()}
        case, data = from_dict(Case, document["case"]), Path(document["data"])
        return cls(**known | {"case": case, "data": data, "folder": folder})


@dataclass(kw_only=True)
class StartupTimes:
    """Seconds that each part of the start took."""

    parts: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=perf_counter)

    def mark(self, name: str) -> None:
        """Attribute everything since the last mark to `name`."""
        self.parts[name], self._last = perf_counter() - self._last, perf_counter()


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """What one rank knows when the job is done."""

    measured: Measured
    losses: list[float]  # of the global batch, every step from the first warm-up step on
    columns: dict[str, Any]  # of the `cases` table
    rank: dict[str, Any]  # of the `ranks` table
    kernels: Table  # this rank's rows of the `kernels` table


def run(spec: JobSpec, mesh: Mesh, recorder: Recorder, timeline: StartupTimes) -> JobResult:
    """Run the case on this rank."""
    case = spec.case
    batches = prepare(case.data, case.model, case.train, mesh, spec.folder, recorder=recorder)
    timeline.mark("data_prepare_s")
    peak = _roofline(case, mesh.world)
    timeline.mark("roofline_s")
    set_up(mesh.axis(*span) for span in grid.groups(mesh.sizes, GROUPS))
    baseline_bytes = resident_bytes()  # data, and what BLAS and MPI keep: they are not the model's
    trainer = make_trainer(case, mesh, batches, recorder)
    timeline.mark("build_s")
    between = BetweenSteps(case, trainer, mesh, spec.folder)
    if case.train.load:
        between.load()
        timeline.mark("load_s")
    startup_s = time.time() - spec.launched_unix_s
    warm_up(trainer, case.train.warmup, between.after)
    timeline.mark("warmup_s")
    measured = measure(
        trainer, mesh, case.train.warmup, case.train.steps, pace=case.timing.pace, between=between.after
    )
    memory = {
        "baseline_rss_bytes": baseline_bytes,
        "peak_rss_bytes": measured.peak_rss_bytes,
        "peak_rss_of_steps": measured.peak_rss_of_steps,
        **_memory_by_kind(trainer, mesh),
    }
    stop = case.train.warmup + case.train.steps
    columns = {
        "weights": flat_weights(trainer.replicas) if case.model.kind == "linear" else None,
        "replica_spread": replica_spread(trainer.replicas, mesh),
        "loss_spread": loss_spread(trainer, stop, mesh),
        "recording_ratio": recording_ratio(trainer, stop, case.timing.overhead_steps),
        "recording_call_s": recording_call_s(),
        "work_quantum_s": measured.work_quantum_s,
        **batches.columns,
        "startup_s": startup_s,
        **trainer.expert_load.columns(mesh.world, range(case.train.warmup, stop)),
        **trainer.loss_scaling.columns(stop),
        **timeline.parts,
        **between.columns(),
    }
    kernels = profile_kernels(trainer, stop + 2 * case.timing.overhead_steps)
    batches.close()
    if trainer.storage is not None:
        trainer.storage.close()
    losses = trainer.losses[:stop].copy()
    mesh.world.all_reduce(losses)
    rank = {**peak, **memory, **used(measured.before, measured.after)}
    return JobResult(measured=measured, losses=losses.tolist(), columns=columns, rank=rank, kernels=kernels)


def make_trainer(case: Case, mesh: Mesh, batches: Batches, recorder: Recorder) -> Trainer[Recorder]:
    """Build this rank's stage; every replica starts from the weights of the first.

    They are those of the seed; of a case that loads, to be replaced by what is saved after so many steps.
    """
    start = saved_state.saved_facts(Path(case.train.load))["step"] if case.train.load else 0
    validation = prepare_validation(case.data, case.model, case.train, mesh)
    storage = make_storage(case, recorder)
    trainer = assemble(case, mesh, batches, recorder, storage, start=start, validation=validation)
    trainer.replicas.fill(case.train.seed, lambda param: mesh.axis(*param.sync).broadcast(param.data))
    return trainer


def make_storage(case: Case, recorder: Recorder) -> Storage | None:
    """Return the file for what the plan offloads, if anything."""
    if case.plan.offload == "none":
        return None
    folder = folder_of(case.plan.offload_folder)
    return Storage(folder, chunk_bytes=case.plan.offload_chunk_bytes, recorder=recorder)


def flat_weights(replicas: Replicas) -> list[float]:
    """Return all weights in forward order."""
    return [float(weight) for _, value in replicas.weights() for weight in value.ravel()]


def _roofline(case: Case, world: Axis) -> dict[str, float | None]:
    """Measure this rank's matrix product and memory while all ranks do the same, as they will in a step."""
    if not case.timing.gemm_peak:
        return {"gemm_peak_gflops": None, "gemm_cores": None, "stream_gb_s": None}
    world.barrier()
    gemm = measure_gemm(_GEMM_SIZE, compute_dtype(dtype_of(case.model.dtype)), _GEMM_SECONDS)
    world.barrier()
    return {"gemm_peak_gflops": gemm.gflops, "gemm_cores": gemm.cores, "stream_gb_s": stream_gb_s()}


def _memory_by_kind(trainer: Trainer[Recorder], mesh: Mesh) -> dict[str, int]:
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


_COLUMNS = ("evaluate_s", "save_s", "saved_bytes", *saved_state.LOADING)


class BetweenSteps:
    """The work of one rank between steps, and how long it took; `folder` is that of the launch."""

    def __init__(self, case: Case, trainer: Trainer[Any], mesh: Mesh, folder: Path):
        self._case, self._trainer, self._mesh = case, trainer, mesh
        self._kept, self._folder = (
            bool(case.train.save.folder),
            Path(case.train.save.folder or folder / "state"),
        )
        self._figures: dict[str, list[float]] = {name: [] for name in _COLUMNS}
        self._losses: dict[int, float] = {}  # this rank's share, by steps of the training

    def after(self, index: int) -> Callable[[], None] | None:
        """Return what is to be done after step `index`, if anything."""
        train, steps = self._case.train, self._trainer.start + index + 1
        due = [
            work
            for work, every in ((self._evaluate, train.evaluate.every), (self._save, train.save.every))
            if every and steps % every == 0
        ]
        return partial(_do, due, index) if due else None

    def load(self) -> None:
        """Go on from the saved state of the case."""
        self._load(saved_state.find(Path(self._case.train.load)))

    def columns(self) -> dict[str, Any]:
        """Return columns of the `cases` table, means over saves and loads; collective, at the end.

        Times are those of the slowest rank, bytes of all ranks.
        """
        if not self._kept and self._mesh.world.rank == 0:
            shutil.rmtree(self._folder, ignore_errors=True)
        found: dict[str, Any] = {}
        for name, figures in self._figures.items():
            mean = np.array([np.mean(figures) if figures else 0.0])
            self._mesh.world.all_reduce(mean, "sum" if name.endswith("_bytes") else "max")
            found[name] = float(mean[0]) if figures else None
        losses = np.array([*self._losses.values()])
        self._mesh.world.all_reduce(losses)
        evaluated = {"validation_losses": losses.tolist(), "validation_steps": [*self._losses]}
        return found | (evaluated if self._losses else dict.fromkeys(evaluated))

    def _evaluate(self, index: int) -> None:
        self._mesh.world.barrier()
        start = perf_counter()
        self._losses[self._trainer.start + index + 1] = self._trainer.evaluate()
        self._note({"evaluate_s": perf_counter() - start})

    def _save(self, index: int) -> None:
        self._mesh.world.barrier()
        start = perf_counter()
        saved, saved_bytes = self._trainer.save(self._case, self._mesh, self._folder, index)
        self._note({"save_s": perf_counter() - start, "saved_bytes": saved_bytes})
        if self._case.train.save.check:
            sums = self._checksums()
            self._load(saved)
            if sums != self._checksums():
                raise PscaleError(f"the state saved after step {index} was not the one that was loaded")

    def _load(self, folder: Path) -> None:
        by_broadcast = self._case.train.load_by == "broadcast"
        self._note(self._trainer.load(self._mesh, TensorFolder(folder), broadcast=by_broadcast))

    def _note(self, figures: Mapping[str, float]) -> None:
        for name, figure in figures.items():
            self._figures[name].append(figure)

    def _checksums(self) -> list[int]:
        return [zlib.crc32(held.tensor.memory.data) for held in self._trainer.replicas.state()]


def _do(works: Sequence[Callable[[int], None]], index: int) -> None:
    for work in works:
        work(index)
