"""Where launches run: on this machine, in the job around pscale, or in jobs submitted to a scheduler."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pscale.config import Launch
from pscale.config.choices import SchedulerChoice
from pscale.errors import LaunchError, UsageError
from pscale.launch import machine
from pscale.launch.machine import Machine
from pscale.launch.scheduler import BY_NAME, SCHEDULERS, Scheduler
from pscale.launch.scheduler.base import UNANSWERED, Allocation, Resources

_HOST = re.compile(
    r"(?P<name>[\w.-]+)(:|\s+slots\s*=\s*)(?P<cores>[1-9]\d{0,5})(\s+max[-_]slots=\d+)?", re.ASCII
)
_RETRY = "try again when it answers, or launch on this machine: `--set launch.scheduler=none`"


@dataclass(frozen=True, kw_only=True)
class DetectedSite:
    """With a `scheduler`, jobs are submitted; else launches run here, in `allocation` if inside a job."""

    reason: str
    scheduler: Scheduler | None = None
    allocation: Allocation | None = None
    unresponsive: tuple[Scheduler, ...] = ()  # whose commands are installed, but do not work


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where launches run, and on what: one node, and how many there are."""

    site: DetectedSite
    machine: Machine
    max_time_s: float | None = None  # of a job; None: no limit, or an unknown one


def detect_site(choice: SchedulerChoice, environ: Mapping[str, str], *, submits: bool = True) -> DetectedSite:
    """Return where launches run; `choice` is that of the suite.

    Inside a job nothing is submitted, whatever the choice: the user decided that by starting pscale there.
    Nor is it without `submits`. Raises LaunchError for a scheduler that is named and does not answer, and for
    one that is installed but down now: launches meant for its nodes would run on a login node.
    """
    if choice == "none":
        return DetectedSite(reason="launches run on this host: the suite or site says scheduler: none")
    if found := next(filter(None, (each.allocation(environ) for each in SCHEDULERS)), None):
        nodes = f"{found.nodes} node{'s' if found.nodes > 1 else ''}"
        reason = f"launches run inside this job, {found.scheduler} {found.job} with {nodes}"
        return DetectedSite(reason=reason, allocation=found)
    if not submits:
        return DetectedSite(reason="launches run on this host: this command submits no jobs")
    if choice != "auto":
        scheduler = BY_NAME[choice]
        if trouble := _trouble(scheduler):
            raise LaunchError(f"scheduler: {choice}: {trouble}")
        reason = f"jobs are submitted: the suite or site sets scheduler: {choice}"
        return DetectedSite(reason=reason, scheduler=scheduler)
    unresponsive: dict[Scheduler, str] = {}
    for scheduler in SCHEDULERS:
        if shutil.which(scheduler.submit_program):
            trouble = _trouble(scheduler)
            if not trouble:
                reason = f"jobs are submitted: {scheduler.name} answers here"
                return DetectedSite(reason=reason, scheduler=scheduler)
            if re.search(f"{scheduler.unreachable}|{UNANSWERED}", trouble):
                raise LaunchError(f"{trouble}; {_RETRY}")
            unresponsive[scheduler] = trouble
    reason = "; ".join(["launches run on this host: no scheduler answers", *unresponsive.values()])
    return DetectedSite(reason=reason, unresponsive=tuple(unresponsive))


def find_target(
    launch: Launch,
    environ: Mapping[str, str],
    *,
    nodes: int | None = None,
    cores_per_node: int | None = None,
    submits: bool = True,
) -> Target:
    """Return where a suite's `launch` runs; `nodes` and `cores_per_node` are those of the site's profile.

    Raises LaunchError where a scheduler that is wanted does not answer, UsageError where neither it nor the
    profile describes its nodes.
    """
    here = machine.inspect()
    if launch.hosts:
        return _on_hosts(launch, environ, here)
    site = detect_site(launch.scheduler, environ, submits=submits)
    if site.scheduler is None:
        return Target(site=site, machine=site.allocation.machine(here) if site.allocation else here)
    found = _resources(site.scheduler, launch, known=bool(nodes and cores_per_node))
    if found is None:
        name = f"{site.scheduler.name} {launch.partition}".rstrip()
        found = Resources(
            host=name, cpu_model=name, nodes=0, cores_per_node=0, memory_bytes=here.memory_bytes
        )
    described = Machine(
        host=found.host,
        cpu_model=found.cpu_model,
        core_cpus=tuple((cpu,) for cpu in range(cores_per_node or found.cores_per_node)),
        memory_bytes=found.memory_bytes,
        nodes=nodes or found.nodes,
    )
    return Target(site=site, machine=described, max_time_s=found.max_time_s)


