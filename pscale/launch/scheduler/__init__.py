"""The schedulers, one file each, and which environment variables reach jobs and launches.

The list is `SchedulerChoice`: scheduler `name` is the class `KIND` of `name.py` in this folder, which has all
that pscale knows of it (see `base.Scheduler`). They are looked for in the order of the list.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import get_args

from pscale.config.choices import SchedulerChoice
from pscale.launch.scheduler.base import Scheduler

__all__ = ["BY_LAUNCHER", "BY_NAME", "SCHEDULERS", "Scheduler", "is_inherited", "is_replaced", "is_stored"]

_NAMES = [name for name in get_args(SchedulerChoice) if name not in ("auto", "none")]
_KINDS: list[type[Scheduler]] = [import_module(f"{__name__}.{name}").KIND for name in _NAMES]

_THREADS_AND_BINDING = (
    r".*_NUM_THREADS|(VECLIB_MAXIMUM|POLARS_MAX)_THREADS|GOMAXPROCS"
    r"|MKL_(DYNAMIC|DOMAIN_.*)|BLIS_[JI][CR]_NT|GOMP_CPU_AFFINITY"
    r"|OMP_(PROC_BIND|PLACES|WAIT_POLICY|THREAD_LIMIT|DYNAMIC|NESTED|MAX_ACTIVE_LEVELS)|GOMP_SPINCOUNT"
    r"|KMP_(AFFINITY|HW_SUBSET|BLOCKTIME|LIBRARY)"
    r"|I_MPI_PIN.*|HYDRA_(BINDING|BINDTO|MAPBY)|(OMPI|PRTE)_MCA_(hwloc|rmaps)_.*"
)
_RANK = r"(PMI|PMIX|PMI2|OMPI|PRTE|HYDI?)_.*"  # what launchers tell their ranks


def _any(*patterns: str) -> str:
    return "|".join(f"(?:{pattern})" for pattern in patterns)


_REPLACED = _any(_THREADS_AND_BINDING, *(kind.launch_variables for kind in _KINDS))
_STORED = _any(*(kind.stored_variables for kind in _KINDS))
_OF_JOBS = _any(_RANK, *(kind.job_variables for kind in _KINDS))
_OF_SITES = _any(*(kind.site_variables for kind in _KINDS))


def is_replaced(name: str) -> bool:
    """Tell whether an inherited variable would set threads or binding, and is therefore not passed on."""
    return re.fullmatch(_REPLACED, name) is not None


def is_stored(name: str) -> bool:
    """Tell whether a variable says of a scheduler's job what a reader of its results has to know."""
    return re.fullmatch(_STORED, name) is not None


def is_inherited(name: str) -> bool:
    """Tell whether a submitted job sees a variable: not if it is meant for another job or is replaced."""
    return not is_replaced(name) and bool(re.fullmatch(_OF_SITES, name) or not re.fullmatch(_OF_JOBS, name))


SCHEDULERS: tuple[Scheduler, ...] = tuple(kind(is_inherited) for kind in _KINDS)
BY_NAME = {scheduler.name: scheduler for scheduler in SCHEDULERS}
BY_LAUNCHER = {scheduler.launcher: scheduler for scheduler in SCHEDULERS if scheduler.launcher}
