"""What runs store of a host: limits of its control groups, lists of CPUs, variables of the environment.

Containers and batch systems limit with control groups of Linux. Results are shared: a variable is stored if
computing and MPI depend on it, and if its value cannot open a door.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def cpu_limit(mount: Path = _MOUNT, own: Path = _OWN) -> float | None:
    """Return how many CPUs' worth of time this process may use; None without a limit."""
    limits = []
    for folder in _folders("cpu", mount, own):
        words = content(folder / "cpu.max").split()  # version 2: "200000 100000" or "max 100000"
        if not words:  # version 1: two files, -1 without a limit
            words = [content(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        quota, period = (int(word) if word.isdigit() else 0 for word in words[:2])
        if quota and period:
            limits.append(quota / period)
    return min(limits, default=None)


def memory_limit(mount: Path = _MOUNT, own: Path = _OWN) -> int | None:
    """Return the bytes that this process may occupy; None without a limit."""
    limits = []
    for folder in _folders("memory", mount, own):
        word = content(folder / "memory.max") or content(folder / "memory.limit_in_bytes")
        if word.isdigit():
            limits.append(int(word))
    return min(limits, default=None)


def throttled_s(mount: Path = _MOUNT, own: Path = _OWN) -> float | None:
    """Return for how long the limit on CPU time has held this process's groups back; None where unknown."""
    found = []
    for folder in _folders("cpu", mount, own):
        told = dict(line.split() for line in content(folder / "cpu.stat").splitlines())
        if "throttled_usec" in told:
            found.append(int(told["throttled_usec"]) * 1e-6)
        elif "throttled_time" in told:  # version 1, in nanoseconds
            found.append(int(told["throttled_time"]) * 1e-9)
    return max(found, default=None)


def _folders(controller: str, mount: Path, own: Path) -> Iterator[Path]:
    """Yield the groups that hold this process, innermost first: the tightest limit of all of them counts."""
    for line in content(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        bases = [mount / controller, mount / controllers] if controllers else [mount, mount / "unified"]
        base = next((base for base in bases if base.is_dir()), mount)
        inner = base / path.lstrip("/")
        yield inner
        yield from (folder for folder in inner.parents if folder.is_relative_to(base))


def content(path: Path) -> str:
    """Return what a small file of the system says; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def as_ranges(numbers: Iterable[int], between: str = ",") -> str:
    """Write sorted numbers: [0, 1, 2, 8] is "0-2,8"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return between.join("-".join(str(end) for end in span) for span in spans)


def numbers_in(ranges: str) -> frozenset[int]:
    """Read what `as_ranges` writes."""
    spans = [part.partition("-") for part in ranges.split(",") if part]
    return frozenset(number for low, _, high in spans for number in range(int(low), int(high or low) + 1))


_NAMES = re.compile(
    r"OMP_(NUM_THREADS|NUM_TEAMS|TEAMS_THREAD_LIMIT|THREAD_LIMIT|DYNAMIC|NESTED|MAX_ACTIVE_LEVELS|PROC_BIND"
    r"|PLACES|SCHEDULE|WAIT_POLICY|STACKSIZE|CANCELLATION|DISPLAY_ENV|DISPLAY_AFFINITY|AFFINITY_FORMAT"
    r"|TARGET_OFFLOAD|DEFAULT_DEVICE|TOOL|TOOL_LIBRARIES)|GOMP_(CPU_AFFINITY|SPINCOUNT|STACKSIZE)"
    r"|KMP_(AFFINITY|BLOCKTIME|HW_SUBSET|LIBRARY|SETTINGS|STACKSIZE|TOPOLOGY_METHOD|\w+_BARRIER(_PATTERN)?"
    r"|DUPLICATE_LIB_OK|DYNAMIC_MODE|INIT_AT_FORK|WARNINGS|ADAPTIVE_LOCK_PROPS|TEAMS_\w+)"
    r"|OPENBLAS_(NUM_THREADS|DEFAULT_NUM_THREADS|CORETYPE|MAIN_FREE|THREAD_TIMEOUT|VERBOSE|LOOPS)"
    r"|MKL_(NUM_THREADS|DYNAMIC|DOMAIN_NUM_THREADS|THREADING_LAYER|INTERFACE_LAYER|ENABLE_INSTRUCTIONS|CBWR"
    r"|NUM_STRIPES|VERBOSE|DEBUG_CPU_TYPE|FAST_MEMORY_LIMIT)"
    r"|BLIS_(NUM_THREADS|[JI][CR]_NT|PC_NT|ARCH_TYPE|ARCH_DEBUG|THREAD_IMPL)|\w+_NUM_THREADS"
)
_SETTINGS = (  # of MPI libraries, which have hundreds
    *("MPIR_CVAR_", "MPICH_", "HYDRA_", "OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "I_MPI_", "UCX_", "FI_"),
    *("MPI4PY_",),
)
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|(?<!BY)PASS(?!IVE)|PWD|CRED|AUTH|COOKIE|JWT|KEY|CERT|LOGIN|PRIVATE|_PW(_|$)", re.IGNORECASE
)
_SECRET_VALUE = re.compile(
    r"://[^/\s]*@|[^\s:/@]+:[^\s:/@]+@|-----BEGIN|\b(eyJ|AKIA|gh[a-z]_|xox[a-z]-|sk-|glpat-)"
    r"|(?<![\w./+=-])(?!0x)(?=\S*\d)(?=\S*[A-Za-z])[\w+=-]{32,}"  # as keys are; no mask, no path
)


def stored(environ: Mapping[str, str], also: Callable[[str], bool] = lambda _: False) -> dict[str, str]:
    """Return the variables to store, and those whose names are to be stored `also`, sorted."""
    found = {}
    for name, value in sorted(environ.items()):
        is_good = _NAMES.fullmatch(name) or name.startswith(_SETTINGS) or also(name)
        if is_good and not _SECRET_NAME.search(name) and not _SECRET_VALUE.search(value):
            found[name] = value
    return found
