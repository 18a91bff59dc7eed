"""What a person should know of this machine before believing a measurement made on it."""

from __future__ import annotations

from pathlib import Path

from pscale.launch import machine
from pscale.launch.doctor import blas, host, where, world
from pscale.launch.doctor.finding import Finding

__all__ = ["Finding", "findings"]


def findings(reports: Path = Path("reports"), launcher: str = "auto") -> list[Finding]:
    """Look at cores, load, memory, disk, MPI and BLAS; takes some seconds and both MPI and all cores."""
    here = machine.inspect()
    quiet = host.Stopwatch()
    return [
        where.finding(),
        *host.cores(here),
        *host.load(here),  # before the probes make a load of their own
        *host.storage(here, reports),
        *world.findings(here, launcher),
        *blas.findings(here),
        *host.environment(),
        *quiet.steal(),
    ]
