"""How processes are started, what they require, and what is measured besides the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pscale.config.choices import (
    MOST,
    Bytes,
    Group,
    InSuite,
    KernelsChoice,
    NonEmpty,
    NonNegativeInt,
    Number,
    SchedulerChoice,
    Seconds,
    Text,
)

Word = Annotated[str, Text(r"""[^\s'"`$\\]+""", "one word without quotes")]
WordOrNothing = Annotated[str, Text(r"""[^\s'"`$\\]*""", "one word without quotes, or nothing")]
Option = Annotated[str, Text(r"-[^\n\r\0]+", "one option of the scheduler such as '--exclusive'")]
Host = Annotated[
    str,
    Text(
        r"[\w.-]+:[1-9][0-9]{0,5}|[^\0:]+",
        "a host and its cores, such as 'lab1:16', or the name of a file with such lines",
    ),
]
BlasChoice = Annotated[
    str,
    Text(
        r"auto|numpy|openblas|blis|mkl|/[^\0]+",
        "auto, numpy, openblas, blis, mkl, or the path of a library, which begins with /",
    ),
    InSuite(named=True),
]
Variable = Annotated[str, Text(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")]
Setting = Annotated[str, Text(r"[^\0]*", "a text without null characters")]


@dataclass(frozen=True, kw_only=True)
class Timing(Group):
    """What is measured besides the steps."""

    gemm_peak: bool = True
    """Measure the matrix-product peak; without it there is no `peak_fraction`."""
    overhead_steps: NonNegativeInt = 4
    """Pairs of training steps after the measured ones, with and without recording."""
    trace: bool | None = None
    """Keep every phase and call of every rank in the table `events`, for `pscale trace`, the timelines in the
    report and `pscale report --what-if`; null: of the first launch of each case, as many steps as 131,072
    events hold."""
    pace: bool = False
    """Time a fixed piece of work of about 12 ms between steps, for `pscale compare` on noisy machines: [the
    pace](statistics.md#the-pace-of-the-machine); adds a barrier at the end of every step."""


@dataclass(frozen=True, kw_only=True)
class Omp(Group):
    """Where the OpenMP threads of a rank run and how they wait for work."""

    proc_bind: Literal["close", "spread"] | None = None
    """Bind each thread to a place, close together or spread out; null: threads move freely in the CPUs of
    their rank."""
    places: Literal["threads", "cores", "ll_caches", "numa_domains", "sockets"] | None = None
    """What a place is, with `proc_bind`; null: the runtime's choice."""
    wait_policy: Literal["active", "passive"] | None = None
    """Idle threads spin (`active`) or sleep (`passive`); null: spin a while, then sleep."""


@dataclass(frozen=True, kw_only=True)
class Require(Group):
    """The BLAS that NumPy must use, with its threads; None: any."""

    blas: Literal["openblas", "mkl", "blis"] | None = None
    """BLAS that NumPy must use; with another nothing starts, and a launch is *invalid*."""
    blas_threading: Literal["openmp", "pthreads"] | None = None
    """What must make its threads."""


@dataclass(frozen=True, kw_only=True)
class Launch(Group):
    """How processes are started and jobs submitted."""

    launcher: NonEmpty = "auto"
    """`auto`, a name on PATH or a path: mpiexec of MPICH, Open MPI or Intel MPI, srun, flux; one per
    suite."""
    bind: Literal["core", "socket", "numa", "none"] = "core"
    """What each rank is bound to; ranks that share cores stay unbound."""
    time_limit_s: Seconds = 600.0
    """A longer launch is killed, with status *timeout*."""
    hang_after_s: Seconds | None = 60.0
    """A launch without progress for so long, or for 20 median steps if that is more, is killed, with status
    *hung* and a hang report of its ranks; null: no watchdog."""
    memory_limit_bytes: Bytes | None = None
    """A case predicted to need more is not started; null: the memory of this machine, or of a node."""
    check_ranks: bool = True
    """`workload` without `watch`: first start each program once more, on its fewest ranks above 1, until they
    have met in one MPI world: under the `mpiexec` of another MPI each rank is alone in its own."""
    warmup: Annotated[int, Number(ge=0, le=100, computed=False)] = 0
    """Launches of each case that are made first and not counted; the same for all cases."""
    oversubscribe: bool = False
    """Allow ranks × threads to exceed the cores."""
    omp: Omp = Omp()
    """OpenMP threads of a rank; needs a BLAS that uses them: [blas.md](blas.md)."""
    blas: BlasChoice = "auto"
    """What multiplies matrices for NumPy: its own BLAS (`numpy`), one that is installed (`openblas`, `blis`,
    `mkl`), or the library at a path; `auto`: [an OpenBLAS with OpenMP threads](blas.md) if there is one."""
    kernels: KernelsChoice = "auto"
    """The kernels beside matrix products: [kernels.md](kernels.md); `auto`: fused if built, else NumPy."""
    env: Mapping[Variable, Setting] = field(default_factory=dict, hash=False)
    """Environment variables of the job; they override those of pscale."""
    extra: tuple[str, ...] = ()
    """Options for the launcher; one about binding replaces those of pscale; options for a scheduler are
    `directives`."""
    ranks_per_node: NonNegativeInt = 0
    """Ranks per node; 0: as many as have cores, evenly over the nodes."""
    scheduler: SchedulerChoice = "auto"
    """Where jobs go: `auto`: to the scheduler that answers; `none`: launches run here; or one by name. Inside
    a job launches run in it."""
    hosts: tuple[Host, ...] = ()
    """Hosts without a scheduler, each with the cores to use, `[lab1:16, lab2:8]`, or one file of lines
    `lab1:16` or `lab1 slots=16`: [clusters.md](clusters.md#hosts-without-a-scheduler); one list per suite."""
    packing: Literal["nodes", "case", "all"] = "nodes"
    """One job runs all cases with the same number of `nodes`, one `case`, or `all`."""
    partition: WordOrNothing = ""
    """Partition or queue; empty: the site's default."""
    account: WordOrNothing = ""
    """Account or project to charge."""
    qos: WordOrNothing = ""
    """Slurm only: quality of service."""
    constraint: WordOrNothing = ""
    """Features of the nodes, in the scheduler's syntax."""
    gpus: Annotated[int, Number(ge=0, le=MOST, words=(("none", 0),))] = 0
    """GPUs per node, for sites that give no nodes without them."""
    job_time_limit_s: Seconds | None = None
    """Time limit of a job; null: the sum of the `time_limit` of its launches (`repeat: auto`: of the fewest
    of each case) and two minutes, at most what the partition allows."""
    directives: tuple[Option, ...] = ()
    """Options for the scheduler, such as `--exclusive`."""
    modules: tuple[Word, ...] = ()
    """Environment modules to load in the job."""
    setup: str = ""
    """Shell lines to run before the launches."""
