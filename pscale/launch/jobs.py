"""The scheduler jobs of a run: which launches go into which job, and what the journal knows of each job."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from pscale.launch import workload
from pscale.launch.journal import Journal, Key, writing_in
from pscale.launch.machine import Machine, Placement, place
from pscale.launch.runner import CaseLaunch
from pscale.launch.scheduler.base import JobHandle, JobRequest, JobSize
from pscale.runs import atomic_files

WORK_ORDER, SCRIPT, FAILURE = "job.json", "script.sh", "failure.txt"  # files in a job's folder
_PROGRAM = "pscale.cli.job"
_SLACK_S = 120.0  # to start, and to find the launcher
_JOB_FIELDS = (  # of `launch`: launches that differ in one need different jobs
    *("partition", "account", "qos", "constraint", "gpus", "job_time_limit_s"),
    *("directives", "modules", "setup"),
)


@dataclass(frozen=True, kw_only=True)
class PlannedJob(JobSize):
    """The launches of one job, in their order, and what it asks for."""

    launches: tuple[CaseLaunch, ...]

    def request(self, name: str, folder: Path) -> JobRequest:
        """Return the job that runs them."""
        size = {each.name: getattr(self, each.name) for each in fields(JobSize)}
        command = (sys.executable, "-P", "-m", _PROGRAM, str(folder))
        launch = self.launches[0].case.launch
        return JobRequest(name=name, folder=folder, command=command, launch=launch, **size)


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
    limit_s = launches[0].case.launch.job_time_limit_s or _least_time_s(launches, least) + _SLACK_S
    return PlannedJob(
        launches=tuple(launches),
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
    found: dict[int, SubmittedJob] = {}
    for record in journal.branch("").own_records():
        number = int(record.get("job", 0))
        match record["event"]:
            case "submitting":
                keys = _keys(record["launches"])
                found[number] = SubmittedJob(number=number, name=record["name"], keys=keys)
            case "submitted":
                found[number] = replace(found[number], id=record["id"])
            case "withdrawn":
                found[number] = replace(found[number], ending="withdrawn", note=record["note"])
            case "settled":
                ending, note, failed = record["ending"], record["note"], _keys(record["charged"])
                found[number] = replace(found[number], ending=ending, note=note, failed=failed)
    return list(found.values())


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
