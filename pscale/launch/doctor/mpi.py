"""Whether MPI works: two ranks are started."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pscale.config import Launch
from pscale.errors import LaunchError, UsageError
from pscale.launch.command import Command
from pscale.launch.doctor import Finding, fail, ok, warn
from pscale.launch.launcher import Launcher, find
from pscale.launch.machine import Machine
from pscale.launch.selection import PROBE, check_hosts, probe, worlds
from pscale.launch.target import find_target

_RANKS = 2
_LIMIT_S = 20
_VENDORS = {"MPICH": "mpich", "Open MPI": "openmpi", "Intel MPI": "intel"}  # mpi4py's names
_MISMATCH = (
    "name the launcher of that library (`launch: {launcher: /path/to/mpiexec}`), or take one that brings "
    "both (`pip install 'pscale[mpich]'`, and no other MPI's wheel or module)"
)


def findings(machine: Machine, choice: str) -> Iterator[Finding]:
    """Find the launcher and start two ranks with it."""
    try:
        launcher = find(choice)
        yield ok("MPI launcher", f"{launcher.path} ({_named(launcher)})")
        folder = Path(tempfile.mkdtemp(prefix="pscale-doctor-"))
        found = list(_started(machine, launcher, folder))
    except LaunchError as error:
        yield fail("MPI launcher", str(error))
        return
    yield from found
    if all(finding.level != "fail" for finding in found):  # else the logs are worth a look
        shutil.rmtree(folder, ignore_errors=True)


def hosts(asked: Launch, reports: Path) -> Iterator[Finding]:
    """Start a rank on each of the user's hosts."""
    try:
        machine = find_target(asked, os.environ).machine
        named = ", ".join(f"{host}:{cores}" for host, cores in machine.hosts.items())
        above = next(each for each in (reports.absolute(), *reports.absolute().parents) if each.exists())
        with tempfile.TemporaryDirectory(prefix="pscale-doctor-", dir=above) as folder:
            check_hosts(find(asked.launcher), machine, asked, Path(folder))
    except (LaunchError, UsageError, OSError) as error:
        yield fail("hosts", str(error), "docs/clusters.md tells what launch.hosts needs")
        return
    yield ok("hosts", f"a rank on each of {named} met the others and saw {above}; {machine.all_cores} cores")


def _named(launcher: Launcher) -> str:
    names = {"mpich": "MPICH's Hydra", "openmpi": "Open MPI", "intel": "Intel MPI"}
    return f"{names.get(launcher.flavour, launcher.flavour)} {launcher.version}"


def _started(machine: Machine, launcher: Launcher, folder: Path) -> Iterator[Finding]:
    started = probe(launcher, machine, Launch(), _RANKS)
    answers, outcome = worlds(started, folder, _LIMIT_S)
    if answers:
        yield from judge(machine, launcher, answers, outcome.wall_s)
        return
    alone, _ = worlds(Command(argv=PROBE, env=os.environ), folder / "alone", _LIMIT_S)
    if alone and not _match(launcher, alone[0]):
        text = f"{launcher.path} ({_named(launcher)}) cannot start mpi4py, which loads {_library(alone[0])}"
        yield fail("MPI", text, _MISMATCH)
        return
    advice = f"see whether this works: {shlex.join(started.argv[: -len(PROBE)])} hostname"
    yield fail("MPI", f"{_RANKS} ranks cannot be started: {outcome.reason}", advice)


def judge(
    machine: Machine, launcher: Launcher, answers: Sequence[Mapping[str, Any]], wall_s: float
) -> Iterator[Finding]:
    """Say what the answers of the worlds' first ranks mean: there is one world if all is well."""
    world = answers[0]
    if world["size"] != _RANKS:
        text = (
            f"{launcher.path} ({_named(launcher)}) started {_RANKS} processes, but mpi4py loads "
            f"{_library(world)} and each is in a world of {world['size']}"
        )
        yield fail("MPI", text, _MISMATCH)
        return
    yield ok("MPI", f"{_RANKS} ranks of {_library(world)} started and ended in {wall_s:.1f} s")
    yield _binding(machine, [frozenset(rank["cpus"]) for rank in world["ranks"]])


def _library(world: Mapping[str, Any]) -> str:
    return f"{world['vendor']} {world['version']}"


def _match(launcher: Launcher, world: Mapping[str, Any]) -> bool:
    return _VENDORS.get(world["vendor"], launcher.flavour) == launcher.flavour


def _binding(machine: Machine, cpus: list[frozenset[int]]) -> Finding:
    if not machine.binds:
        return warn("binding", "ranks cannot be bound to cores: that is for Linux", "expect wider intervals")
    if machine.usable_cores < _RANKS:
        text = "one core: ranks share it and are not bound"
        return warn("binding", text, "measure one rank at a time")
    owned = {frozenset(core) for core in machine.core_cpus}
    if len(set(cpus)) == _RANKS and set(cpus) <= owned:
        return ok("binding", "each rank has its own core, as requested")
    got = " and ".join(",".join(map(str, sorted(rank))) for rank in cpus)
    return warn(
        "binding",
        f"each rank should have its own core, but they may run on CPUs {got}",
        "bind with the launcher's own options: `launch: {bind: none, extra: [...]}`",
    )
