"""Which launcher to use inside a job: one that was seen to make one world of its ranks, and is remembered."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pscale.config import Launch
from pscale.errors import LaunchError
from pscale.launch import mpi
from pscale.launch.allocation import Allocation
from pscale.launch.machine import Machine
from pscale.launch.mpi import Flavour, Launcher
from pscale.launch.scheduler.tools import Answer, ask
from pscale.launch.trial import is_one_world, trial, worlds

_OF_SCHEDULERS: Mapping[str, Flavour] = {"slurm": "srun", "flux": "flux"}
_PMI = {  # what the library of each kind may understand, the better first
    "mpich": ("pmi2", "pmix", "cray_shasta"),
    "intel": ("pmi2", "pmix"),
    "openmpi": ("pmix", "pmi2"),
}
_OF_MPI = re.compile(r"PMI|MPI_|MPI (type|plugin)|plugin", re.IGNORECASE)  # what will be so next time, too
_PASSES = re.compile(  # said of schedulers that stumble, and of nodes that are at other work
    r"timed? ?out|contact|connect|respond|try again|retry|temporar|busy|completing|communication|node fail",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """Why a launcher will not do; whether it never will, or could not be tried."""

    reason: str
    is_firm: bool


def find(launch: Launch, inside: Allocation | None, machine: Machine) -> Launcher:
    """Return the launcher for a suite's `launch` where pscale runs now.

    Outside of jobs and for a launcher that is named this is the one that `mpi.find` finds. Inside a job
    `auto` tries what there is with two ranks, on two nodes if there are some, and remembers what works unless
    a better one might have. Raises LaunchError that says how each has failed.
    """
    if inside is None:
        return mpi.find(launch.launcher)
    ways = list(candidates(launch.launcher, inside))
    if len(ways) == 1 and launch.launcher != "auto":
        return ways[0]
    memory = _Memory(inside, ways[-1] if ways else None)
    if (known := memory.read()) in ways:
        return known
    failures: list[_Failure] = []
    with tempfile.TemporaryDirectory(prefix="pscale-trial-") as folder:
        for number, way in enumerate(ways):
            if failure := _failure(way, machine, launch, Path(folder, str(number))):
                failures.append(failure)
                continue
            if all(each.is_firm for each in failures):
                memory.write(way)
            return way
    told = "".join(
        f"\n  {' '.join(way.opening)}: {failure.reason}" for way, failure in zip(ways, failures, strict=True)
    )
    raise LaunchError(
        f"no launcher makes one world of two ranks here:{told}\nname one that does in the suite "
        "or the site's profile, `launch: {launcher: ...}`; mpi4py and the launcher must be of one MPI"
    )


def candidates(choice: str, inside: Allocation) -> Iterator[Launcher]:
    """Yield the launchers that may work, the scheduler's own first: it knows the job's cores best."""
    try:
        found = mpi.find(choice)
    except LaunchError:
        if choice != "auto":
            raise
        found = None
    scheduler = _OF_SCHEDULERS.get(inside.scheduler)
    of_scheduler = found if found and found.flavour in mpi.SCHEDULERS else None
    if choice == "auto" and scheduler and (path := shutil.which(scheduler)):
        of_scheduler = _identified(path, scheduler)
    if of_scheduler and of_scheduler.flavour == "srun":
        yield from _with_pmi(of_scheduler, found)
    elif of_scheduler:
        yield of_scheduler
    if found and found != of_scheduler:
        yield found


def _identified(path: str, flavour: Flavour) -> Launcher:
    """Return the launcher of a scheduler; one that cannot say what it is now may work all the same."""
    try:
        return mpi.identify(path)
    except LaunchError:
        return Launcher(path=path, flavour=flavour, version="")


def _with_pmi(srun: Launcher, library: Launcher | None) -> Iterator[Launcher]:
    """Yield srun with each interface that both it and the MPI library may know."""
    try:
        answer = ask((srun.path, "--mpi=list"))
    except LaunchError as error:
        answer = Answer(code=1, out="", err=str(error))
    offered = set(re.findall(r"\b(pmix|pmi2|cray_shasta)\b", answer.out + answer.err))
    flavour = library.flavour if library else "mpich"
    for pmi in _PMI.get(flavour, _PMI["mpich"]):
        if pmi in offered or answer.code:  # where it does not tell, trials will
            yield Launcher(path=srun.path, flavour="srun", version=srun.version, pmi=pmi)


def _failure(way: Launcher, machine: Machine, launch: Launch, folder: Path) -> _Failure | None:
    """Return why a launcher will not do, if so."""
    ranks = 2
    try:
        answers, outcome = worlds(trial(way, machine, launch, ranks), folder)
    except LaunchError as error:
        return _Failure(reason=str(error), is_firm=True)
    if is_one_world(answers, ranks):
        return None
    if answers:
        sizes = ", ".join(str(answer["size"]) for answer in answers)
        return _Failure(reason=f"{ranks} ranks are in worlds of {sizes}", is_firm=True)
    reason = re.sub(r" \[[^\]]*\]$", "", outcome.reason)  # the log that it names goes away
    is_firm = outcome.status != "timeout" and bool(_OF_MPI.search(reason)) and not _PASSES.search(reason)
    return _Failure(reason=reason, is_firm=is_firm)


class _Memory:
    """What worked last time, in the user's cache: for this scheduler, this Python and this MPI."""

    def __init__(self, inside: Allocation, own: Launcher | None):
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._path = cache / "pscale" / "launchers.json"
        cluster = os.environ.get("SLURM_CLUSTER_NAME", "")
        library = f"{own.path} {own.version}" if own else ""
        self._key = f"{inside.scheduler} {cluster} {sys.prefix} {library}"

    def read(self) -> Launcher | None:
        known = self._all().get(self._key)
        try:
            return Launcher(**known) if known else None
        except TypeError:
            return None

    def write(self, way: Launcher) -> None:
        """Remember; a place that cannot be written only costs another trial."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps({**self._all(), self._key: asdict(way)}, indent=1))
            temporary.replace(self._path)
        except OSError:
            pass

    def _all(self) -> dict[str, Any]:
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}
