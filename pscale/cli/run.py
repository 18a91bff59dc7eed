"""`pscale run`: measure the cases of suites, with progress, and report each suite when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pscale.cli.auto import UntilPrecise
from pscale.cli.report import publish
from pscale.cli.room import Room
from pscale.cli.work import Work, prepare
from pscale.config import Case
from pscale.errors import FAILED, INTERRUPTED, LaunchError, UsageError
from pscale.launch import campaign, machine
from pscale.launch.campaign import Job
from pscale.launch.journal import Journal, fingerprint, newest_unfinished
from pscale.launch.machine import Machine
from pscale.launch.mpi import Launcher
from pscale.launch.outcome import Outcome
from pscale.results.rows import launch_row
from pscale.results.store import write_part

_STATUS_STYLES = {"ok": "green", "skipped": "yellow"}
_REFRESHES_PER_SECOND = 1  # drawing takes CPU time from the ranks


@dataclass(frozen=True)
class Place:
    """Where runs are kept, and which one to go on with."""

    reports: Path
    new: bool
    folder: Path | None


@dataclass
class Count:
    """Launches that have ended, and those known to be needed; with `repeat: auto` they become more."""

    ended: int
    known: int


def run(paths: Sequence[Path], overrides: Sequence[str], only: str | None, place: Place) -> int:
    """Run suites one after another, all checked before the first process starts; return the exit code."""
    here = machine.inspect()
    works = [prepare(path, overrides, only, here) for path in paths]
    if place.folder and len(works) > 1:
        raise UsageError("--run names the folder of one run; give one suite with it")
    console = Console(stderr=True)
    code = 0
    for work in works:
        launcher = work.launcher()
        journal = _journal(work, place, here, console)
        try:
            _launch(journal, work, launcher, here, console)
        except KeyboardInterrupt:
            done, least = len(journal.finished()), len(work.cases) * work.repeats
            total = f"at least {least}" if work.auto else least
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


def _journal(work: Work, place: Place, here: Machine, console: Console) -> Journal:
    """Return the run to go on with, or a new one."""
    document = work.document(here)
    wanted = fingerprint(document)
    if place.folder:
        journal = Journal.open(place.folder)
        if fingerprint(journal.document) != wanted:
            raise UsageError(f"{place.folder} is a run of another suite, or of this one with other settings")
        return journal
    found = None if place.new else newest_unfinished(place.reports, work.suite.name, wanted)
    if found is None:
        return Journal.create(place.reports, work.suite.name, document)
    done = len(found.finished())
    console.print(
        f"going on with {found.folder}, where {done} launches have ended (--new begins anew)",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return found


def _launch(journal: Journal, work: Work, launcher: Launcher, here: Machine, console: Console) -> None:
    """Run what is left of the work, with a bar that knows how long the cases should take."""
    most = work.auto.most if work.auto else work.repeats
    jobs = campaign.launches(work.cases, most, journal.document["seed"])
    until = UntilPrecise(journal) if work.auto else None
    rooms = {case.id: Room(case, here) for case in work.cases}
    costs = {
        case.id: rooms[case.id].fullest.model_flops * _steps(case) / _cores(case, here) for case in work.cases
    }
    finished = journal.finished()
    todo = [job for job in jobs if job.key not in finished]
    refused = {case: room.refusal for case, room in rooms.items() if room.refusal}
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
    certain = [job for job in todo if job.repeat < work.repeats]
    total = sum(costs[job.case.id] for job in certain)
    count = Count(ended=len(finished), known=len(finished) + len(certain))
    bar = progress.add_task(escape(work.suite.name), total=total, done=count.ended, jobs=count.known)

    def on_start(job: Job) -> None:
        nonlocal total
        if job.repeat >= work.repeats:
            count.known += 1
            total += costs[job.case.id]
        description = escape(f"{work.suite.name}: {job.case.label}")
        progress.update(bar, description=description, total=total, jobs=count.known)

    def on_end(job: Job, outcome: Outcome) -> None:
        row = _keep(journal, job, outcome, rooms[job.case.id])
        count.ended += 1
        progress.update(bar, advance=costs[job.case.id], done=count.ended)
        console.print(_line(job, count, row, until.reached(job) if until else ""), highlight=False)

    wanted = until.wanted if until else campaign.always
    with progress:
        campaign.run(
            journal, todo, launcher, here, on_start=on_start, on_end=on_end, refused=refused, wanted=wanted
        )


def _steps(case: Case) -> int:
    return case.train.warmup + case.train.steps + 2 * case.timing.overhead_steps


def _cores(case: Case, here: Machine) -> int:
    return min(case.ranks * case.threads, here.usable_cores)


def _keep(journal: Journal, job: Job, outcome: Outcome, room: Room) -> dict[str, Any]:
    """Write the row of a launch that has ended."""
    ended = {
        "status": outcome.status,
        "reason": outcome.reason,
        "wall_s": outcome.wall_s,
        "started_unix_s": outcome.started_unix_s,
        "order": job.order,
    }
    row = room.columns() | launch_row(job.case, journal.case_folder(job.key), ended)
    try:
        write_part(journal.data, "cases", *job.key, [row])
    except OSError as error:
        raise LaunchError(f"cannot write in {journal.data}: {error.strerror or error}") from error
    return row


def _line(job: Job, count: Count, row: dict[str, Any], reached: str) -> str:
    """Say in one line how a launch went, and how well its case was known before."""
    figure = f"{row['step_s'] * 1e3:.4g} ms a step" if row.get("step_s") else escape(row["reason"])
    style = _STATUS_STYLES.get(row["status"], "red")
    place = f"{count.ended:>{len(str(count.known))}}/{count.known}"
    launch = f"{place}  {escape(job.case.label)} #{job.repeat + 1}"
    return f"{launch}  [{style}]{row['status']}[/{style}]  {figure}" + (f"  ({reached})" if reached else "")
