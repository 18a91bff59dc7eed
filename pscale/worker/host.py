"""What the host does to the CPUs of a rank: other work, the hypervisor, heat, limits.

All is read from files of Linux before and after the measured steps; what a system does not tell is None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pscale import cgroup

_TICK = os.sysconf("SC_CLK_TCK")
_PROC, _CPUS = Path("/proc"), Path("/sys/devices/system/cpu")
_LOOKED_AT = 8  # CPUs whose clock is read: hundreds would take long, and neighbours run alike
_BUSY = ("user", "nice", "system", "irq", "softirq")  # time of guests is counted as user
_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


@dataclass(frozen=True, kw_only=True)
class HostUsage:
    """The accounts of some CPUs so far, and their state now."""

    busy_s: float | None  # of all processes
    steal_s: float | None
    throttled: int | None  # times
    quota_s: float | None
    governor: str | None
    clock_mhz: float | None
    load_average: float | None


def host_usage(cpus: Sequence[int], proc: Path = _PROC, system: Path = _CPUS) -> HostUsage:
    """Read what the host tells of `cpus`."""
    spent = _spent(cpus, proc)
    near = [system / f"cpu{cpu}" for cpu in cpus[:_LOOKED_AT]]
    governors = {_text(folder / "cpufreq" / "scaling_governor") for folder in near} - {""}
    clocks = _known(int, (_text(folder / "cpufreq" / "scaling_cur_freq") for folder in near))
    throttles = _known(int, (_text(folder / "thermal_throttle" / "core_throttle_count") for folder in near))
    loads = _known(float, _text(proc / "loadavg").split()[:1])
    return HostUsage(
        busy_s=sum(spent[name] for name in _BUSY) if spent else None,
        steal_s=spent["steal"] if spent else None,
        throttled=sum(throttles) if throttles else None,
        quota_s=cgroup.throttled_s(),
        governor=", ".join(sorted(governors)) or None,
        clock_mhz=sum(clocks) / len(clocks) / 1000 if clocks else None,
        load_average=loads[0] if loads else None,
    )


def host_without(usage: HostUsage, before: HostUsage, after: HostUsage) -> HostUsage:
    """Return `usage` less what was counted between two other readings."""
    counted = {
        name: None if spent is None or getattr(usage, name) is None else getattr(usage, name) - spent
        for name, spent in _counted(before, after).items()
    }
    return replace(usage, **counted)


def during(before: HostUsage, after: HostUsage) -> dict[str, Any]:
    """Return what happened between two readings, as columns of the `ranks` table."""
    return _counted(before, after) | {
        name: getattr(after, name) for name in ("governor", "clock_mhz", "load_average")
    }


def _counted(before: HostUsage, after: HostUsage) -> dict[str, Any]:
    return {
        name: None if first is None or last is None else last - first
        for name in ("busy_s", "steal_s", "throttled", "quota_s")
        for first, last in [(getattr(before, name), getattr(after, name))]
    }


def _spent(cpus: Iterable[int], proc: Path) -> dict[str, float]:
    """Return the seconds that some CPUs have spent on each kind of work; nothing if that is not told."""
    names = {f"cpu{cpu}" for cpu in cpus}
    rows = [line.split() for line in _text(proc / "stat").splitlines()]
    told = [row[1:] for row in rows if row and row[0] in names and len(row) > len(_FIELDS)]
    return {
        name: sum(int(fields[place]) for fields in told) / _TICK
        for place, name in enumerate(_FIELDS if told else ())
    }


def _known(kind: Callable[[str], Any], texts: Iterable[str]) -> list[Any]:
    return [kind(text) for text in texts if text]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
