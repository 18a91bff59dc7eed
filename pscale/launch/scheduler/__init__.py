"""Batch systems: one file each, behind one Protocol."""

from __future__ import annotations

from pscale.launch.scheduler.flux import Flux
from pscale.launch.scheduler.lsf import Lsf
from pscale.launch.scheduler.pbs import Pbs
from pscale.launch.scheduler.protocol import Scheduler
from pscale.launch.scheduler.slurm import Slurm

SCHEDULERS: tuple[Scheduler, ...] = (
    Slurm(),
    Flux(),
    Pbs(),
    Lsf(),
)  # in the order in which they are looked for

__all__ = ["SCHEDULERS", "Scheduler"]
