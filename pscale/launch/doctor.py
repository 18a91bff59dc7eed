"""`pscale doctor`: what may spoil measurements on this machine."""

from __future__ import annotations

import os
import resource
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psutil

from pscale.blas.forwarding import KINDS, BlasError, installed, is_wheel, path_of
from pscale.config import Launch
from pscale.errors import LaunchError, UsageError
from pscale.launch import isolated_process, selection
from pscale.launch.blas import probe as probe_blas
from pscale.launch.command import Command
from pscale.launch.launcher import Launcher, find
from pscale.launch.local import SHARED_MEMORY, shared_segments, unused_segments
from pscale.launch.machine import Machine, affinity, inspect
from pscale.launch.scheduler import is_replaced
from pscale.launch.selection import PROBE, check_hosts, probe, worlds
from pscale.launch.target import detect_site, find_target
from pscale.runs.journal import try_lock

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """A fact, whether it is good, and what to do if it is not. `fail`: pscale cannot work."""

    level: Level
    topic: str
    text: str
    advice: str = ""


ok = partial(Finding, "ok")  # as it should be
warn = partial(Finding, "warn")  # spoils measurements
fail = partial(Finding, "fail")  # keeps pscale from working


def findings(
    reports: Path = Path("reports"), launcher: str = "auto", hosts: Sequence[str] = ()
) -> list[Finding]:
    """Look at cores, load, memory, limits, MPI, BLAS and hosts; takes some seconds, and all cores."""
    here = inspect()
    psutil.cpu_times_percent()  # `steal` looks at what comes from now on
    return [
        site(),
        *cores(here),
        *load(here),  # before the probes make a load of their own
        *storage(here, reports),
        shared_memory(),
        *limits(),
        *mpi(here, launcher),
        *(host_findings(Launch(launcher=launcher, hosts=tuple(hosts)), reports) if hosts else ()),
        *blas_findings(here),
        *environment(),
        *steal(),
    ]


def site() -> Finding:
    """Say where a suite runs by default: here, in the job around this process, or by a scheduler."""
    try:
        found = detect_site("auto", os.environ)
        if found.allocation:
            selection.check(found.allocation, found.allocation.machine(inspect()))
    except LaunchError as error:
        return fail("launches", str(error))
    if found.unresponsive:
        scheduler = found.unresponsive[0]
        text = f"launches run on this host: {scheduler.submit_program} is installed, but no scheduler answers"
        return warn("launches", text, f"to submit jobs instead, check `{' '.join(scheduler.ping)}`")
    if found.scheduler is None:
        return ok("launches", found.reason)
    try:
        machine = find_target(Launch(), os.environ).machine
    except (LaunchError, UsageError) as error:
        advice = "describe its nodes in a site's profile: docs/clusters.md"
        return warn("launches", f"{found.reason}; {error}", advice)
    nodes = f"{machine.host}: {machine.nodes} nodes with {machine.cores} cores"
    return ok("launches", f"{found.reason}; {nodes}")


_GIB = 2**30
_STOLEN = 1.0  # % of CPU time
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


