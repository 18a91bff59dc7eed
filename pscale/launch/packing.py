"""Which launches go into which job, and what that job has to ask for."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pscale.config import Launch
from pscale.launch.campaign import Job
from pscale.launch.placement import Placement, place
from pscale.launch.scheduler.protocol import JobRequest, Shape

_INSIDE = "pscale.cli.inside"
_SLACK_S = 120.0  # to start, and to find the launcher
_OF_THE_JOB = (
    *("partition", "account", "qos", "constraint", "gpus", "job_time_limit_s"),
    *("directives", "modules", "setup"),
)


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Launches of one job, in their order."""

    launches: tuple[Job, ...]
    nodes: int
    ranks_per_node: int
    cores_per_rank: int
    time_limit_s: float

    def request(self, name: str, folder: Path) -> JobRequest:
        """Return the job that runs them."""
        return JobRequest(
            name=name,
            folder=folder,
            command=(sys.executable, "-P", "-m", _INSIDE, str(folder)),
            nodes=self.nodes,
            ranks_per_node=self.ranks_per_node,
            cores_per_rank=self.cores_per_rank,
            time_limit_s=self.time_limit_s,
            launch=self.launches[0].case.launch,
        )


def pack(todo: Sequence[Job], shape: Shape, least: int) -> list[Pack]:
    """Put launches into jobs as their `packing` says; those that need different jobs stay apart.

    A job asks for the time of the first `least` launches of each case: with `repeat: auto` there may be far
    more, which take what time those leave, or go into a later job. Small jobs come first: they start sooner.
    """
    groups: dict[Hashable, list[Job]] = defaultdict(list)
    for job in todo:
        nodes, launch = place(job.case, shape.machine).nodes, job.case.launch
        apart = {"nodes": nodes, "case": (nodes, job.case.id), "all": None}[launch.packing]
        groups[apart, _asked(launch)].append(job)
    packs = [_packed(group, shape, least) for group in groups.values()]
    return sorted(packs, key=lambda found: found.nodes)


def _asked(launch: Launch) -> tuple[object, ...]:
    """Return what a job's script says of a launch beside its size."""
    return tuple(getattr(launch, name) for name in _OF_THE_JOB)


def _packed(launches: Sequence[Job], shape: Shape, least: int) -> Pack:
    placed = [place(job.case, shape.machine) for job in launches]
    ranks, cores = _cores(launches, placed, shape.machine.usable_cores)
    limit_s = launches[0].case.launch.job_time_limit_s or _certain_s(launches, least) + _SLACK_S
    return Pack(
        launches=tuple(launches),
        nodes=max(placement.nodes for placement in placed),
        ranks_per_node=ranks,
        cores_per_rank=cores,
        time_limit_s=min(limit_s, shape.longest_s or limit_s),
    )


def _certain_s(launches: Sequence[Job], least: int) -> float:
    """Return the time that the first `least` launches of each case may take."""
    limits = {job.case.id: job.case.launch.time_limit_s for job in launches}
    counts = Counter(job.case.id for job in launches)
    return sum(limits[case] * min(count, least) for case, count in counts.items())


def _cores(launches: Sequence[Job], placed: Sequence[Placement], most: int) -> tuple[int, int]:
    """Return ranks of a node and cores of a rank; where launches differ, single cores for the largest."""
    unlike = {
        (placement.ranks_per_node, job.case.threads) for placement, job in zip(placed, launches, strict=True)
    }
    if len(unlike) == 1 and not placed[0].shared:
        return unlike.pop()
    return min(most, max(ranks * threads for ranks, threads in unlike)), 1
