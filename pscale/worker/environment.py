"""What a rank runs on and with: CPUs, BLAS, kernels, packages, variables."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_info

from pscale.blas import forwarding
from pscale.config import Case, Omp
from pscale.config.choices import KernelsChoice
from pscale.errors import PscaleError
from pscale.nn import kernels
from pscale.nn.kernels import fused
from pscale.nn.kernels.sixteen_bit import HalfFusedKernels, HalfKernels
from pscale.runs.host import as_ranges, stored

_PACKAGES = ("numpy", "mpi4py", "pyarrow", "threadpoolctl", "pscale")
_OPENMP = ("openmp", "intel", "gnu")  # MKL calls its layer after the OpenMP runtime that it loads
_MKL_KERNELS, _LOADED = re.compile(r"/libmkl_(avx\w*|def|mc\d?)\.so"), Path("/proc/self/maps")
_OPENMP_ADVICE = "an OpenMP build that is installed and has kernels for this CPU is chosen: docs/blas.md"


class KernelsError(PscaleError):
    """The kernels that a case asks for are not here."""


def affinity() -> list[int]:
    """Return the CPUs that the threads of this process may run on.

    OpenMP may bind each thread to a place of its own, the main thread included, whose CPUs alone are fewer.
    """
    cpus: set[int] = set()
    for task in tasks():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            cpus |= os.sched_getaffinity(int(task.name))
    return sorted(cpus or range(os.cpu_count() or 1))


def tasks() -> list[Path]:
    """Return the folders of Linux for the threads of this process; none on another system."""
    folder = Path("/proc/self/task")
    return list(folder.iterdir()) if folder.is_dir() and hasattr(os, "sched_getaffinity") else []


def blas() -> dict[str, Any]:
    """Return library, version, kernels, threading layer, threads and their setter of the BLAS in use."""
    loaded = [info for info in threadpool_info() if info["user_api"] == "blas"]
    found = [info for info in loaded if forwarding.computes(Path(info["filepath"]))]
    info, used = (found[0] if found else {}), forwarding.library()
    loaded_from = info.get("filepath") or used
    return {
        "blas": info.get("internal_api") or (used and used.name),
        "blas_library": used and str(used),
        "blas_version": info.get("version"),
        "blas_architecture": info.get("architecture") or mkl_kernels(),
        "blas_threading": info.get("threading_layer"),
        "blas_thread_setter": loaded_from and forwarding.thread_setter(Path(loaded_from)),
        "threads": info.get("num_threads"),
    }


def mkl_kernels(maps: Path = _LOADED) -> str | None:
    """Return which kernels MKL has loaded, as it does from a library that has their name."""
    try:
        found = _MKL_KERNELS.search(maps.read_text(errors="replace"))
    except OSError:
        return None
    return found and found[1]


def has_openmp(found: Mapping[str, Any]) -> bool:
    """Tell whether the BLAS that `blas` found has OpenMP threads."""
    return found["blas_threading"] in _OPENMP


def unmet(case: Case, found: Mapping[str, Any]) -> str:
    """Return why the BLAS that `blas` found will not do for a case; empty if it will."""
    require, omp, asked = case.require, case.launch.omp, case.launch.blas
    library = found["blas"] or "an unknown BLAS"
    threading = found["blas_threading"] or "unknown"
    here = f"NumPy here uses {library} with {threading} threads"
    if not _is_asked(asked, found):
        return f"the suite asks for launch.blas: {asked}, but {here} ({found['blas_library'] or 'its own'})"
    if require.blas not in (None, library):
        return f"the suite requires blas: {require.blas}, but {here}"
    layer = "openmp" if has_openmp(found) else threading
    if require.blas_threading not in (None, layer):
        advice = f"; {_OPENMP_ADVICE}" if require.blas_threading == "openmp" else ""
        return f"the suite requires blas_threading: {require.blas_threading}, but {here}{advice}"
    if omp != Omp() and layer != "openmp":
        return f"launch.omp is about OpenMP threads, but {here}; {_OPENMP_ADVICE}"
    return ""


def _is_asked(asked: str, found: Mapping[str, Any]) -> bool:
    used = found["blas_library"]
    if asked in ("auto", "numpy"):
        return asked == "auto" or used is None
    if asked.startswith("/"):
        return used is not None and Path(used).resolve() == Path(asked).resolve()
    return used is not None and found["blas"] == asked


def identity() -> dict[str, Any]:
    """Return where this rank runs and with which BLAS: the fixed part of its row in the `ranks` table."""
    host = {"host": os.uname().nodename, "pid": os.getpid(), "cpus": as_ranges(affinity())}
    computing = kernels.current()
    return {**host, **blas(), "kernels": computing.name, "kernel_threads": computing.threads}


def software() -> dict[str, Any]:
    """Return versions and the variables in force that change how MPI, OpenMP and BLAS behave."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: sys.modules[name].__version__ for name in _PACKAGES if name in sys.modules},
        "environment": stored(os.environ),
    }


def use_kernels(choice: KernelsChoice, threads: int, *, narrow: bool = False) -> None:
    """Let the chosen kernels compute, by default the fused ones where they are built.

    They share the threads of an OpenMP BLAS. Beside a BLAS with threads of another kind they stay on one: two
    sets of threads would compete for the same cores, each spinning in the other's way. Numbers are of 16 bits
    if they are `narrow`.
    """
    library = fused.library() if choice != "numpy" else None
    if library is None:
        if choice == "fused":
            raise KernelsError(f"launch.kernels asks for fused ones, but {fused.obstacle()}: docs/kernels.md")
        kernels.use(HalfKernels() if narrow else kernels.Kernels())
        return
    kind = HalfFusedKernels if narrow else fused.FusedKernels
    kernels.use(kind(library, threads if has_openmp(blas()) else 1))
