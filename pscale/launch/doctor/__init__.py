"""`pscale doctor`: what may spoil measurements on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pscale.config import Launch
from pscale.errors import LaunchError, UsageError
from pscale.launch import selection
from pscale.launch.machine import inspect
from pscale.launch.target import detect_site, find_target

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
    from pscale.launch.doctor import blas, host, mpi  # noqa: PLC0415 - they make findings

    here = inspect()
    stopwatch = host.Stopwatch()
    return [
        site(),
        *host.cores(here),
        *host.load(here),  # before the probes make a load of their own
        *host.storage(here, reports),
        host.shared_memory(),
        *host.limits(),
        *mpi.findings(here, launcher),
        *(mpi.hosts(Launch(launcher=launcher, hosts=tuple(hosts)), reports) if hosts else ()),
        *blas.findings(here),
        *host.environment(),
        *stopwatch.steal(),
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
