"""The cores and memory that this process may use, and how the ranks of a case are placed on them."""

from __future__ import annotations

import math
import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pscale.config import Case
from pscale.errors import PlanError
from pscale.runs.host import content, cpu_limit, memory_limit, numbers_in

_CPUS = Path("/sys/devices/system/cpu")
_CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"), Path("/run/systemd/container"))


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One host as this process may use it, and how many equal ones there are."""

    host: str
    cpu_model: str
    core_cpus: tuple[tuple[int, ...], ...]  # inside the affinity: the logical CPUs of each physical core
    memory_bytes: int  # of the host, or of the control group where that is less
    cpu_limit: float | None = None  # CPUs' worth of time that the control group allows
    binds: bool = True  # ranks to cores
    restricted: bool = False  # the affinity leaves out CPUs of the host
    container: bool = False
    nodes: int = 1  # `host` then stands for all of them
    hostfile: str = ""  # names them to launchers that cannot ask the scheduler
    hosts: Mapping[str, int] = field(default_factory=dict)  # the user's, with the cores of each

    @property
    def cores(self) -> int:
        """Physical cores inside the affinity."""
        return len(self.core_cpus)

    @property
    def cpus(self) -> int:
        """Logical CPUs inside the affinity."""
        return sum(len(cpus) for cpus in self.core_cpus)

    @property
    def usable_cores(self) -> int:
        """Physical cores that can be busy at once, given the limit on CPU time."""
        return self.cores if self.cpu_limit is None else max(1, min(self.cores, int(self.cpu_limit)))

    @property
    def all_cores(self) -> int:
        """Physical cores of all nodes that can be busy at once."""
        return sum(self.hosts.values()) or self.usable_cores * self.nodes

    def at_least(self, cores: int) -> Machine:
        """Return this machine with so many cores, if it has fewer: a job has those that it asked for."""
        if self.usable_cores >= cores:
            return self
        return replace(self, core_cpus=tuple((cpu,) for cpu in range(cores)), cpu_limit=None)

    def names(self) -> Mapping[str, float]:
        """Return what expressions of a suite may say of the machine."""
        return {
            "cores": self.all_cores,
            "memory_gib": round(self.memory_bytes / 2**30, 1),
            "nodes": self.nodes,
            "cores_per_node": self.usable_cores,
        }

    def summary(self) -> dict[str, Any]:
        """Return the facts that make measurements of two machines differ, for JSON."""
        return {
            "host": self.host,
            "cpu_model": self.cpu_model,
            "cores": self.cores,
            "cpus": self.cpus,
            "cpu_limit": self.cpu_limit,
            "memory_bytes": self.memory_bytes,
            "container": self.container,
            "nodes": self.nodes,
        }


def inspect() -> Machine:
    """Look at the host, this process's affinity and its control groups."""
    cpus = affinity()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        host=socket.gethostname(),
        cpu_model=_cpu_model(),
        core_cpus=core_cpus(cpus),
        memory_bytes=min(memory, memory_limit() or memory),
        cpu_limit=cpu_limit(),
        binds=hasattr(os, "sched_setaffinity"),
        restricted=len(cpus) < (os.cpu_count() or 1),
        container=any(mark.exists() for mark in _CONTAINER_MARKS) or "container" in os.environ,
    )


def affinity() -> frozenset[int]:
    """Return the CPUs that this process may run on: all where the system does not restrict any."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def core_cpus(allowed: frozenset[int], folder: Path = _CPUS) -> tuple[tuple[int, ...], ...]:
    """Group CPUs by core, by the kernel's topology; where there is none, by the number of cores."""
    listed = (content(folder / f"cpu{cpu}/topology/thread_siblings_list") for cpu in allowed)
    cores = {numbers_in(siblings) & allowed for siblings in listed}
    if cores == {frozenset()}:
        import psutil  # noqa: PLC0415 - takes its time, and is seldom asked

        count = min(psutil.cpu_count(logical=False) or len(allowed), len(allowed))
        cores = {frozenset(sorted(allowed)[core::count]) for core in range(count)}
    return tuple(sorted(tuple(sorted(core)) for core in cores))


