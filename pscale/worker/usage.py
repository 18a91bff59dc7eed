"""What a process and its host have used: CPU time, memory, and what interferes with the CPUs of a rank.

All is read from files of Linux before and after the measured steps; what a system does not tell is None.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pscale.mesh.axis import Axis
from pscale.runs.host import as_ranges, content, throttled_s
from pscale.worker.environment import affinity, tasks

_TICK, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_PROC, _CPUS = Path("/proc"), Path("/sys/devices/system/cpu")
_SAMPLED = 8  # CPUs whose clock is read: hundreds would take long, and neighbours run alike
_BUSY = ("user", "nice", "system", "irq", "softirq")  # time of guests is counted as user
_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_PRODUCT = 512  # rows and columns of a product, for which BLAS sets up its buffers: 0.02 s on a slow core
_RESET_PEAK = "5"  # of /proc/self/clear_refs: man 5 proc

Counts = Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What the process and the CPUs that it may run on have used so far; names are columns of `ranks`."""

    counts: Counts  # only ever grow
    thread_cpu_s: Mapping[str, float]  # by thread id, the main thread first
    thread_cpus: Mapping[str, str]  # where each may run
    state: Mapping[str, Any]  # governor, clock and load, now


def usage() -> Usage:
    """Read the operating system's accounts of this process and of the CPUs that it may run on."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    listed = tasks()
    threads, cpus = dict.fromkeys([str(os.getpid())] if listed else [], 0.0), {}
    for task in listed:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # a thread that has just ended
            threads[task.name] = int((task / "schedstat").read_text().split()[0]) * 1e-9
            cpus[task.name] = as_ranges(sorted(os.sched_getaffinity(int(task.name))))
    own: Counts = {
        "cpu_s": spent.ru_utime + spent.ru_stime,
        "involuntary_context_switches": spent.ru_nivcsw,
    }
    host, state = host_usage(affinity())
    return Usage(counts={**own, **host}, thread_cpu_s=threads, thread_cpus=cpus, state=state)


def used(before: Usage, after: Usage) -> dict[str, Any]:
    """Return what was used between two readings, as columns of the table `ranks`."""
    spent_s = _less(after.thread_cpu_s, before.thread_cpu_s)
    main, others = list(spent_s)[:1], list(spent_s)[1:]
    threads = [*main, *sorted(others, key=lambda thread: -spent_s[thread])]
    return {
        **_between(before.counts, after.counts),
        **after.state,
        "thread_cpu_s": [spent_s[thread] for thread in threads] or None,
        "thread_cpus": [after.thread_cpus.get(thread, "") for thread in threads] or None,
    }


def without(usage: Usage, before: Usage, after: Usage) -> Usage:
    """Return `usage` less what was used between two other readings."""
    return replace(
        usage,
        counts=_between(_between(before.counts, after.counts), usage.counts),
        thread_cpu_s=_less(usage.thread_cpu_s, _less(after.thread_cpu_s, before.thread_cpu_s)),
    )


def _between(before: Counts, after: Counts) -> dict[str, float | None]:
    return {
        name: None if value is None or (first := before[name]) is None else value - first
        for name, value in after.items()
    }


def _less(threads: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    """Return values less those of the same thread; one that began later has none."""
    return {thread: cpu_s - others.get(thread, 0.0) for thread, cpu_s in threads.items()}


def host_usage(
    cpus: Sequence[int], proc: Path = _PROC, system: Path = _CPUS
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Return what the host counts for `cpus`, and their state now."""
    spent = _spent(cpus, proc)
    sampled = [system / f"cpu{cpu}" for cpu in cpus[:_SAMPLED]]
    governors = {content(folder / "cpufreq" / "scaling_governor") for folder in sampled} - {""}
    clocks = _known(int, (content(folder / "cpufreq" / "scaling_cur_freq") for folder in sampled))
    throttles = _known(
        int, (content(folder / "thermal_throttle" / "core_throttle_count") for folder in sampled)
    )
    loads = _known(float, content(proc / "loadavg").split()[:1])
    counts = {
        "busy_s": sum(spent[name] for name in _BUSY) if spent else None,
        "steal_s": spent["steal"] if spent else None,
        "thermal_throttles": sum(throttles) if throttles else None,
        "cgroup_throttled_s": throttled_s(),
    }
    state = {
        "governor": ", ".join(sorted(governors)) or None,
        "clock_mhz": sum(clocks) / len(clocks) / 1000 if clocks else None,
        "load_average": loads[0] if loads else None,
    }
    return counts, state


def _spent(cpus: Iterable[int], proc: Path) -> dict[str, float]:
    """Return the seconds that some CPUs have spent on each kind of work; empty if that is not told."""
    names = {f"cpu{cpu}" for cpu in cpus}
    rows = [line.split() for line in content(proc / "stat").splitlines()]
    told = [row[1:] for row in rows if row and row[0] in names and len(row) > len(_FIELDS)]
    return {
        name: sum(int(fields[index]) for fields in told) / _TICK
        for index, name in enumerate(_FIELDS if told else ())
    }


def _known(kind: Callable[[str], Any], texts: Iterable[str]) -> list[Any]:
    return [kind(text) for text in texts if text]


def set_up(axes: Iterable[Axis]) -> None:
    """Use BLAS and every axis once: what they allocate at the first use stays, and is not the model's."""
    square = np.ones((_PRODUCT, _PRODUCT), np.float32)
    square = square @ square
    for axis in axes:
        axis.all_reduce(square)


def resident_bytes() -> int:
    """Return the resident set size of this process now, without what is free in it."""
    with contextlib.suppress(OSError, AttributeError):  # glibc: it keeps freed memory for later
        ctypes.CDLL(None).malloc_trim(0)
    if told := content(_PROC / "self" / "statm"):
        return int(told.split()[1]) * _PAGE
    import psutil  # noqa: PLC0415 - takes its time, and Linux has no need of it

    resident: int = psutil.Process().memory_info().rss
    return resident


def reset_peak() -> bool:
    """Let the peak of the resident set restart; false where the system refuses: it is the process's."""
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def peak_resident_bytes() -> int:
    """Return the largest resident set size of this process since the peak was reset, if it was."""
    for line in content(Path("/proc/self/status")).splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
