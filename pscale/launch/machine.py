"""What this process has been given to work with: cores, memory, and the limits on both."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from pscale import cgroup

_CPUS = Path("/sys/devices/system/cpu")
_CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"), Path("/run/systemd/container"))


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One host as this process may use it, and how many of its like there are beside it."""

    host: str
    cpu_model: str
    core_cpus: tuple[tuple[int, ...], ...]  # inside the affinity: the logical CPUs of each physical core
    memory_bytes: int  # of the host, or of the control group where that is less
    cpu_limit: float | None = None  # CPUs' worth of time that the control group allows
    restricted: bool = False  # the affinity leaves out CPUs of the host
    container: bool = False
    nodes: int = 1  # `host` then stands for all of them
    hostfile: str = ""  # names them to launchers that cannot ask the scheduler

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

    def at_least(self, cores: int) -> Machine:
        """Return this machine with so many cores, if fewer are seen: whoever has asked for them knows."""
        if self.usable_cores >= cores:
            return self
        return replace(self, core_cpus=tuple((cpu,) for cpu in range(cores)), cpu_limit=None)

    def names(self) -> Mapping[str, float]:
        """Return what expressions of a suite may say of the machine."""
        return {
            "cores": self.usable_cores * self.nodes,
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
    affinity = _affinity()
    memory = psutil.virtual_memory().total
    return Machine(
        host=socket.gethostname(),
        cpu_model=_cpu_model(),
        core_cpus=_core_cpus(affinity),
        memory_bytes=min(memory, cgroup.memory_limit() or memory),
        cpu_limit=cgroup.cpu_limit(),
        restricted=len(affinity) < (psutil.cpu_count() or 1),
        container=any(mark.exists() for mark in _CONTAINER_MARKS) or "container" in os.environ,
    )


def _affinity() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(psutil.cpu_count() or 1))


def _core_cpus(affinity: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    """Group CPUs by core, as the kernel tells; where it does not, by the count of cores alone."""
    cores = {_siblings(cpu) & affinity for cpu in affinity}
    if cores == {frozenset()}:
        count = min(psutil.cpu_count(logical=False) or len(affinity), len(affinity))
        cores = {frozenset(sorted(affinity)[core::count]) for core in range(count)}
    return tuple(sorted(tuple(sorted(core)) for core in cores))


def _siblings(cpu: int) -> frozenset[int]:
    try:
        text = (_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return frozenset()
    spans = (span.partition("-") for span in text.strip().split(","))
    return frozenset(
        number for first, _, last in spans for number in range(int(first), int(last or first) + 1)
    )


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
