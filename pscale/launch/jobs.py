"""The scheduler jobs of a run: which launches go into which job, and what the journal knows of each job."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast, get_args

from pscale.launch import workload
from pscale.launch.machine import Machine, Placement, place
from pscale.launch.outcome import Outcome, Status, tail
from pscale.launch.runner import CaseLaunch
from pscale.launch.scheduler import SCHEDULERS
from pscale.launch.scheduler.base import EXIT, Ending, JobHandle, JobRequest, JobStatus
from pscale.runs import atomic_files
from pscale.runs.journal import Journal, writing_in
from pscale.runs.run_events import Key, Launched, Settled, Submitted, Submitting, Withdrawn

WORK_ORDER, SCRIPT, FAILURE = "job.json", "script.sh", "failure.txt"  # files in a job's folder
_PROGRAM = "pscale.cli.job"
_SLACK_S = 120.0  # to start, and to find the launcher
_JOB_FIELDS = (  # of `launch`: launches that differ in one need different jobs
    *("partition", "account", "qos", "constraint", "gpus", "job_time_limit_s"),
    *("directives", "modules", "setup"),
)


@dataclass(frozen=True, kw_only=True)
class PlannedJob(JobRequest):
    """A job before it has a name, with its launches in their order."""

    name: str = ""
    folder: Path = Path()
    command: tuple[str, ...] = ()
    launches: tuple[CaseLaunch, ...]

    def request(self, name: str, folder: Path) -> JobRequest:
        """Return the job with a name and a folder."""
        command = (sys.executable, "-P", "-m", _PROGRAM, str(folder))
        return replace(self, name=name, folder=folder, command=command)


def plan_jobs(
    todo: Sequence[CaseLaunch], machine: Machine, least: int, max_time_s: float | None = None
) -> list[PlannedJob]:
    """Put launches into jobs as their `packing` says; those that need different jobs stay separate.

    A job asks for the time of the first `least` launches of each case: with `repeat: auto` there may be far
    more, which use the time that those leave, or go into a later job. Small jobs come first: they start
    sooner.
    """
    placements = {launch.case.id: place(launch.case, machine) for launch in todo}
    groups: dict[Hashable, list[CaseLaunch]] = defaultdict(list)
    for launch in todo:
        case, asked = launch.case, launch.case.launch
        nodes = placements[case.id].nodes
        group = {"nodes": nodes, "case": (nodes, case.id), "all": None}[asked.packing]
        groups[group, tuple(getattr(asked, name) for name in _JOB_FIELDS)].append(launch)
    planned = [_planned(group, placements, machine, least, max_time_s) for group in groups.values()]
    return sorted(planned, key=lambda job: job.nodes)


def _planned(
    launches: Sequence[CaseLaunch],
    placements: Mapping[str, Placement],
    machine: Machine,
    least: int,
    max_time_s: float | None,
) -> PlannedJob:
    placed = [placements[launch.case.id] for launch in launches]
    ranks, cores = _cores(launches, placed, machine.usable_cores)
    launch = launches[0].case.launch
    limit_s = launch.job_time_limit_s or _least_time_s(launches, least) + _SLACK_S
    return PlannedJob(
        launches=tuple(launches),
        launch=launch,
        nodes=max(placement.nodes for placement in placed),
        ranks_per_node=ranks,
        cores_per_rank=cores,
        time_limit_s=min(limit_s, max_time_s or limit_s),
    )


def _least_time_s(launches: Sequence[CaseLaunch], least: int) -> float:
    """Return the time that the first `least` launches of each case may take, and that which checks ranks."""
    limits = {launch.case.id: launch.case.launch.time_limit_s for launch in launches}
    counts = Counter(launch.case.id for launch in launches)
    checks = (limits[launch.case.id] for launch in launches if workload.is_checked(launch.case))
    return sum(limits[case] * min(count, least) for case, count in counts.items()) + max(checks, default=0.0)


def _cores(launches: Sequence[CaseLaunch], placed: Sequence[Placement], most: int) -> tuple[int, int]:
    """Return ranks of a node and cores of a rank; where launches differ, single cores for the largest."""
    pairs = zip(placed, launches, strict=True)
    shapes = {(placement.ranks_per_node, launch.case.threads) for placement, launch in pairs}
    if len(shapes) == 1 and not placed[0].shared:
        return shapes.pop()
    return min(most, max(ranks * threads for ranks, threads in shapes)), 1


@dataclass(frozen=True, kw_only=True)
class SubmittedJob(JobHandle):
    """One job. `id` is empty until the scheduler has answered; `ending` until the job's end is handled."""

    number: int
    keys: tuple[Key, ...]
    ending: str = ""
    note: str = ""
    failed: tuple[Key, ...] = ()  # launches of which this was a failed attempt

    @property
    def branch(self) -> str:
        """Name of its folder and of its part of the journal."""
        return branch(self.number)


def branch(number: int) -> str:
    """Return the name of a job's folder."""
    return f"{number:03}"


def jobs_of(journal: Journal) -> list[SubmittedJob]:
    """Return all jobs of a run, oldest first; one that was never submitted has the ending "withdrawn"."""
    jobs: dict[int, SubmittedJob] = {}
    for event in journal.branch("").own_events():
        match event:
            case Submitting(job=number):
                jobs[number] = SubmittedJob(number=number, name=event.name, keys=_keys(event.launches))
            case Submitted(job=number) if number in jobs:
                jobs[number] = replace(jobs[number], id=event.id)
            case Withdrawn(job=number) if number in jobs:
                jobs[number] = replace(jobs[number], ending="withdrawn", note=event.note)
            case Settled(job=number) if number in jobs:
                ending, failed = event.ending, _keys(event.charged)
                jobs[number] = replace(jobs[number], ending=ending, note=event.note, failed=failed)
    return list(jobs.values())