def _cpu_model() -> str:
    lines = content(Path("/proc/cpuinfo")).splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


@dataclass(frozen=True, kw_only=True)
class Placement:
    """So many ranks on each of so many nodes; the last node may have fewer."""

    nodes: int
    ranks_per_node: int
    shared: bool  # ranks have to share cores
    hosts: Mapping[str, int] = field(default_factory=dict)  # those of the user, with the ranks of each


def place(case: Case, machine: Machine) -> Placement:
    """Lay out a case: as many ranks on a node as have cores there, evenly, or as many as the case says.

    Raises PlanError for more than there is, unless the case says that its ranks may share cores.
    """
    if machine.hosts:
        return _on_hosts(case, machine)
    wanted = case.launch.ranks_per_node or max(1, machine.usable_cores // case.threads)
    nodes = math.ceil(case.ranks / wanted)
    if nodes > machine.nodes or min(wanted, case.ranks) * case.threads > machine.usable_cores:
        if not case.launch.oversubscribe:
            raise _too_many(case, machine, nodes)
        nodes = min(nodes, machine.nodes)
    even = math.ceil(case.ranks / nodes)
    per_node = max(even, min(case.launch.ranks_per_node, case.ranks))
    return Placement(
        nodes=nodes, ranks_per_node=per_node, shared=per_node * case.threads > machine.usable_cores
    )


def _on_hosts(case: Case, machine: Machine) -> Placement:
    """Lay out a case on as few of the user's hosts as have the cores: evenly, or as it says."""
    asked, room = case.launch.ranks_per_node, dict[str, int]()
    for host, cores in machine.hosts.items():
        if sum(room.values()) < case.ranks:
            room[host] = min(asked or cores, cores // case.threads)
    if sum(room.values()) < case.ranks:
        if not case.launch.oversubscribe:
            raise _too_many(case, machine, len(room))
        asked, room = 0, dict.fromkeys(machine.hosts, case.ranks)
    ranks = dict.fromkeys(room, 0)
    for _ in range(case.ranks):
        free = [host for host in room if ranks[host] < room[host]]
        ranks[free[0] if asked else min(free, key=ranks.__getitem__)] += 1
    ranks = {host: count for host, count in ranks.items() if count}
    shared = any(count * case.threads > machine.hosts[host] for host, count in ranks.items())
    return Placement(nodes=len(ranks), ranks_per_node=max(ranks.values()), shared=shared, hosts=ranks)


def _too_many(case: Case, machine: Machine, nodes: int) -> PlanError:
    where = machine.host
    if machine.hosts:
        where = "launch.hosts"
        each_host = f", {case.launch.ranks_per_node} ranks on each host" if case.launch.ranks_per_node else ""
        wanted = f"ranks {case.ranks} x threads {case.threads}{each_host}"
        there = ", ".join(f"{host}:{cores}" for host, cores in machine.hosts.items())
    elif machine.nodes == 1 and not case.launch.ranks_per_node:
        limited = machine.usable_cores != machine.cores
        limit = f" (the control group allows {machine.cpu_limit:g} CPUs)" if limited else ""
        wanted = f"ranks {case.ranks} x threads {case.threads} = {case.ranks * case.threads} cores"
        there = f"{machine.usable_cores}{limit}"
    else:
        each = case.launch.ranks_per_node or math.ceil(case.ranks / nodes)
        wanted = f"{nodes} nodes with {each} ranks x threads {case.threads} on each"
        there = f"{machine.nodes} with {machine.usable_cores} cores each"
    return PlanError(
        f"{case.label}: {wanted}, but {where} has {there}; leave such cases out, `exclude: "
        '["ranks * threads > cores"]`, or say `launch: {oversubscribe: true}` to let them share cores'
    )
