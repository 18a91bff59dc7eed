"""What a rank can see of itself and its host: cores, libraries, memory, CPU time."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

from pscale.nn import kernels
from pscale.ranges import as_ranges
from pscale.worker.host import HostUsage, host_usage, host_without

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PREFIXES = (
    "OMP_",
    "OPENBLAS_",
    "MKL_",
    "BLIS_",
    "KMP_",
    "GOMP_",
    "MPICH_",
    "OMPI_",
    "I_MPI_",
    "UCX_",
    "FI_",
    "MPIR_",
)
_PACKAGES = ("numpy", "mpi4py", "pyarrow", "threadpoolctl", "pscale")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What the process and its host have used so far."""

    cpu_s: float
    thread_cpu_s: dict[str, float]  # by thread id
    thread_cpus: dict[str, str]  # where each may run
    main_thread: str
    involuntary_switches: int
    host: HostUsage


def usage() -> Usage:
    """Read the operating system's accounts of this process and of the CPUs that it may run on."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    threads, cpus = {}, {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # a thread that has just ended
            threads[task.name] = int((task / "schedstat").read_text().split()[0]) * 1e-9
            cpus[task.name] = as_ranges(sorted(os.sched_getaffinity(int(task.name))))
    return Usage(
        cpu_s=spent.ru_utime + spent.ru_stime,
        thread_cpu_s=threads,
        thread_cpus=cpus,
        main_thread=str(os.getpid()),
        involuntary_switches=spent.ru_nivcsw,
        host=host_usage(affinity()),
    )


def without(usage: Usage, before: Usage, after: Usage) -> Usage:
    """Return `usage` less what was used between two other readings."""
    spent_s = {
        thread: cpu_s - before.thread_cpu_s.get(thread, 0.0) for thread, cpu_s in after.thread_cpu_s.items()
    }
    return replace(
        usage,
        cpu_s=usage.cpu_s - (after.cpu_s - before.cpu_s),
        thread_cpu_s={
            thread: cpu_s - spent_s.get(thread, 0.0) for thread, cpu_s in usage.thread_cpu_s.items()
        },
        involuntary_switches=usage.involuntary_switches
        - (after.involuntary_switches - before.involuntary_switches),
        host=host_without(usage.host, before.host, after.host),
    )


def affinity() -> list[int]:
    """Return the CPUs that the threads of this process may run on.

    OpenMP may give each thread a place of its own, the main thread included, whose CPUs alone are then fewer.
    """
    cpus: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            cpus |= os.sched_getaffinity(int(task.name))
    return sorted(cpus)


def blas() -> dict[str, Any]:
    """Return library, version, kernel architecture, threading layer and threads of the BLAS in use."""
    info = _blas_info()
    return {
        "blas": info.get("internal_api"),
        "blas_version": info.get("version"),
        "blas_architecture": info.get("architecture"),
        "blas_threading": info.get("threading_layer"),
        "threads": info.get("num_threads"),
    }


def _blas_info() -> dict[str, Any]:
    found = [info for info in threadpool_info() if info["user_api"] == "blas"]
    return found[0] if found else {}


def identity() -> dict[str, Any]:
    """Return where this rank runs and with which BLAS: the fixed part of its row in the `ranks` table."""
    place = {"host": os.uname().nodename, "pid": os.getpid(), "cpus": as_ranges(affinity())}
    computing = kernels.current()
    return {**place, **blas(), "kernels": computing.name, "kernel_threads": computing.threads}


def software() -> dict[str, Any]:
    """Return versions and the variables in force that change how MPI, OpenMP and BLAS behave."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: sys.modules[name].__version__ for name in _PACKAGES if name in sys.modules},
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(_PREFIXES)
        },
    }