def _on_hosts(launch: Launch, environ: Mapping[str, str], here: Machine) -> Target:
    """Return the hosts that a suite names, of which the first stands for all in processor and memory."""
    allocation = next(filter(None, (each.allocation(environ) for each in SCHEDULERS)), None)
    if allocation:
        raise UsageError(
            f"launch.hosts: launches run on the nodes of this job, {allocation.scheduler} {allocation.job}; "
            "leave `hosts` out"
        )
    if launch.scheduler not in ("auto", "none"):
        raise UsageError(
            f"launch.hosts: {launch.scheduler} chooses the nodes; leave `hosts` or `scheduler` out"
        )
    hosts = _cores_of(launch.hosts)
    first, *others = hosts
    fewest, siblings = min(hosts.values()), max(1, here.cpus // here.cores)
    described = Machine(
        host=first + (f" and {len(others)} more" if others else ""),
        cpu_model=here.cpu_model,
        core_cpus=tuple(tuple(range(cpu * siblings, (cpu + 1) * siblings)) for cpu in range(fewest)),
        memory_bytes=here.memory_bytes,
        container=here.container,
        nodes=len(hosts),
        hosts=hosts,
    )
    return Target(site=DetectedSite(reason="launches run on launch.hosts"), machine=described)


def _cores_of(named: Sequence[str]) -> dict[str, int]:
    """Return the cores of each host, from `host:cores` or the lines of a file."""
    found: dict[str, int] = {}
    for host, cores in (each for text in named for each in _listed(text)):
        if host in found:
            raise UsageError(f"launch.hosts: {host} is named twice; give it once, with all of its cores")
        found[host] = cores
    return found


def _listed(text: str) -> Iterator[tuple[str, int]]:
    """Yield the hosts of one entry: itself, or the lines of the file that it names."""
    lines, place = [text], "launch.hosts"
    if ":" not in text:
        place = f"launch.hosts: {text}"
        try:
            lines = Path(text).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "no text"
            raise UsageError(f"{place}: {reason}; a host needs its cores, `{text}:16`") from error
        lines = [line for each in lines if (line := each.partition("#")[0].strip())]
    for line in lines:
        if not (host := _HOST.fullmatch(line)):
            raise UsageError(f"{place}: {line!r:.60} is no `host:cores` and no `host slots=cores`")
        yield host["name"], int(host["cores"])
    if not lines:
        raise UsageError(f"{place}: the file names no host")


def _resources(scheduler: Scheduler, launch: Launch, *, known: bool) -> Resources | None:
    """Ask the scheduler for its nodes; without an answer the profile has to describe them, if `known`."""
    try:
        found = scheduler.resources(launch)
    except LaunchError:
        if not known:
            raise
        return None
    if found is None and not known:
        raise UsageError(
            f"{scheduler.name} does not describe its nodes; do so in a site's profile, sites.yaml next to "
            "the suite: `mysite: {nodes: 100, cores_per_node: 48}` (docs/clusters.md)"
        )
    return found


def _trouble(scheduler: Scheduler) -> str:
    """Return why jobs cannot be submitted, or nothing."""
    program, ping = scheduler.submit_program, " ".join(scheduler.ping)
    if not shutil.which(program):
        return f"there is no {program} on PATH"
    try:
        answer = scheduler.ask(scheduler.ping)
    except LaunchError as error:
        return str(error)
    return f"{program} is installed, but `{ping}` says: {answer.last_words}" if answer.code else ""
