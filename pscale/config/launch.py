"""How processes are started, what is asked of them, and what is measured beside the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pscale.config.choices import (
    Bind,
    Blas,
    BlasThreading,
    KernelsChoice,
    Packing,
    Places,
    ProcBind,
    SchedulerChoice,
    WaitPolicy,
)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What is measured beside the steps."""

    gemm_peak: bool = True
    overhead_steps: int = 4  # steps with recording off, each beside one with it on
    trace: bool = False  # keep every note of every rank
    pace: bool = False  # between the steps, a piece of work that tells how fast the machine is just then


@dataclass(frozen=True, kw_only=True)
class Omp:
    """Where the OpenMP threads of a rank run and how they wait for work; None: as the runtime likes."""

    proc_bind: ProcBind | None = None
    places: Places | None = None
    wait_policy: WaitPolicy | None = None


@dataclass(frozen=True, kw_only=True)
class Require:
    """The BLAS without which a measurement is not what was asked for; None: any."""

    blas: Blas | None = None
    blas_threading: BlasThreading | None = None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How processes are started."""

    launcher: str = "auto"
    bind: Bind = "core"
    time_limit_s: float = 600.0
    hang_after_s: float | None = 60.0  # without progress; None: nobody watches
    memory_limit_bytes: int | None = None  # of all ranks of a host; None: its memory
    oversubscribe: bool = False
    omp: Omp = Omp()
    kernels: KernelsChoice = "auto"
    env: Mapping[str, str] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    ranks_per_node: int = 0  # 0: as many as have cores
    scheduler: SchedulerChoice = "auto"
    packing: Packing = "nodes"  # what one job runs: all cases of so many nodes, one case, everything
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    gpus: int = 0  # of a node
    job_time_limit_s: float | None = None  # of a job; None: the sum of its launches' limits
    directives: tuple[str, ...] = ()  # options for the scheduler
    modules: tuple[str, ...] = ()
    setup: str = ""  # lines of shell before the launches
