"""Cores, other work, memory, disk and inherited variables."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from pscale.launch.doctor import Finding, fail, ok, warn
from pscale.launch.lock import try_lock
from pscale.launch.machine import Machine
from pscale.launch.other_work import other_work
from pscale.launch.scheduler import is_replaced

_GIB = 2**30
_STOLEN = 0.01  # of CPU time
_LITTLE_BYTES = _GIB
_RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


def cores(machine: Machine) -> Iterator[Finding]:
    """Look at the cores, and at what limits their use."""
    threads = f", {machine.cpus} hardware threads" if machine.cpus > machine.cores else ""
    yield ok("cores", f"{machine.cores} cores{threads} on {machine.host} ({machine.cpu_model})")
    if machine.cpus > machine.cores:
        text = "they share a core's arithmetic units: a suite's `cores` are whole, and so are a rank's"
        yield ok("hardware threads", text)
    if machine.restricted:
        yield warn(
            "affinity",
            f"this process may use {machine.cpus} of {psutil.cpu_count()} CPUs",
            "start pscale without taskset or numactl, or take what a batch system gave as the machine",
        )
    if machine.usable_cores < machine.cores:
        yield warn(
            "CPU limit",
            f"a control group allows {machine.cpu_limit:g} CPUs' worth of time on {machine.cores} "
            f"cores: threads beyond that are stopped again and again; `cores` of a suite is "
            f"{machine.usable_cores}",
            "start the container with whole CPUs (docker --cpuset-cpus=0-3, not --cpus=4)",
        )


def load(machine: Machine) -> Iterator[Finding]:
    """Look at other work on the machine."""
    found = other_work()
    if found.disturbs:
        advice = "measure when nothing else runs: see `top`; `pscale run --wait-idle` waits"
        yield warn("load", found.sentence, advice)
    else:
        yield ok("load", f"nothing much else runs on {machine.cores} cores")


class Stopwatch:
    """How much CPU time the hypervisor takes away from now on."""

    def __init__(self) -> None:
        self._start = psutil.cpu_times()

    def steal(self) -> Iterator[Finding]:
        """Look at the time since this object was made."""
        spent = [now - then for now, then in zip(psutil.cpu_times(), self._start, strict=True)]
        share = dict(zip(self._start._fields, spent, strict=True)).get("steal", 0.0) / max(sum(spent), 1e-9)
        if share > _STOLEN:
            yield warn(
                "steal",
                f"{share:.0%} of CPU time went to other virtual machines of the same host",
                "use a machine of your own, repeat more often, or at another time",
            )


def storage(machine: Machine, reports: Path) -> Iterator[Finding]:
    """Look at memory and at the folder of the results."""
    free = psutil.virtual_memory().available
    text = f"{free / _GIB:.1f} of {machine.memory_bytes / _GIB:.1f} GiB free"
    if free > _LITTLE_BYTES:
        yield ok("memory", text)
    else:
        yield warn("memory", text, "end other programs, or use small models")
    existing = next(folder for folder in (reports.absolute(), *reports.absolute().parents) if folder.exists())
    yield _disk(existing, reports)


def _disk(existing: Path, reports: Path) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            locks = try_lock(file.fileno())
        free = shutil.disk_usage(existing).free
    except OSError as error:
        text = f"{reports} cannot be written: {error.strerror} ({existing})"
        return fail("results", text, "run pscale where you may write, or choose a folder with --reports")
    text = f"{reports} can be written, {free / _GIB:.1f} GiB free"
    if free < _LITTLE_BYTES:
        return warn("results", text, "free some space, or use --reports")
    if not locks:
        return warn("results", f"{text}; its file system has no locks", "never start two pscale on one run")
    return ok("results", text)


def environment() -> Iterator[Finding]:
    """Look at inherited variables that would change how programs run."""
    inherited = sorted(name for name in os.environ if is_replaced(name))
    if inherited:
        named = ", ".join(f"{name}={os.environ[name]}" for name in inherited)
        yield ok("environment", f"{named}: not passed on; jobs get the threads and binding of their case")
    if found := [name for name in _RANK_VARIABLES if name in os.environ]:
        text = f"{found[0]} is set: pscale itself seems to be a rank of an MPI job"
        yield warn("environment", text, "start pscale plainly; it starts mpiexec")
