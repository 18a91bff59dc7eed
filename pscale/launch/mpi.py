"""Which MPI starts the processes: found by its launcher, known by what the launcher says of itself."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pscale.errors import LaunchError

Flavour = Literal["mpich", "openmpi", "intel", "srun", "flux"]
SCHEDULERS: tuple[Flavour, ...] = ("srun", "flux")  # they start processes of any MPI

_NAMES = ("mpiexec", "mpirun")
_ANSWERS: tuple[tuple[Flavour, str], ...] = (  # Intel's is built on Hydra too, so it is asked for first
    ("intel", r"Intel\(R\) MPI Library.*?Version\s+(?P<version>[\w.]+)"),
    ("mpich", r"HYDRA build details:.*?Version:\s+(?P<version>\S+)"),
    ("openmpi", r"\((?:Open MPI|OpenRTE|PRRTE)\)\s+(?P<version>\S+)"),
    ("srun", r"^slurm\S* (?P<version>\d\S*)"),
    ("flux", r"^commands:\s+(?P<version>\d\S*)"),
)
_ANSWER_LIMIT_S = 20
_REMEDY = (
    "install one beside pscale with `pip install 'pscale[mpich]'`, or load the site's module "
    "(`module load mpi`), or name a launcher in the suite: `launch: {launcher: /path/to/mpiexec}`"
)


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A command that starts MPI processes."""

    path: str
    flavour: Flavour
    version: str
    pmi: str = ""  # srun only: the interface by which ranks find each other

    @property
    def opening(self) -> tuple[str, ...]:
        """The command and what has to come first behind it."""
        if self.flavour == "flux":
            return self.path, "run"
        return (self.path, f"--mpi={self.pmi}") if self.pmi else (self.path,)

    @property
    def major(self) -> int:
        """First number of the version; 0 where it has none."""
        digits = re.match(r"\d+", self.version)
        return int(digits[0]) if digits else 0


def find(choice: str = "auto") -> Launcher:
    """Return the launcher for a suite's `launcher`: `auto`, a name on PATH, or a path.

    Raises LaunchError where there is none or where it is of an unknown kind.
    """
    path = _nearest() if choice == "auto" else shutil.which(os.path.expanduser(choice))  # noqa: PTH111 - Path drops ./
    if path is None:
        missing = (
            "no MPI found: no mpiexec or mpirun"
            if choice == "auto"
            else f"launcher {choice}: no such program"
        )
        raise LaunchError(f"{missing} beside this Python or on PATH; {_REMEDY}")
    return identify(str(path))


@functools.cache
def identify(path: str) -> Launcher:
    """Ask the launcher at `path` what it is."""
    try:
        answer = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{path} --version: {error}") from error
    text = answer.stdout + answer.stderr
    for flavour, pattern in _ANSWERS:
        if found := re.search(pattern, text, re.DOTALL):
            return Launcher(path=path, flavour=flavour, version=found["version"])
    said = text.strip().splitlines()[:1] or [f"nothing, exit code {answer.returncode}"]
    raise LaunchError(
        f"{path} --version says {said[0]!r}: not the launcher of MPICH, Open MPI, "
        f"Intel MPI, Slurm or Flux; {_REMEDY}"
    )


def _nearest() -> str | None:
    """Return the launcher of the library that mpi4py will load, as far as can be told without loading it.

    The wheel of mpi4py tries the folders of `_prefixes` and then the system's; an mpi4py that was compiled
    here is bound to the site's MPI.
    """
    if _loads_any_library() and not {"MPI4PY_LIBMPI", "MPI4PY_MPIABI"} & os.environ.keys():
        for prefix in _prefixes():
            if any((prefix / "lib").glob("libmpi.*")) and (path := _which(str(prefix / "bin"))):
                return path
    return _which(None)


def _which(folder: str | None) -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name, path=folder))), None)


def _loads_any_library() -> bool:
    """Tell whether mpi4py is the wheel, which has one module for each binary interface."""
    package = importlib.util.find_spec("mpi4py")
    folders = package.submodule_search_locations if package else None
    return any(next(Path(folder).glob("MPI.mpich*"), None) for folder in folders or ())


def _prefixes() -> Iterator[Path]:
    yield Path(sys.exec_prefix)
    if site.ENABLE_USER_SITE and site.USER_BASE:
        yield Path(site.USER_BASE)
    yield Path(sys.base_exec_prefix)
