"""Cores, other work, memory, disk and inherited variables."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from pscale.launch.command import is_replaced
from pscale.launch.doctor.finding import Finding
from pscale.launch.lock import try_lock
from pscale.launch.machine import Machine

_GIB = 2**30
_BUSY = 0.5  # other work, in cores, that shows in a measurement
_STOLEN = 0.01  # of CPU time
_LITTLE_BYTES = _GIB
_RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


def cores(machine: Machine) -> Iterator[Finding]:
    """Look at the cores, and at what keeps some of them away."""
    threads = f", {machine.cpus} hardware threads" if machine.cpus > machine.cores else ""
    text = f"{machine.cores} cores{threads} on {machine.host} ({machine.cpu_model})"
    yield Finding(topic="cores", level="ok", text=text)
    if machine.cpus > machine.cores:
        yield Finding(
            topic="hardware threads",
            level="ok",
            text="they share a core's arithmetic units: a suite's `cores` are whole, and so are a rank's",
        )
    if machine.restricted:
        yield Finding(
            topic="affinity",
            level="warn",
            text=f"this process may use {machine.cpus} of {psutil.cpu_count()} CPUs",
            remedy="start pscale without taskset or numactl, or take what a batch system gave as the machine",
        )
    if machine.usable_cores < machine.cores:
        yield Finding(
            topic="CPU limit",
            level="warn",
            text=f"a control group allows {machine.cpu_limit:g} CPUs' worth of time on {machine.cores} "
            f"cores: threads beyond that are stopped again and again; `cores` of a suite is "
            f"{machine.usable_cores}",
            remedy="start the container with whole CPUs (docker --cpuset-cpus=0-3, not --cpus=4)",
        )


def load(machine: Machine) -> Iterator[Finding]:
    """Look at other work on the machine."""
    busy = os.getloadavg()[0]
    if busy > _BUSY:
        yield Finding(
            topic="load",
            level="warn",
            text=f"{busy:.1f} processes were running in the last minute on {machine.cores} cores",
            remedy="measure when nothing else runs: see `top`",
        )
    else:
        yield Finding(topic="load", level="ok", text=f"nothing much else runs (load {busy:.1f})")


class Stopwatch:
    """How much CPU time the hypervisor takes away from now on."""

    def __init__(self) -> None:
        self._start = psutil.cpu_times()

    def steal(self) -> Iterator[Finding]:
        """Look at the time since this object was made."""
        spent = [now - then for now, then in zip(psutil.cpu_times(), self._start, strict=True)]
        share = dict(zip(self._start._fields, spent, strict=True)).get("steal", 0.0) / max(sum(spent), 1e-9)
        if share > _STOLEN:
            yield Finding(
                topic="steal",
                level="warn",
                text=f"{share:.0%} of CPU time went to other virtual machines of the same host",
                remedy="use a machine of your own, repeat more often, or at another time",
            )


def storage(machine: Machine, reports: Path) -> Iterator[Finding]:
    """Look at memory and at the place of the results."""
    free = psutil.virtual_memory().available
    yield Finding(
        topic="memory",
        level="ok" if free > _LITTLE_BYTES else "warn",
        text=f"{free / _GIB:.1f} of {machine.memory_bytes / _GIB:.1f} GiB free",
        remedy="" if free > _LITTLE_BYTES else "end other programs, or use small models",
    )
    place = next(folder for folder in (reports.absolute(), *reports.absolute().parents) if folder.exists())
    yield _disk(place, reports)


def _disk(place: Path, reports: Path) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            locks = try_lock(file.fileno())
        free = shutil.disk_usage(place).free
    except OSError as error:
        remedy = "run pscale where you may write, or choose a folder with --reports"
        text = f"{reports} cannot be written: {error.strerror} ({place})"
        return Finding(topic="results", level="fail", text=text, remedy=remedy)
    text = f"{reports} can be written, {free / _GIB:.1f} GiB free"
    if free < _LITTLE_BYTES:
        return Finding(topic="results", level="warn", text=text, remedy="make room, or use --reports")
    if not locks:
        text += "; its file system has no locks"
        return Finding(topic="results", level="warn", text=text, remedy="never start two pscale on one run")
    return Finding(topic="results", level="ok", text=text)


def environment() -> Iterator[Finding]:
    """Look at inherited variables that spoil measurements of programs that heed them."""
    inherited = sorted(name for name in os.environ if is_replaced(name))
    if inherited:
        named = ", ".join(f"{name}={os.environ[name]}" for name in inherited)
        yield Finding(
            topic="environment",
            level="ok",
            text=f"{named}: not passed on; jobs get the threads and binding of their case",
        )
    if inside := [name for name in _RANK_VARIABLES if name in os.environ]:
        yield Finding(
            topic="environment",
            level="warn",
            text=f"{inside[0]} is set: pscale itself seems to be a rank of an MPI job",
            remedy="start pscale plainly; it starts mpiexec",
        )
