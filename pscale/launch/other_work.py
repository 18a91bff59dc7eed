"""A look at the cores before anything is measured on them: what else keeps them busy now."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from pscale.launch.machine import affinity

_LOOK_S = 0.5
_BUSY = 0.05  # of all cores, and at least
_LEAST_CORES = 0.1  # of one core: what a system does for itself
_PAUSE_S, _LONGEST_S = 2.0, 600.0
_IDLE = ("idle", "iowait", "guest", "guest_nice")  # time of guests is counted as user, too


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
    cpus = affinity()
    before = psutil.cpu_times(percpu=True)
    time.sleep(look_s)
    after = psutil.cpu_times(percpu=True)
    busy = [_busy(after[cpu], before[cpu]) for cpu in cpus if cpu < min(len(before), len(after))]
    return OtherWork(cores=sum(busy), of=len(cpus))


def _busy(after: object, before: object) -> float:
    """Return the share of time that a CPU was busy, or taken by the hypervisor."""
    names = [name for name in after._fields if not name.startswith("guest")]  # type: ignore[attr-defined]
    spent = {name: max(0.0, getattr(after, name) - getattr(before, name)) for name in names}
    total = sum(spent.values())
    return 1 - sum(spent.get(name, 0.0) for name in _IDLE) / total if total > 0 else 0.0


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
