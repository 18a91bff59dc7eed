"""`pscale run` on a login node: submit jobs and show their progress, or only print them."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from pscale.analysis.wording import duration
from pscale.cli.console import say
from pscale.cli.launches import needed, planned, write_row
from pscale.cli.prepare import PreparedSuite
from pscale.cli.workload_tables import watching
from pscale.config import Case
from pscale.config.case import UNCOUNTED
from pscale.errors import ResultsError
from pscale.launch import jobs, runner
from pscale.launch.command import Command, command
from pscale.launch.job_manager import JobManager, SchedulerSettings
from pscale.launch.jobs import PlannedJob, open_jobs, plan_jobs
from pscale.launch.journal import Journal, Key
from pscale.launch.launcher import Launcher
from pscale.launch.machine import Machine
from pscale.launch.outcome import Outcome
from pscale.launch.runner import CaseLaunch
from pscale.launch.scheduler import Scheduler
from pscale.launch.selection import candidates
from pscale.runs.store import read_part

_STATUS_STYLES = dict.fromkeys(("ok", *UNCOUNTED), "green")
_SEED = 0  # of a dry run


def manager_of(suite: PreparedSuite, journal: Journal, console: Console) -> JobManager:
    """Return what submits and watches the jobs of a run."""
    target, scheduler = suite.target, suite.target.site.scheduler
    assert scheduler is not None, "only called where jobs are submitted"

    def on_end(launch: CaseLaunch, outcome: Outcome) -> None:
        write_row(journal, launch, outcome, suite.fits[launch.case.id].columns)

    return JobManager(
        journal=journal,
        todo=planned(journal),
        refused=suite.refused(),
        settings=SchedulerSettings(
            scheduler=scheduler,
            machine=target.machine,
            max_time_s=target.max_time_s,
            poll_s=suite.site.poll_s,
        ),
        on_end=on_end,
        tell=lambda text: say(console, text),
    )


def wait(manager: JobManager, console: Console) -> bool:
    """Stay until all jobs have ended; tell whether all launches have: those that were cancelled are left."""
    launches = _EndedLaunches(manager, console)
    with console.status("") as line:

        def on_look(manager: JobManager) -> None:
            launches.show()
            line.update(launches.findings(manager))

        manager.launch(wait=True, on_look=on_look)
    return manager.journal.is_finished()


class _EndedLaunches:
    """Prints each launch once, when it has ended."""

    def __init__(self, manager: JobManager, console: Console):
        self._manager, self._console = manager, console
        self._launches = {launch.key: launch for launch in manager.todo}
        self._shown, self._needed = manager.journal.finished(), needed(manager.journal)

    def show(self) -> None:
        """Print what has ended since the last time."""
        for record in self._manager.journal.records():
            if record["event"] != "ended":
                continue
            launch = self._launches.get((record["case"], record["repeat"]))
            if launch is None or launch.key in self._shown:
                continue
            self._shown.add(launch.key)
            style = _STATUS_STYLES.get(record["status"], "red")
            said = escape(record["reason"]) or self._figure(launch.key, record["wall_s"])
            self._console.print(
                f"{len(self._shown)}/{self._needed}  {escape(launch.case.label)} #{launch.repeat + 1}  "
                f"[{style}]{record['status']}[/{style}]  {said}",
                highlight=False,
            )

    def _figure(self, key: Key, wall_s: float) -> str:
        """Return how long a step took, as without jobs, or the launch where its row is not here."""
        try:
            (row,) = read_part(self._manager.journal.data, "cases", *key).to_pylist()
        except (ResultsError, ValueError):
            row = {}
        return f"{duration(row['step_s'], 4)} a step" if row.get("step_s") else f"{duration(wall_s)} in all"

    def findings(self, manager: JobManager) -> str:
        """Say in one line how many launches have ended, and what the jobs do."""
        statuses = (manager.statuses.get(job.name) for job in open_jobs(manager.journal))
        phases = Counter(status.phase if status else "submitted" for status in statuses)
        said = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items())) or "none open"
        return f"{len(self._shown)} of {self._needed} launches; jobs: {said}; Ctrl-C leaves them running"


def detached(journal: Journal) -> str:
    """Say how to continue a run whose jobs run without pscale."""
    folder = journal.folder
    ended = f"{len(journal.finished())} of {needed(journal)} launches have ended"
    return (
        f"{ended}, jobs run without pscale; run: {folder}\n"
        f"see its state:       pscale status '{folder}'\n"
        "wait and report:     the same command again\n"
        f"end its jobs:        pscale cancel '{folder}'"
    )


def dry_run(suite: PreparedSuite, reports: Path) -> Iterator[str]:
    """Yield every script and command of a run as blocks of text; start and write nothing.

    With the name of a run in place of RUN each command starts a launch of it again.
    """
    target, folder = suite.target, reports.absolute() / suite.suite.name / "RUN"
    yield f"# {target.site.reason}\n# RUN stands for the name of the run"
    if target.site.scheduler is None:
        launcher = suite.launcher(asks=False)
        for case in suite.cases:
            yield _line(case, folder, launcher, target.machine)
        return
    todo = runner.plan_launches(suite.cases, suite.repeats, _SEED)
    planned = plan_jobs(todo, target.machine, suite.repeats, target.max_time_s)
    for number, job in enumerate(planned, start=1):
        yield from _job(job, number, folder, target.site.scheduler, target.machine)


def _job(job: PlannedJob, number: int, run: Path, scheduler: Scheduler, machine: Machine) -> Iterator[str]:
    folder = run / "jobs" / jobs.branch(number)
    request = job.request(f"pscale-RUN-{number}", folder)
    script = folder / jobs.SCRIPT
    submission = shlex.join(scheduler.submission(request, script))
    yield f"# job {number}: {len(job.launches)} launches\n{submission}"
    yield f"# {script}\n{scheduler.render(request)}"
    launchers = list(candidates(job.launches[0].case.launch.launcher, scheduler.name, asks=False))
    found = " or ".join(" ".join(launcher.opening) for launcher in launchers)
    yield f"# the job uses the first of these launchers that works: {found or 'those on its nodes'}"
    if not launchers:
        return
    for case in {launch.case.id: launch.case for launch in job.launches}.values():
        yield _line(case, run, launchers[0], machine)


def command_of(case: Case, run: Path, launcher: Launcher, machine: Machine) -> Command:
    """Return the command of a case's first launch with the variables that pscale sets for it."""
    folder = Journal(run, {}).case_folder((case.id, 0))
    words = runner.of_rank(case, folder, machine, watching(launcher))
    return command(case, launcher, words, machine, environ={}, root=os.geteuid() == 0)


def _line(case: Case, run: Path, launcher: Launcher, machine: Machine) -> str:
    """Return the command line of a case's first launch and the variables that pscale sets for it."""
    started = command_of(case, run, launcher, machine)
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(started.env.items()))
    return f"# {case.label}\n{variables} {shlex.join(started.argv)}"
