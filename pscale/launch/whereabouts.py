"""Where launches happen: here, inside the job around pscale, or in jobs that are submitted."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from pscale.config.choices import SchedulerChoice
from pscale.errors import LaunchError
from pscale.launch.allocation import Allocation, allocation
from pscale.launch.scheduler import SCHEDULERS, Scheduler
from pscale.launch.scheduler.tools import UNANSWERED, ask

_PATIENCE = "try again when it answers, or launch on this machine: `--set launch.scheduler=none`"


@dataclass(frozen=True, kw_only=True)
class Whereabouts:
    """With a scheduler launches are submitted to it; else they happen here, in `inside` if that is a job."""

    why: str
    scheduler: Scheduler | None = None
    inside: Allocation | None = None
    silent: tuple[Scheduler, ...] = ()  # whose commands are here, and of no use


def decide(choice: SchedulerChoice, environ: Mapping[str, str]) -> Whereabouts:
    """Return where to launch; `choice` is that of the suite.

    Inside a job nothing is submitted, whatever the choice: that a person has made by starting pscale there.
    Raises LaunchError for a scheduler that is named and does not answer, and for one that is here but cannot
    be reached now: launches that were meant for its nodes would happen on a login node.
    """
    if choice == "none":
        return Whereabouts(why="launches happen here: the suite or site says scheduler: none")
    if found := allocation(environ):
        nodes = f"{found.nodes} node{'s' if found.nodes > 1 else ''}"
        return Whereabouts(
            why=f"launches happen inside this job, {found.scheduler} {found.job} with {nodes}", inside=found
        )
    if choice != "auto":
        scheduler = next(each for each in SCHEDULERS if each.name == choice)
        if trouble := _trouble(scheduler):
            raise LaunchError(f"scheduler: {choice}: {trouble}")
        return Whereabouts(why=f"jobs are submitted: the suite or site says {choice}", scheduler=scheduler)
    silent: dict[Scheduler, str] = {}
    for scheduler in SCHEDULERS:
        if shutil.which(scheduler.submits):
            trouble = _trouble(scheduler)
            if not trouble:
                return Whereabouts(
                    why=f"jobs are submitted: {scheduler.name} answers here", scheduler=scheduler
                )
            if re.search(f"{scheduler.down}|{UNANSWERED}", trouble):
                raise LaunchError(f"{trouble}; {_PATIENCE}")
            silent[scheduler] = trouble
    why = "; ".join(["launches happen here: no scheduler answers", *silent.values()])
    return Whereabouts(why=why, silent=tuple(silent))


def _trouble(scheduler: Scheduler) -> str:
    """Return why jobs cannot be submitted, or nothing."""
    if not shutil.which(scheduler.submits):
        return f"there is no {scheduler.submits} on PATH"
    try:
        answer = ask(scheduler.alive)
    except LaunchError as error:
        return str(error)
    asked = " ".join(scheduler.alive)
    return f"{scheduler.submits} is here, but `{asked}` says: {answer.last_words}" if answer.code else ""