def steal() -> Iterator[Finding]:
    """Look at the CPU time that the hypervisor has taken since psutil was last asked for shares of it."""
    percent = getattr(psutil.cpu_times_percent(), "steal", 0.0)
    if percent > _STOLEN:
        yield warn(
            "steal",
            f"{percent:.0f}% of CPU time went to other virtual machines of the same host",
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


def shared_memory(least_bytes: int = _LITTLE_SHARED_BYTES) -> Finding:
    """Look at the memory that ranks of a host share: its size, and what killed jobs have left in it."""
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError as error:
        text = f"{SHARED_MEMORY}: {error.strerror}: ranks of a host have nothing to exchange messages by"
        return warn("shared memory", text, "mount a tmpfs there")
    text = f"{free / _GIB:.1f} GiB free in {SHARED_MEMORY}"
    if free < least_bytes:
        text += ": where it gets full, ranks are ended by SIGBUS, or hang as they start"
        return warn("shared memory", text, "free some, or start the container with `--shm-size=1g`")
    sizes = []
    for path in unused_segments(shared_segments()):
        with suppress(OSError):
            sizes.append(path.stat().st_blocks * 512)
    if not sizes:
        return ok("shared memory", text)
    left = f"MPI jobs that were killed have left {sum(sizes) / (1 << 20):.1f} MiB in {len(sizes)} files"
    return warn(
        "shared memory",
        f"{text}; {left}: a job of the same number would hang in MPI_Init",
        f"while no MPI job runs: rm -f {SHARED_MEMORY}/mpich_shm_* {SHARED_MEMORY}/sm_segment.*",
    )


_LIMITS: tuple[tuple[str, str, str], ...] = (  # the option of ulimit, its name in `resource`, what it breaks
    ("-v", "RLIMIT_AS", "ranks and the record of `pscale watch` map more than they use, and cannot"),
    ("-f", "RLIMIT_FSIZE", "a program whose log, table or record gets as large is ended by SIGXFSZ"),
    ("-l", "RLIMIT_MEMLOCK", "the network's adapter cannot register the memory of messages"),
    ("-u", "RLIMIT_NPROC", "ranks and their threads cannot be started"),
)


def limits(adapters: Path = _ADAPTERS) -> Iterator[Finding]:
    """Look at the limits of this shell, which ranks inherit, and at the user's quota of disks."""
    fine = []
    for option, name, harm in _LIMITS:
        soft, _ = resource.getrlimit(getattr(resource, name))
        if soft == resource.RLIM_INFINITY or _is_enough(name, soft, adapters):
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


def _is_enough(name: str, limit: int, adapters: Path) -> bool:
    """Tell whether a limit gets in nobody's way here."""
    if name == "RLIMIT_NPROC":  # which root does not have
        taken = sum(each.num_threads() for each in psutil.process_iter() if _is_mine(each))
        return os.geteuid() == 0 or limit - taken > _FEW_THREADS * (psutil.cpu_count() or 1)
    return name == "RLIMIT_MEMLOCK" and not any(adapters.glob("*"))


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


_LOOK_S = 0.5
_BUSY = 0.05  # of all cores, and at least
_LEAST_CORES = 0.1  # of one core: what a system does for itself
_PAUSE_S, _LONGEST_S = 2.0, 600.0


@dataclass(frozen=True, kw_only=True)
class OtherWork:
    """What kept the CPUs of this process busy during a look at them, in cores' worth."""

    cores: float
    of: int

    @property
    def disturbs(self) -> bool:
        """Whether it shows in a measurement on these cores."""
        return self.cores > max(_LEAST_CORES, _BUSY * self.of)

    @property
    def sentence(self) -> str:
        """What was seen."""
        return f"other processes use {self.cores:.1f} of {self.of} CPUs"


def other_work(look_s: float = _LOOK_S) -> OtherWork:
    """Look at the CPUs that this process may run on, for `look_s` in which it sleeps."""
    cpus, shares = affinity(), psutil.cpu_times_percent(look_s, percpu=True)
    idle = [share.idle + getattr(share, "iowait", 0.0) for cpu, share in enumerate(shares) if cpu in cpus]
    return OtherWork(cores=sum(1 - percent / 100 for percent in idle), of=len(cpus))


def wait_until_idle(
    tell: Callable[[str], None],
    *,
    look: Callable[[], OtherWork] = other_work,
    sleep: Callable[[float], None] = time.sleep,
    longest_s: float = _LONGEST_S,
) -> bool:
    """Wait until two looks in turn see nothing that disturbs, `longest_s` at most; tell whether they did."""
    idle, told, left_s = 0, False, longest_s
    while True:
        found = look()
        idle = 0 if found.disturbs else idle + 1
        if idle > 1:
            return True
        if left_s <= 0:
            tell(f"{found.sentence}, after {longest_s / 60:.0f} minutes of waiting: measuring anyway")
            return False
        if found.disturbs and not told:
            tell(f"waiting for at most {longest_s / 60:.0f} minutes: {found.sentence}")
            told = True
        sleep(_PAUSE_S)
        left_s -= _PAUSE_S + _LOOK_S


_RANKS = 2
_LIMIT_S = 20
_VENDORS = {"MPICH": "mpich", "Open MPI": "openmpi", "Intel MPI": "intel"}  # mpi4py's names
_MISMATCH = (
    "name the launcher of that library (`launch: {launcher: /path/to/mpiexec}`), or take one that brings "
    "both (`pip install 'pscale[mpich]'`, and no other MPI's wheel or module)"
)


def mpi(machine: Machine, choice: str) -> Iterator[Finding]:
    """Find the launcher and start two ranks with it."""
    try:
        launcher = find(choice)
        yield ok("MPI launcher", f"{launcher.path} ({_named(launcher)})")
        folder = Path(tempfile.mkdtemp(prefix="pscale-doctor-"))
        found = list(_started(machine, launcher, folder))
    except LaunchError as error:
        yield fail("MPI launcher", str(error))
        return
    yield from found
    if all(finding.level != "fail" for finding in found):  # else the logs are worth a look
        shutil.rmtree(folder, ignore_errors=True)


def host_findings(asked: Launch, reports: Path) -> Iterator[Finding]:
    """Start a rank on each of the user's hosts."""
    try:
        machine = find_target(asked, os.environ).machine
        named = ", ".join(f"{host}:{cores}" for host, cores in machine.hosts.items())
        above = next(each for each in (reports.absolute(), *reports.absolute().parents) if each.exists())
        with tempfile.TemporaryDirectory(prefix="pscale-doctor-", dir=above) as folder:
            check_hosts(find(asked.launcher), machine, asked, Path(folder))
    except (LaunchError, UsageError, OSError) as error:
        yield fail("hosts", str(error), "docs/clusters.md tells what launch.hosts needs")
        return
    yield ok("hosts", f"a rank on each of {named} met the others and saw {above}; {machine.all_cores} cores")


def _named(launcher: Launcher) -> str:
    names = {"mpich": "MPICH's Hydra", "openmpi": "Open MPI", "intel": "Intel MPI"}
    return f"{names.get(launcher.flavour, launcher.flavour)} {launcher.version}"


def _started(machine: Machine, launcher: Launcher, folder: Path) -> Iterator[Finding]:
    started = probe(launcher, machine, Launch(), _RANKS)
    answers, outcome = worlds(started, folder, _LIMIT_S)
    if answers:
        yield from judge(machine, launcher, answers, outcome.wall_s)
        return
    alone, _ = worlds(Command(argv=PROBE, env=os.environ), folder / "alone", _LIMIT_S)
    if alone and not _match(launcher, alone[0]):
        text = f"{launcher.path} ({_named(launcher)}) cannot start mpi4py, which loads {_library(alone[0])}"
        yield fail("MPI", text, _MISMATCH)
        return
    advice = f"see whether this works: {shlex.join(started.argv[: -len(PROBE)])} hostname"
    yield fail("MPI", f"{_RANKS} ranks cannot be started: {outcome.reason}", advice)


def judge(
    machine: Machine, launcher: Launcher, answers: Sequence[Mapping[str, Any]], wall_s: float
) -> Iterator[Finding]:
    """Say what the answers of the worlds' first ranks mean: there is one world if all is well."""
    world = answers[0]
    if world["size"] != _RANKS:
        text = (
            f"{launcher.path} ({_named(launcher)}) started {_RANKS} processes, but mpi4py loads "
            f"{_library(world)} and each is in a world of {world['size']}"
        )
        yield fail("MPI", text, _MISMATCH)
        return
    yield ok("MPI", f"{_RANKS} ranks of {_library(world)} started and ended in {wall_s:.1f} s")
    yield _binding(machine, [frozenset(rank["cpus"]) for rank in world["ranks"]])


def _library(world: Mapping[str, Any]) -> str:
    return f"{world['vendor']} {world['version']}"


def _match(launcher: Launcher, world: Mapping[str, Any]) -> bool:
    return _VENDORS.get(world["vendor"], launcher.flavour) == launcher.flavour


def _binding(machine: Machine, cpus: list[frozenset[int]]) -> Finding:
    if not machine.binds:
        return warn("binding", "ranks cannot be bound to cores: that is for Linux", "expect wider intervals")
    if machine.usable_cores < _RANKS:
        text = "one core: ranks share it and are not bound"
        return warn("binding", text, "measure one rank at a time")
    owned = {frozenset(core) for core in machine.core_cpus}
    if len(set(cpus)) == _RANKS and set(cpus) <= owned:
        return ok("binding", "each rank has its own core, as requested")
    got = " and ".join(",".join(map(str, sorted(rank))) for rank in cpus)
    return warn(
        "binding",
        f"each rank should have its own core, but they may run on CPUs {got}",
        "bind with the launcher's own options: `launch: {bind: none, extra: [...]}`",
    )


_KERNEL_VARIABLES = {  # by threadpoolctl's name of the library
    "openblas": ("OPENBLAS_CORETYPE",),
    "mkl": ("MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "MKL_CBWR"),
    "blis": ("BLIS_ARCH_TYPE",),
}
_LOSS = 1.1  # how many times faster it has to be without a variable before that is worth a warning
_WITHIN_S, _EACH_S = 19.0, 7.0  # for all libraries, and for one of them with one thread or with all
_GAIN = 1.3  # how many times faster all cores have to be for threads to be of any use


def blas_findings(machine: Machine) -> Iterator[Finding]:
    """Probe BLAS in a process of its own, with one thread and with all cores."""
    one = probe_blas(1, os.environ)
    if "error" in one:
        yield fail("BLAS", str(one["error"]), "reinstall NumPy: pip install --force-reinstall numpy")
        return
    yield library(one)
    yield kernels(one)
    if machine.usable_cores > 1:
        yield threads(one, probe_blas(machine.usable_cores, os.environ), machine.usable_cores)
    names = _KERNEL_VARIABLES.get(one["blas"], ())
    if forced := {name: os.environ[name] for name in names if name in os.environ}:
        free = {name: value for name, value in os.environ.items() if name not in forced}
        yield kernel(forced, one, probe_blas(1, free))
    elif names:
        yield ok("BLAS code path", f"chosen by the library for this CPU ({' and '.join(names)} not set)")


def library(one: Mapping[str, Any]) -> Finding:
    """Say which BLAS it is."""
    if one["blas"] is None:
        return warn(
            "BLAS",
            f"unknown library, {one['gflops']:.0f} GFLOP/s with one thread (float32)",
            "pscale cannot control its threads: measure with `threads: 1`",
        )
    layer = one["blas_threading"]
    text = (
        f"{one['blas']} {one['blas_version']}, {one['blas_architecture']} kernels, {layer} build; "
        f"{one['gflops']:.0f} GFLOP/s with one thread (float32)"
    )
    if one["blas_library"]:
        text += f"; {one['blas_library']}, lent to NumPy (launch.blas)"
    return ok("BLAS", text, "" if one["openmp"] else _openmp_advice())


def _openmp_advice() -> str:
    known = next((each for each in installed("openblas", os.environ) if each.openmp), None)
    if known is None:
        return "for a build whose threads can be pinned: apt install libopenblas0-openmp, or docs/blas.md"
    try:
        path_of(str(known.path), os.environ)
    except BlasError as error:
        return f"{known.path} is an OpenMP build, but {error}"
    if not is_wheel():
        return f"{known.path} is an OpenMP build: launch.blas=openblas uses it (docs/blas.md)"
    return (
        f"{known.path} is an OpenMP build, but picks old kernels on this CPU: update it, or set "
        "OPENBLAS_CORETYPE (docs/blas.md)"
    )


def kernels(one: Mapping[str, Any]) -> Finding:
    """Say which kernels run outside of matrix products."""
    if one["kernels"] == "fused":
        alone = "" if one["openmp"] else ", single-threaded because BLAS is not an OpenMP build"
        return ok("kernels", f"fused in C{alone}")
    missing = "gomp" in one["kernels_obstacle"]
    advice = (
        "the OpenMP runtime of GCC: apt install libgomp1"
        if missing
        else "a C compiler with OpenMP, then pscale"
    )
    return warn(
        "kernels",
        f"NumPy instead of fused C: {one['kernels_obstacle']}",
        f"install {advice}; steps become about 10% faster (docs/kernels.md)",
    )


def threads(one: Mapping[str, Any], many: Mapping[str, Any], cores: int) -> Finding:
    """Say whether more threads make a product faster."""
    if "error" in many:
        return fail("BLAS threads", str(many["error"]))
    ratio = many["gflops"] / one["gflops"]
    text = (
        f"{many['gflops']:.0f} GFLOP/s with {cores} threads, {ratio:.2f} times one thread; "
        f"they kept {many['cores']:.1f} cores busy"
    )
    if ratio >= _GAIN:
        return ok("BLAS threads", text)
    return warn(
        "BLAS threads",
        text,
        "this BLAS used only one thread: install a threaded one (such as that of NumPy's wheel)"
        if many["threads"] == 1
        else "look for other work on the machine, or use more ranks with one thread each: `threads: 1`",
    )


def kernel(forced: Mapping[str, str], one: Mapping[str, Any], free: Mapping[str, Any]) -> Finding:
    """Say whether variables that choose the kernel cost speed; `free` was measured without them."""
    named = ", ".join(f"{name}={value}" for name, value in forced.items())
    if "error" in free:
        return warn("BLAS code path", f"without {named}: {free['error']}")
    ratio = free["gflops"] / one["gflops"]
    text = (
        f"{named}: {one['blas_architecture']} kernels, {one['gflops']:.0f} GFLOP/s; without: "
        f"{free['blas_architecture']}, {free['gflops']:.0f} GFLOP/s, {ratio:.2f} times as fast"
    )
    if ratio < _LOSS:
        return ok("BLAS code path", text)
    return warn("BLAS code path", text, f"unset {' '.join(forced)}: this CPU can do better")


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast one BLAS multiplies matrices here."""

    choice: str  # as of `launch.blas`
    auto: bool  # what `launch.blas: auto` takes
    name: str
    kernels: str
    threading: str
    gflops: float  # with one thread
    gflops_all: float  # with all cores
    error: str = ""


def ranking(cores: int) -> list[Speed]:
    """Measure NumPy's own BLAS and those that are installed, with one thread and with all cores.

    The fastest comes first; takes some two seconds for each, and less than 20 however many there are.
    """
    until = time.monotonic() + _WITHIN_S
    found = [str(library.path) for kind in KINDS for library in installed(kind, os.environ)]
    automatic = probe_blas(1, os.environ, limit_s=_EACH_S).get("blas_library") or "numpy"
    speeds = [_speed(choice, automatic, cores, until) for choice in ("numpy", *found)]
    return sorted(speeds, key=lambda speed: -max(speed.gflops, speed.gflops_all))


def _speed(choice: str, automatic: str, cores: int, until: float) -> Speed:
    one = _probe_within(1, choice, until)
    many = _probe_within(cores, choice, until) if cores > 1 and "error" not in one else one
    return Speed(
        choice=choice,
        auto=choice == automatic,
        name=" ".join(filter(None, (one.get("blas"), one.get("blas_version")))),
        kernels=one.get("blas_architecture") or "",
        threading=one.get("blas_threading") or "",
        gflops=one.get("gflops", 0.0),
        gflops_all=many.get("gflops", 0.0),
        error=one.get("error") or many.get("error") or "",
    )


def _probe_within(threads: int, choice: str, until: float) -> dict[str, Any]:
    left_s = until - time.monotonic()
    if left_s <= 0:
        return {"error": f"not measured: {_WITHIN_S:.0f} s were over"}
    return probe_blas(threads, os.environ, choice, min(_EACH_S, left_s))
