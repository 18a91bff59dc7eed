"""The launcher of MPI processes: found on this machine, identified by its `--version`."""

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

from pscale.errors import LaunchError
from pscale.launch import isolated_process
from pscale.launch.scheduler import BY_LAUNCHER, Scheduler

_NAMES = ("mpiexec", "mpirun")
_ANSWERS: tuple[tuple[str, str], ...] = (  # Intel's is built on Hydra too, so it is asked for first
    ("intel", r"Intel\(R\) MPI Library.*?Version\s+(?P<version>[\w.]+)"),
    ("mpich", r"HYDRA build details:.*?Version:\s+(?P<version>\S+)"),
    ("openmpi", r"\((?:Open MPI|OpenRTE|PRRTE)\)\s+(?P<version>\S+)"),
    *((name, scheduler.launcher_version) for name, scheduler in BY_LAUNCHER.items()),
)
_ANSWER_LIMIT_S = 20
_ADVICE = (
    "install one with `pip install 'pscale[mpich]'`, or load the site's module "
    "(`module load mpi`), or name a launcher in the suite: `launch: {launcher: /path/to/mpiexec}`"
)


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A command that starts MPI processes."""

    path: str
    flavour: str  # "mpich", "openmpi", "intel", or a scheduler's launcher; empty: it was not asked
    version: str
    arguments: tuple[str, ...] = ()  # what follows the program

    @property
    def opening(self) -> tuple[str, ...]:
        """The command without the options that a case needs."""
        return self.path, *self.arguments

    @property
    def scheduler(self) -> Scheduler | None:
        """The scheduler whose own launcher this is; it starts ranks of any MPI."""
        return BY_LAUNCHER.get(self.flavour)

    @property
    def major(self) -> int:
        """First number of the version; 0 where it has none."""
        digits = re.match(r"\d+", self.version)
        return int(digits[0]) if digits else 0


def find(choice: str = "auto", *, asks: bool = True) -> Launcher:
    """Return the launcher for a suite's `launcher`: `auto`, a name on PATH, or a path.

    Unless it `asks`, a program that is neither beside this Python nor on PATH is not started to say what it
    is: it has no flavour. Raises LaunchError where there is none or where it is of an unknown kind.
    """
    path = _nearest() if choice == "auto" else shutil.which(os.path.expanduser(choice))  # noqa: PTH111 - Path drops ./
    if path is None:
        missing = (
            "no MPI found: no mpiexec or mpirun"
            if choice == "auto"
            else f"launcher {choice}: no such program"
        )
        raise LaunchError(f"{missing} next to this Python or on PATH; {_ADVICE}")
    path = os.path.abspath(path)  # noqa: PTH100 - of a text; programs start in folders of their own
    if not asks and not _is_installed(path):
        return Launcher(path=path, flavour="", version="")
    return identify(path)


def _is_installed(path: str) -> bool:
    """Tell whether it would be found without its path: no suite has brought it."""
    found = _nearest(), shutil.which(Path(path).name)
    return any(each and os.path.samefile(path, each) for each in found)  # noqa: PTH121 - of texts


@functools.cache
def identify(path: str) -> Launcher:
    """Ask the launcher at `path` what it is."""
    try:
        answer = isolated_process.ask((path, "--version"), _ANSWER_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{path} --version: {error}") from error
    text = answer.out + answer.err
    for flavour, pattern in _ANSWERS:
        if found := re.search(pattern, text, re.DOTALL | re.MULTILINE):
            own = BY_LAUNCHER.get(flavour)
            arguments = own.launcher_command if own else ()
            return Launcher(path=path, flavour=flavour, version=found["version"], arguments=arguments)
    said = text.strip().splitlines()[:1] or [f"nothing, exit code {answer.code}"]
    if "home directory" in text:  # prterun of Open MPI starts nothing without one
        raise LaunchError(f"{path} says {said[0]!r}: set HOME to a folder that can be written")
    known = ["MPICH", "Open MPI", "Intel MPI", *(scheduler.title for scheduler in BY_LAUNCHER.values())]
    raise LaunchError(
        f"{path} --version says {said[0]!r}: not the launcher of "
        f"{', '.join(known[:-1])} or {known[-1]}; {_ADVICE}"
    )


def _nearest() -> str | None:
    """Return the launcher of the library that mpi4py will load, as far as is known without loading it.

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
