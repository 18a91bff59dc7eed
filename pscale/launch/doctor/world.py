"""Does MPI work? Two ranks are really started."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pscale.config import Launch
from pscale.errors import LaunchError
from pscale.launch import mpi
from pscale.launch.command import Command
from pscale.launch.doctor.finding import Finding
from pscale.launch.machine import Machine
from pscale.launch.mpi import Launcher
from pscale.launch.trial import PROBE, trial, worlds

_RANKS = 2
_LIMIT_S = 20
_VENDORS = {"MPICH": "mpich", "Open MPI": "openmpi", "Intel MPI": "intel"}  # as mpi4py calls them
_MISMATCH = (
    "name the launcher of that library (`launch: {launcher: /path/to/mpiexec}`), or take one that brings "
    "both (`pip install 'pscale[mpich]'`, and no other MPI's wheel or module beside it)"
)


def findings(machine: Machine, choice: str) -> Iterator[Finding]:
    """Find the launcher and start two ranks with it."""
    try:
        launcher = mpi.find(choice)
        yield Finding(topic="MPI launcher", level="ok", text=f"{launcher.path} ({_named(launcher)})")
        folder = Path(tempfile.mkdtemp(prefix="pscale-doctor-"))
        found = list(_started(machine, launcher, folder))
    except LaunchError as error:
        yield Finding(topic="MPI launcher", level="fail", text=str(error))
        return
    yield from found
    if all(finding.level != "fail" for finding in found):  # else the logs are worth a look
        shutil.rmtree(folder, ignore_errors=True)


def _named(launcher: Launcher) -> str:
    names = {"mpich": "MPICH's Hydra", "openmpi": "Open MPI", "intel": "Intel MPI"}
    return f"{names[launcher.flavour]} {launcher.version}"


def _started(machine: Machine, launcher: Launcher, folder: Path) -> Iterator[Finding]:
    order = trial(launcher, machine, Launch(), _RANKS)
    answers, outcome = worlds(order, folder, _LIMIT_S)
    if answers:
        yield from judge(machine, launcher, answers, outcome.wall_s)
        return
    alone, _ = worlds(Command(argv=PROBE, env=os.environ), folder / "alone", _LIMIT_S)
    if alone and not _belong(launcher, alone[0]):
        text = f"{launcher.path} ({_named(launcher)}) cannot start mpi4py, which loads {_library(alone[0])}"
        yield Finding(topic="MPI", level="fail", text=text, remedy=_MISMATCH)
        return
    text = f"{_RANKS} ranks cannot be started: {outcome.reason}"
    remedy = f"see whether this works: {shlex.join(order.argv[: -len(PROBE)])} hostname"
    yield Finding(topic="MPI", level="fail", text=text, remedy=remedy)


def judge(
    machine: Machine, launcher: Launcher, answers: Sequence[Mapping[str, Any]], wall_s: float
) -> Iterator[Finding]:
    """Say what the answers of the worlds' first ranks mean: one answer if all is well, one a rank if not."""
    world = answers[0]
    if world["size"] != _RANKS:
        text = (
            f"{launcher.path} ({_named(launcher)}) started {_RANKS} processes, but mpi4py loads "
            f"{_library(world)} and each is in a world of {world['size']}"
        )
        yield Finding(topic="MPI", level="fail", text=text, remedy=_MISMATCH)
        return
    text = f"{_RANKS} ranks of {_library(world)} met and parted in {wall_s:.1f} s"
    yield Finding(topic="MPI", level="ok", text=text)
    yield _binding(machine, [frozenset(rank["cpus"]) for rank in world["ranks"]])


def _library(world: Mapping[str, Any]) -> str:
    return f"{world['vendor']} {world['version']}"


def _belong(launcher: Launcher, world: Mapping[str, Any]) -> bool:
    return _VENDORS.get(world["vendor"], launcher.flavour) == launcher.flavour


def _binding(machine: Machine, cpus: list[frozenset[int]]) -> Finding:
    if machine.usable_cores < _RANKS:
        text = "one core: ranks share it and are not bound"
        return Finding(
            topic="binding", level="warn", text=text, remedy="one rank at a time measures what is asked"
        )
    owned = {frozenset(core) for core in machine.core_cpus}
    if len(set(cpus)) == _RANKS and set(cpus) <= owned:
        return Finding(topic="binding", level="ok", text="each rank has a core of its own, as asked")
    got = " and ".join(",".join(map(str, sorted(rank))) for rank in cpus)
    return Finding(
        topic="binding",
        level="warn",
        text=f"each rank was to have a core of its own, but they may run on CPUs {got}",
        remedy="bind with the launcher's own options: `launch: {bind: none, extra: [...]}`",
    )
