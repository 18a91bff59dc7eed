"""Cores, other work, memory, disk and inherited variables."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from pscale.launch import isolated_process
from pscale.launch import shared_memory as segments
from pscale.launch.doctor import Finding, fail, ok, warn
from pscale.launch.lock import try_lock
from pscale.launch.machine import Machine
from pscale.launch.other_work import other_work
from pscale.launch.scheduler import is_replaced

_GIB = 2**30
_STOLEN = 0.01  # of CPU time
_LITTLE_BYTES = _GIB
_LITTLE_SHARED_BYTES = 128 << 20  # a container has 64 MiB by default; a rank of MPICH takes 1 or 2
_FEW_THREADS = 16  # for each CPU
_QUOTA_S = 5.0
_ADAPTERS = Path("/sys/class/infiniband")
_RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


def cores(machine: Machine) -> Iterator[Finding]:
    """Look at the cores, and at what limits their use."""
    threads = f", {machine.cpus} hardware threads" if machine.cpus > machine.cores else ""
    yield ok("cores", f"{machine.cores} cores{threads} on {machine.host} ({machine.cpu_model})")
    if machine.cpus > machine.cores:
        text = "hyper-threads share a core's arithmetic units: `cores` in a suite counts whole cores"
        yield ok("hardware threads", text)
    if machine.restricted:
        yield warn(
            "affinity",
            f"this process may use {machine.cpus} of {psutil.cpu_count()} CPUs",
            "start pscale without taskset or numactl; inside a batch job this is normal",
        )
    if machine.usable_cores < machine.cores:
        yield warn(
            "CPU limit",
            f"a control group limits CPU time to {machine.cpu_limit:g} of {machine.cores} cores: more "
            f"threads are throttled, so `cores` in a suite is {machine.usable_cores}",
            "start the container with whole CPUs (docker --cpuset-cpus=0-3, not --cpus=4)",
        )


def load(machine: Machine) -> Iterator[Finding]:
    """Look at other work on the machine."""
    found = other_work()
    if found.disturbs:
        advice = "measure on an idle machine: see `top`; `pscale run --wait-idle` waits"
        yield warn("load", found.sentence, advice)
    else:
        yield ok("load", f"{machine.cores} cores are idle")


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
                "use a dedicated machine, more repeats, or another time",
            )


def storage(machine: Machine, reports: Path) -> Iterator[Finding]:
    """Look at memory and at the folder of the results."""
    free = psutil.virtual_memory().available
    text = f"{free / _GIB:.1f} of {machine.memory_bytes / _GIB:.1f} GiB free"
    if free > _LITTLE_BYTES:
        yield ok("memory", text)
    else:
        yield warn("memory", text, "stop other programs, or use small models")
    existing = next(folder for folder in (reports.absolute(), *reports.absolute().parents) if folder.exists())
    yield _disk(existing, reports)


def _disk(existing: Path, reports: Path) -> Finding:
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            locks = try_lock(file.fileno())
        free = shutil.disk_usage(existing).free
    except OSError as error:
        text = f"{reports} cannot be written: {error.strerror} ({existing})"
        return fail("results", text, "run pscale in a writable folder, or choose one with --reports")
    text = f"{reports} can be written, {free / _GIB:.1f} GiB free"
    if free < _LITTLE_BYTES:
        return warn("results", text, "free some space, or use --reports")
    if not locks:
        return warn("results", f"{text}; its file system has no locks", "never start pscale twice on one run")
    return ok("results", text)


def shared_memory() -> Finding:
    """Look at the memory that ranks of a host share: its size, and what killed jobs have left in it."""
    try:
        free = shutil.disk_usage(segments.FOLDER).free
    except OSError as error:
        text = f"{segments.FOLDER}: {error.strerror}: ranks of a host have nothing to exchange messages by"
        return warn("shared memory", text, "mount a tmpfs there")
    text = f"{free / _GIB:.1f} GiB free in {segments.FOLDER}"
    if free < _LITTLE_SHARED_BYTES:
        text += ": where it gets full, ranks are ended by SIGBUS, or hang as they start"
        return warn("shared memory", text, "free some, or start the container with `--shm-size=1g`")
    sizes = []
    for path in segments.unused(segments.segments()):
        with suppress(OSError):
            sizes.append(path.stat().st_blocks * 512)
    if not sizes:
        return ok("shared memory", text)
    left = f"MPI jobs that were killed have left {sum(sizes) / (1 << 20):.1f} MiB in {len(sizes)} files"
    return warn(
        "shared memory",
        f"{text}; {left}: a job of the same number would hang in MPI_Init",
        f"while no MPI job runs: rm -f {segments.FOLDER}/mpich_shm_* {segments.FOLDER}/sm_segment.*",
    )


_LIMITS: tuple[tuple[str, str, str], ...] = (  # the option of ulimit, its name in `resource`, what it breaks
    ("-v", "RLIMIT_AS", "ranks and the record of `pscale watch` map more than they use, and cannot"),
    ("-f", "RLIMIT_FSIZE", "a program whose log, table or record gets as large is ended by SIGXFSZ"),
    ("-l", "RLIMIT_MEMLOCK", "the network's adapter cannot register the memory of messages"),
    ("-u", "RLIMIT_NPROC", "ranks and their threads cannot be started"),
)


def limits() -> Iterator[Finding]:
    """Look at the limits of this shell, which ranks inherit, and at the user's quota of disks."""
    fine = []
    for option, name, harm in _LIMITS:
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft == resource.RLIM_INFINITY or _is_enough(name, soft):
            fine.append(option)
            continue
        size = f"{soft:,} processes and threads" if option == "-u" else f"{soft / (1 << 20):,.4g} MiB"
        yield warn("limits", f"ulimit {option}: {size}; beyond, {harm}", f"ulimit {option} unlimited")
    if fine:
        yield ok("limits", f"ulimit {' '.join(fine)} are high enough")
    with suppress(OSError, subprocess.TimeoutExpired):  # most systems have none
        exceeded = isolated_process.ask(("quota", "-q"), _QUOTA_S).out.split("\n")
        if said := " / ".join(line.strip() for line in exceeded if line.strip()):
            yield warn("quota", f"{said}: runs cannot be written there", "free some space, or use --reports")


def _is_enough(name: str, limit: int) -> bool:
    """Tell whether a limit gets in nobody's way here."""
    if name == "RLIMIT_NPROC":  # which root does not have
        taken = sum(each.num_threads() for each in psutil.process_iter() if _is_mine(each))
        return os.geteuid() == 0 or limit - taken > _FEW_THREADS * (psutil.cpu_count() or 1)
    return name == "RLIMIT_MEMLOCK" and not any(_ADAPTERS.glob("*"))


def _is_mine(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.uids().real == os.getuid()
    return False


def environment() -> Iterator[Finding]:
    """Look at inherited variables that would change how programs run."""
    inherited = sorted(name for name in os.environ if is_replaced(name))
    if inherited:
        named = ", ".join(f"{name}={os.environ[name]}" for name in inherited)
        yield ok("environment", f"{named}: ignored; jobs get the threads and binding of their case")
    if found := [name for name in _RANK_VARIABLES if name in os.environ]:
        text = f"{found[0]} is set: pscale itself seems to be a rank of an MPI job"
        yield warn("environment", text, "start pscale without mpiexec; it starts mpiexec itself")
