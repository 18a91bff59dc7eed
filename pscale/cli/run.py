"""`pscale run`: measure the cases of suites, with progress, and report each suite when it is done."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pscale.cli.report import publish
from pscale.config import Case, to_dict
from pscale.errors import FAILED, INTERRUPTED, LaunchError, UsageError
from pscale.launch import campaign, machine, mpi, requirements
from pscale.launch.campaign import Job
from pscale.launch.command import check
from pscale.launch.journal import Journal, fingerprint, newest_unfinished
from pscale.launch.machine import Machine
from pscale.launch.outcome import Outcome
from pscale.launch.provenance import provenance
from pscale.parallel.predict import predict
from pscale.results.rows import launch_row
from pscale.results.store import write_part
from pscale.suite import Suite, expand, load_suite

_STATUS_STYLES = {"ok": "green"}
_REFRESHES_PER_SECOND = 1  # drawing takes CPU time from the ranks


@dataclass(frozen=True)
class Place:
    """Where runs are kept, and which one to go on with."""

    reports: Path
    new: bool
    folder: Path | None


@dataclass(frozen=True, kw_only=True)
class Work:
    """A suite that is ready to run."""

    suite: Suite
    cases: Sequence[Case]
    document: dict[str, Any]  # of run.json


def run(paths: Sequence[Path], overrides: Sequence[str], only: str | None, place: Place) -> int:
    """Run suites one after another, all checked before the first process starts; return the exit code."""
    here = machine.inspect()
    works = [_prepare(path, overrides, only, here) for path in paths]
    if place.folder and len(works) > 1:
        raise UsageError("--run names the folder of one run; give one suite with it")
    console = Console(stderr=True)
    code = 0
    for work in works:
        launcher = mpi.find(_launcher(work.cases))
        journal = _journal(work, place, console)
        try:
            _launch(journal, work, launcher, here, console)
        except KeyboardInterrupt:
            done, total = len(journal.finished()), len(work.cases) * work.suite.repeat
            console.print(
                f"\npscale: interrupted; {done} of {total} launches are kept in {journal.folder}\n"
                f"go on with the same command, report what there is with: pscale report '{journal.folder}'",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
            return INTERRUPTED
        if not publish(journal.folder):
            code = FAILED
    return code


def _prepare(path: Path, overrides: Sequence[str], only: str | None, here: Machine) -> Work:
    suite = load_suite(path, overrides)
    expansion = expand(suite, here.names(), only)
    for case in expansion.cases:
        check(case, here)
    requirements.check(expansion.cases, os.environ)
    document = {
        "suite": {
            "name": suite.name,
            "title": suite.title,
            "scaling": suite.scaling,
            "given": suite.given,
            "resolved": suite.resolved,
        },
        "expect": [asdict(expectation) for expectation in expansion.expect],
        "cases": [{**to_dict(case), "id": case.id} for case in expansion.cases],
        "repeats": suite.repeat,
        "seed": secrets.randbits(32),
        "provenance": {**provenance(), "machine": here.summary()},
    }
    return Work(suite=suite, cases=expansion.cases, document=document)


def _launcher(cases: Sequence[Case]) -> str:
    choices = {case.launch.launcher for case in cases}
    if len(choices) > 1:
        raise UsageError(f"a suite runs under one launcher, not {', '.join(sorted(choices))}")
    return choices.pop()


def _journal(work: Work, place: Place, console: Console) -> Journal:
    """Return the run to go on with, or a new one."""
    wanted = fingerprint(work.document)
    if place.folder:
        journal = Journal.open(place.folder)
        if fingerprint(journal.document) != wanted:
            raise UsageError(f"{place.folder} is a run of another suite, or of this one with other settings")
        return journal
    found = None if place.new else newest_unfinished(place.reports, work.suite.name, wanted)
    if found is None:
        return Journal.create(place.reports, work.suite.name, work.document)
    done = len(found.finished())
    console.print(
        f"going on with {found.folder}, where {done} launches have ended (--new begins anew)",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return found


def _launch(journal: Journal, work: Work, launcher: mpi.Launcher, here: Machine, console: Console) -> None:
    """Run what is left of the work, with a bar that knows how long the cases should take."""
    jobs = campaign.launches(work.cases, work.suite.repeat, journal.document["seed"])
    costs = {case.id: predict(case).model_flops * _steps(case) / _cores(case, here) for case in work.cases}
    finished = journal.finished()
    todo = [job for job in jobs if job.key not in finished]
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}/{task.fields[jobs]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=_REFRESHES_PER_SECOND,
        transient=True,
    )
    total = sum(costs[job.case.id] for job in todo)
    bar = progress.add_task(escape(work.suite.name), total=total, done=len(finished), jobs=len(jobs))

    def on_start(job: Job) -> None:
        progress.update(bar, description=escape(f"{work.suite.name}: {job.case.label}"))

    def on_end(job: Job, outcome: Outcome) -> None:
        row = _keep(journal, job, outcome)
        progress.update(bar, advance=costs[job.case.id], done=job.order + 1)
        console.print(_line(job, len(jobs), row), highlight=False)

    with progress:
        campaign.run(journal, todo, launcher, here, on_start=on_start, on_end=on_end)


def _steps(case: Case) -> int:
    return case.train.warmup + case.train.steps + 2 * case.timing.overhead_steps


def _cores(case: Case, here: Machine) -> int:
    return min(case.ranks * case.threads, here.usable_cores)


def _keep(journal: Journal, job: Job, outcome: Outcome) -> dict[str, Any]:
    """Write the row of a launch that has ended."""
    ended = {
        "status": outcome.status,
        "reason": outcome.reason,
        "wall_s": outcome.wall_s,
        "started_unix_s": outcome.started_unix_s,
        "order": job.order,
    }
    row = launch_row(job.case, journal.case_folder(job.key), ended)
    try:
        write_part(journal.data, "cases", *job.key, [row])
    except OSError as error:
        raise LaunchError(f"cannot write in {journal.data}: {error.strerror or error}") from error
    return row


def _line(job: Job, jobs: int, row: dict[str, Any]) -> str:
    """Say in one line how a launch went."""
    figure = f"{row['step_s'] * 1e3:.4g} ms a step" if row.get("step_s") else escape(row["reason"])
    style = _STATUS_STYLES.get(row["status"], "red")
    place = f"{job.order + 1:>{len(str(jobs))}}/{jobs}"
    return (
        f"{place}  {escape(job.case.label)} #{job.repeat + 1}  [{style}]{row['status']}[/{style}]  {figure}"
    )