def open_jobs(journal: Journal) -> list[SubmittedJob]:
    """Return the jobs of a run whose end has not been handled."""
    return [job for job in jobs_of(journal) if not job.ending]


def owners(jobs: Iterable[SubmittedJob]) -> dict[Key, int]:
    """Return which job is to do each launch: the latest that was given it."""
    return {key: job.number for job in jobs if job.ending != "withdrawn" for key in job.keys}


def write(path: Path, text: str) -> None:
    """Write a file of a job, on disk when this returns."""
    with writing_in(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write(path, text)


def work_order(journal: Journal, number: int, keys: Iterable[Key], request: JobRequest) -> str:
    """Return what the job reads: which launches of which run, and the resources that it asked for."""
    document = {
        "format": 1,
        "run": str(journal.folder),
        "job": number,
        "launches": [[case, repeat] for case, repeat in keys],
        "time_limit_s": request.time_limit_s,
        "cores_per_node": request.cores_per_node,
    }
    return json.dumps(document, indent=1)


def _keys(launches: Iterable[tuple[str, int]]) -> tuple[Key, ...]:
    return tuple((case, repeat) for case, repeat in launches)


_MOST_ATTEMPTS = 2
_QUOTED_LINES = 3
_LOGGED = [pair for scheduler in SCHEDULERS for pair in scheduler.log_endings]
_SAME_STATUS = frozenset(get_args(Status)) & frozenset(get_args(Ending))  # of the job and its launches
_PHRASES: Mapping[Ending, str] = {
    "completed": "ended without an error but did not do all of its launches",
    "failed": "failed",
    "cancelled": "was cancelled",
    "timeout": "reached its time limit",
    "preempted": "was preempted",
    "node_failed": "lost a node",
    "out_of_memory": "ran out of memory",
    "vanished": "was missing in the queue and left no exit code; it was cancelled",
}


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens to the launches that a job did not do. Those not named here are tried again.

    `final` get a row and are not tried again. `deferred` get a row too, but are left to the next
    `pscale run`: a user has cancelled them. `failed` count as an attempt.
    """

    ending: Ending
    note: str
    final: Mapping[Key, Outcome] = field(default_factory=dict)
    deferred: Mapping[Key, Outcome] = field(default_factory=dict)
    failed: tuple[Key, ...] = ()


def ending_of(folder: Path, status: JobStatus | None) -> Ending | None:
    """Return how the job in `folder` ended, from the scheduler's status and the exit code in its folder.

    None: it has not, as far as both know. The scheduler knows better why; the file is there when the
    scheduler has forgotten, and the log may say why it was ended.
    """
    code = exit_code(folder)
    if status is None:
        return None if code is None else "completed" if code == 0 else _logged(folder) or "failed"
    if status.phase != "ended":
        return None
    if status.ending == "completed" and code:
        return "failed"
    if status.ending in {"cancelled", "failed"}:  # some say only in the log that it was for the time
        return _logged(folder) or status.ending
    return status.ending


def _logged(folder: Path) -> Ending | None:
    said = last_words(folder)
    return next((ending for ending, pattern in _LOGGED if re.search(pattern, said)), None)


def exit_code(folder: Path) -> int | None:
    """Return the exit code that the job's script left; None: the script did not end."""
    try:
        return int((folder / EXIT).read_text())
    except (OSError, ValueError):
        return None


def decide(
    journal: Journal, job: SubmittedJob, ending: Ending, note: str, before: Mapping[Key, int]
) -> Decision:
    """Decide about each launch of a job that has ended; `before` counts the failed attempts of earlier jobs.

    Tried again are launches that a failed, preempted, lost or vanished job had started, and those that a job
    did not reach before its time limit. A job that has started none is a failed attempt of all its launches.
    """
    events = journal.branch(job.branch).own_events()
    begun = {event.key: event.unix_s for event in events if isinstance(event, Launched)}
    left = journal.left(job.keys)
    if not left:
        return Decision(ending=ending, note=note)
    folder = journal.job_folder(job.branch)
    said = f" ({note})" if note else ""
    reason = f"job {job.id or job.name} {_PHRASES[ending]}{said}{last_words(folder)}"
    started = {key: begun.get(key, time.time()) for key in left}

    def outcome(key: Key) -> Outcome:
        return Outcome(
            status=cast("Status", ending) if ending in _SAME_STATUS else "failed",
            reason=reason,
            wall_s=time.time() - started[key],
            exit_code=exit_code(folder) or 0,
            started_unix_s=started[key],
        )

    if ending == "cancelled":
        return Decision(ending=ending, note=note, deferred={key: outcome(key) for key in left})
    in_flight = [key for key in left if key in begun]
    failed = in_flight if begun else left
    hopeless = ending in {"timeout", "out_of_memory"} and bool(in_flight)
    over = [key for key in failed if hopeless or before.get(key, 0) + 1 >= _MOST_ATTEMPTS]
    return Decision(ending=ending, note=note, final={key: outcome(key) for key in over}, failed=tuple(failed))


def last_words(folder: Path) -> str:
    """Return the job's own reason for its failure, or the end of its log, and the path of the log."""
    log = folder / "log.txt"
    for path, most in ((folder / FAILURE, None), (log, -_QUOTED_LINES)):
        with suppress(OSError):
            lines = tail(atomic_files.open_file(path)).splitlines()
            if said := [text for line in lines if (text := line.strip())][most:]:
                return f": {' / '.join(said)} [{log}]"
    return f" [{log}]"
