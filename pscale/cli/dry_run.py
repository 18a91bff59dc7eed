"""`pscale run --dry-run`: every script and command line, and nothing started or written."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from pscale.cli.work import Work
from pscale.config import Case
from pscale.launch import campaign, jobs, ways
from pscale.launch.allocation import Allocation
from pscale.launch.command import command
from pscale.launch.journal import Journal
from pscale.launch.machine import Machine
from pscale.launch.mpi import Launcher
from pscale.launch.packing import Pack, pack
from pscale.launch.scheduler import Scheduler

_SEED = 0


def dry_run(work: Work, reports: Path) -> Iterator[str]:
    """Yield what would be submitted and started, as blocks of text.

    With the name of a run in place of RUN each command starts a launch of it again.
    """
    todo = campaign.launches(work.cases, work.repeats, _SEED)
    folder = reports.absolute() / work.suite.name / "RUN"
    yield f"# {work.ground.where.why}\n# RUN is the name that the run gets when it begins"
    scheduler = work.ground.where.scheduler
    if scheduler is None:
        launcher = work.launcher()
        for case in work.cases:
            yield _line(case, folder, launcher, work.ground.machine)
        return
    for number, each in enumerate(pack(todo, work.ground.shape, work.repeats), start=1):
        yield from _job(each, number, folder, scheduler, work)


def _job(each: Pack, number: int, run: Path, scheduler: Scheduler, work: Work) -> Iterator[str]:
    folder = run / "jobs" / jobs.branch(number)
    request = each.request(f"pscale-RUN-{number}", folder)
    script = folder / jobs.SCRIPT
    submission = shlex.join(scheduler.submission(request, script))
    yield f"# job {number}: {len(each.launches)} launches\n{submission}"
    yield f"# {script}\n{scheduler.render(request)}"
    inside = Allocation(scheduler=scheduler.name, job="JOB", nodes=each.nodes)
    launchers = list(ways.candidates(each.launches[0].case.launch.launcher, inside))
    found = " or ".join(" ".join(launcher.opening) for launcher in launchers)
    yield f"# in it, by the first that makes one world: {found or 'what is found there, as here is none'}"
    if not launchers:
        return
    for case in {job.case.id: job.case for job in each.launches}.values():
        yield _line(case, run, launchers[0], work.ground.machine)


def _line(case: Case, run: Path, launcher: Launcher, machine: Machine) -> str:
    """Return the command line of a case's first launch and the variables that pscale sets for it."""
    worker = campaign.worker(Journal(run, {}).case_folder((case.id, 0)))
    order = command(case, launcher, worker, machine, environ={}, root=os.geteuid() == 0)
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(order.env.items()))
    return f"# {case.label}\n{variables} {shlex.join(order.argv)}"
