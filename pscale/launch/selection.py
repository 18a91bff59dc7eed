"""Which launcher to use inside a job: the first whose two probe ranks meet in one MPI world."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pscale.config import Case, Launch, Plan
from pscale.errors import LaunchError
from pscale.launch import isolated_process, local
from pscale.launch import launcher as launchers
from pscale.launch.command import Command, command
from pscale.launch.launcher import Launcher
from pscale.launch.machine import Machine
from pscale.launch.outcome import STDOUT, Outcome
from pscale.launch.scheduler import BY_NAME
from pscale.launch.scheduler.base import Allocation

PROBE = (sys.executable, "-P", "-m", "pscale.worker.probe", "world")
_PROBE_LIMIT_S = 60
_PROBE_RANKS = 2
_APART = "mpi4py and the launcher are of different MPIs"


def select(launch: Launch, allocation: Allocation | None, machine: Machine) -> Launcher:
    """Return the launcher for a suite's `launch` where pscale runs now.

    Outside of jobs and for a launcher that is named this is the one that `launcher.find` finds. Inside a job
    `auto` probes each candidate with two ranks, on two nodes if there are some, until one works. Raises
    LaunchError that says how each failed.
    """
    if allocation is None:
        return launchers.find(launch.launcher)
    check(allocation, machine)
    found = list(candidates(launch.launcher, allocation.scheduler))
    if len(found) == 1 and launch.launcher != "auto":
        return found[0]
    reasons = ""
    with tempfile.TemporaryDirectory(prefix="pscale-probe-") as folder:
        for number, candidate in enumerate(found):
            reason = _failure(candidate, machine, launch, Path(folder, str(number)))
            if not reason:
                return candidate
            reasons += f"\n  {' '.join(candidate.opening)}: {reason}"
    raise LaunchError(
        f"no launcher makes one world of two ranks here:{reasons}\nname one that does in the suite "
        "or the site's profile, `launch: {launcher: ...}`; mpi4py and the launcher must be of one MPI"
    )


def check_hosts(launcher: Launcher, machine: Machine, asked: Launch, folder: Path) -> None:
    """Start a rank on each of the user's hosts; raise LaunchError where one does not see the run's `folder`.

    A launch that could not start would only end at its time limit.
    """
    started = probe(launcher, machine, asked, len(machine.hosts))
    started = replace(started, argv=(*started.argv, str(folder)))
    hosts = ", ".join(machine.hosts)
    with tempfile.TemporaryDirectory(prefix="pscale-probe-") as logs:
        answers, outcome = worlds(started, Path(logs))
        if [each["size"] for each in answers] != [len(machine.hosts)]:
            raise LaunchError(f"no ranks on {hosts} meet: {_without_log(outcome.reason) or _APART}")
    blind = [rank["host"] for rank in answers[0]["ranks"] if not rank["sees"]]
    if blind:
        raise LaunchError(
            f"{', '.join(blind)} does not see {folder}; put --reports on a file system that all hosts share"
        )


def check(allocation: Allocation, machine: Machine) -> None:
    """Raise LaunchError where no launch can start in the job around this process."""
    scheduler = BY_NAME[allocation.scheduler]
    if obstacle := scheduler.obstacle(os.environ, machine.nodes, machine.usable_cores):
        raise LaunchError(obstacle)


def likely(launch: Launch, allocation: Allocation | None) -> Launcher:
    """Return the launcher that `select` tries first; starts no program that a suite may have brought."""
    if allocation is None:
        return launchers.find(launch.launcher, asks=False)
    found = next(candidates(launch.launcher, allocation.scheduler, asks=False), None)
    if found is None:
        raise LaunchError("there is no launcher here")
    return found


def candidates(choice: str, scheduler_name: str, *, asks: bool = True) -> Iterator[Launcher]:
    """Yield the launchers that may work, the scheduler's own first: it knows the job's cores best."""
    try:
        found = launchers.find(choice, asks=asks)
    except LaunchError:
        if choice != "auto":
            raise
        found = None
    own = found if found and found.scheduler else None
    scheduler = BY_NAME[scheduler_name]
    if choice == "auto" and scheduler.launcher and (path := shutil.which(scheduler.launcher)):
        own = _identified(path, scheduler.launcher, scheduler.launcher_command)
    if own and own.scheduler:
        for interface in own.scheduler.launcher_interfaces(own.path, found.flavour if found else ""):
            yield replace(own, arguments=(*own.arguments, *interface))
    if found and found != own:
        yield found


def _identified(path: str, flavour: str, arguments: tuple[str, ...]) -> Launcher:
    """Return the launcher of a scheduler; one that cannot say what it is now may work all the same."""
    try:
        return launchers.identify(path)
    except LaunchError:
        return Launcher(path=path, flavour=flavour, version="", arguments=arguments)


def probe(launcher: Launcher, machine: Machine, asked: Launch, ranks: int = _PROBE_RANKS) -> Command:
    """Return what starts ranks that report their MPI world, one on each node if there are several."""
    per_node = 1 if machine.nodes > 1 else 0
    launch = Launch(oversubscribe=True, ranks_per_node=per_node, extra=asked.extra, env=asked.env)
    case = Case(suite="probe", label="probe", ranks=ranks, plan=Plan(dp=ranks), launch=launch)
    return command(case, launcher, PROBE, machine, environ=os.environ, root=os.geteuid() == 0)


def worlds(
    started: Command, folder: Path, limit_s: float = _PROBE_LIMIT_S
) -> tuple[list[dict[str, Any]], Outcome]:
    """Return the answers of the first rank of every world that a probe made, none after an error."""
    folder.mkdir(exist_ok=True, parents=True)
    outcome = local.launch(started, folder, limit_s)
    said = (folder / STDOUT).read_text(errors="replace") if outcome.exit_code == 0 else ""
    return [each for each in isolated_process.documents(said) if "size" in each], outcome


def _failure(candidate: Launcher, machine: Machine, launch: Launch, folder: Path) -> str:
    """Return why a launcher does not work; empty if it does."""
    try:
        answers, outcome = worlds(probe(candidate, machine, launch), folder)
    except LaunchError as error:
        return str(error)
    sizes: Sequence[int] = [answer["size"] for answer in answers]
    if sizes == [_PROBE_RANKS]:
        return ""
    if sizes:
        return f"{_PROBE_RANKS} ranks are in worlds of {', '.join(map(str, sizes))}"
    return _without_log(outcome.reason)


def _without_log(reason: str) -> str:
    """Return a reason without the log that it names, which is deleted."""
    return re.sub(r" \[[^\]]*\]$", "", reason)
