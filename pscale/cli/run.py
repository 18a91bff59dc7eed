"""`pscale run`: measure the cases of suites, with progress, and report each suite when it is done."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pscale.analysis.wording import duration
from pscale.cli.auto import UntilPrecise
from pscale.cli.console import new_console
from pscale.cli.dry_run import dry_run
from pscale.cli.keep import as_kept, keep
from pscale.cli.room import Room
from pscale.cli.submit import detached, fleet, wait
from pscale.cli.work import Chosen, Work, prepare
from pscale.config import Case
from pscale.errors import FAILED, INTERRUPTED, UsageError
from pscale.launch import apart, campaign
from pscale.launch.campaign import Job
from pscale.launch.journal import Journal, fingerprint, newest_unfinished
from pscale.launch.machine import Machine
from pscale.launch.mpi import Launcher
from pscale.launch.outcome import Outcome

REPORTER = "pscale.cli.publish"  # in a process of its own
_SMALL = {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # keeps less of what it has given back
_STATUS_STYLES = {"ok": "green", "skipped": "yellow"}
_FINE = frozenset(_STATUS_STYLES)
_REFRESHES_PER_SECOND = 1  # drawing takes CPU time from the ranks


@dataclass(frozen=True)
class Place:
    """Where runs are kept, which one to go on with, and how far to go."""

    reports: Path
    new: bool = False
    folder: Path | None = None
    wait: bool = True
    report: bool = True
    dry_run: bool = False


@dataclass
class Count:
    """Launches that have ended, and those known to be needed; with `repeat: auto` they become more."""

    ended: int
    known: int


def run(paths: Sequence[Path], chosen: Chosen, place: Place) -> int:
    """Run suites one after another, all checked before the first process starts; return the exit code."""
    works = [prepare(path, chosen) for path in paths]
    if place.folder and len(works) > 1:
        raise UsageError("--run names the folder of one run; give one suite with it")
    if place.dry_run:
        for text in (text for work in works for text in dry_run(work, place.reports)):
            print(text, end="\n\n")
        return 0
    console = new_console(stderr=True)
    submitted = [work for work in works if work.ground.where.scheduler]
    code = _run_submitted(submitted, place, console) if submitted else 0
    for work in works:
        if work not in submitted:
            code = max(code, _run_here(work, place, console))
            if code == INTERRUPTED:
                break
    return code


def _run_here(work: Work, place: Place, console: Console) -> int:
    launcher = work.launcher()
    journal = _journal(work, place, console)
    try:
        _launch(journal, work, launcher, console)
        return _published(journal, place, console)
    except KeyboardInterrupt:
        done, least = len(journal.finished()), len(work.cases) * work.repeats
        total = f"at least {least}" if work.auto else least
        _say(
            console,
            f"\npscale: interrupted; {done} of {total} launches are kept in {journal.folder}\n"
            f"go on with the same command, report what there is with: pscale report '{journal.folder}'",
        )
        return INTERRUPTED


def _run_submitted(works: Sequence[Work], place: Place, console: Console) -> int:
    """Submit the jobs of all suites, then wait for those of each and report it."""
    fleets = [fleet(work, _journal(work, place, console), console) for work in works]
    code = 0
    try:
        for each in fleets:
            each.launch(wait=False)
        for each in fleets if place.wait else ():
            complete = wait(each, console)
            if not complete:
                _say(console, "some launches were cancelled: the same command goes on with them")
            code = max(code, _published(each.journal, place, console), 0 if complete else FAILED)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED or not place.wait:
        for each in fleets:
            _say(console, detached(each.journal))
    return code


def _journal(work: Work, place: Place, console: Console) -> Journal:
    """Return the run to go on with, or a new one."""
    document = work.document()
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
    ended = f"{done} {'launch has' if done == 1 else 'launches have'} ended"
    _say(console, f"going on with {found.folder}, where {ended} (--new begins anew)")
    return found


def _published(journal: Journal, place: Place, console: Console) -> int:
    """Report a run, unless that is not wanted; return the exit code: whether every case ran well."""
    if not place.report:
        _say(console, f"report it with: pscale report '{journal.folder}'")
        journal.note("closed")
        return 0 if journal.statuses() <= _FINE else FAILED
    code = apart.run(REPORTER, journal.folder, _SMALL)
    if code >= 0:
        return code
    _say(
        console,
        f"pscale: the report was ended by {signal.Signals(-code).name}; all launches are kept\n"
        f"report them with: pscale report '{journal.folder}'",
    )
    return FAILED


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _launch(journal: Journal, work: Work, launcher: Launcher, console: Console) -> None:
    """Run what is left of the work, with a bar that knows how long the cases should take."""
    here = work.ground.machine
    most = work.auto.most if work.auto else work.repeats
    jobs = campaign.launches(work.cases, most, journal.document["seed"])
    until = UntilPrecise(journal) if work.auto else None
    rooms = {case.id: Room(case, here) for case in work.cases}
    costs = {
        case.id: rooms[case.id].fullest.model_flops * _steps(case) / _cores(case, here) for case in work.cases
    }
    finished = journal.finished()
    todo = [job for job in jobs if job.key not in finished]
    refused = {case: said for case, room in rooms.items() if (said := room.refusal or room.shortage)}
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[done]}/{task.fields[jobs]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=_REFRESHES_PER_SECOND,
        transient=True,
        disable=not console.is_interactive,  # it would leave an empty line
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

    def on_end(job: Job, outcome: Outcome) -> Outcome:
        row = keep(journal, job, outcome, here)
        count.ended += 1
        progress.update(bar, advance=costs[job.case.id], done=count.ended)
        line = _line(job, count, row, until.reached(job) if until else "")
        console.print(line, highlight=False, soft_wrap=True)
        return as_kept(outcome, row)

    wanted = until.wanted if until else campaign.always
    with progress:
        campaign.run(
            journal,
            todo,
            launcher,
            here,
            on_start=on_start,
            on_end=on_end,
            refused=refused,
            wanted=wanted,
            attempts=campaign.ATTEMPTS_IN_JOBS if work.ground.where.inside else 1,
            tell=lambda text: _say(console, text),
        )


def _steps(case: Case) -> int:
    return case.train.warmup + case.train.steps + 2 * case.timing.overhead_steps


def _cores(case: Case, here: Machine) -> int:
    return min(case.ranks * case.threads, here.usable_cores * here.nodes)


def _line(job: Job, count: Count, row: dict[str, Any], reached: str) -> str:
    """Say in one line how a launch went, and how well its case was known before."""
    figure = f"{duration(row['step_s'], 4)} a step" if row.get("step_s") else escape(row["reason"])
    style = _STATUS_STYLES.get(row["status"], "red")
    place = f"{count.ended:>{len(str(count.known))}}/{count.known}"
    launch = f"{place}  {escape(job.case.label)} #{job.repeat + 1}"
    return f"{launch}  [{style}]{row['status']}[/{style}]  {figure}" + (f"  ({reached})" if reached else "")
