"""The command line and environment that start one case. Pure: the same inputs give the same command.

The launcher alone decides threads and binding: whatever of that is inherited from the login shell is taken
away, and the case's own `env` and `extra` come last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pscale.config import Case, Omp
from pscale.errors import LaunchError
from pscale.launch.binding import binding
from pscale.launch.machine import Machine
from pscale.launch.mpi import SCHEDULERS, Launcher
from pscale.launch.placement import Placement, place

_THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"),
    *("NVPL_BLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS"),
)
_CONFLICT = re.compile(
    r".*_NUM_THREADS|VECLIB_MAXIMUM_THREADS|MKL_(DYNAMIC|DOMAIN_.*)|BLIS_[JI][CR]_NT|GOMP_CPU_AFFINITY"
    r"|OMP_(PROC_BIND|PLACES|WAIT_POLICY|THREAD_LIMIT|DYNAMIC|NESTED|MAX_ACTIVE_LEVELS)|GOMP_SPINCOUNT"
    r"|KMP_(AFFINITY|HW_SUBSET|BLOCKTIME|LIBRARY)"
    r"|I_MPI_PIN.*|HYDRA_(BINDING|BINDTO|MAPBY)|(OMPI|PRTE)_MCA_(hwloc|rmaps)_.*"
    # What sbatch and salloc leave as defaults for srun, and what a login shell sets for all three:
    r"|(SBATCH|SALLOC|SRUN)_.*|SLURM_(NTASKS.*|NPROCS|CPUS_PER_(TASK|GPU)|TRES_PER_TASK|CPU_BIND.*|HINT"
    r"|THREADS_PER_CORE|CORE_SPEC|DISTRIBUTION|EXPORT_ENV|MPI_TYPE|MEM_BIND.*|EXACT|EXCLUSIVE|OVERCOMMIT"
    r"|OVERLAP|WHOLE|TIMELIMIT|KILL_BAD_EXIT|WAIT|UNBUFFEREDIO|LABELIO|STD(IN|OUT|ERR)MODE|JOB_NAME)"
)
_ROOT_OPTION = "--allow-run-as-root"
_ROOT_VARIABLES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


@dataclass(frozen=True, kw_only=True)
class Command:
    """What to execute: no shell ever reads it."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def command(
    case: Case,
    launcher: Launcher,
    argv: Sequence[str],
    machine: Machine,
    *,
    environ: Mapping[str, str],
    root: bool,
) -> Command:
    """Return what starts `argv` once per rank of `case`.

    `environ` is what would be inherited; `root` says whether the user is root. Raises PlanError for more
    ranks and threads than cores, LaunchError where the launcher would refuse to start.
    """
    placement = place(case, machine)
    bound = binding(case, launcher, machine, placement)
    permits = (
        _openmpi_permits(case, machine, environ, root, placement) if launcher.flavour == "openmpi" else ()
    )
    count = () if launcher.flavour in SCHEDULERS else ("-n", str(case.ranks))
    return Command(
        argv=(*launcher.opening, *bound.options, *permits, *case.launch.extra, *count, *argv),
        env={
            **environment(case.threads, environ),
            **_openmp(case.launch.omp),
            **bound.variables,
            **case.launch.env,
        },
    )


def environment(threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a job: `environ` with its thread counts and bindings replaced by `threads`."""
    kept = {name: value for name, value in environ.items() if not is_replaced(name)}
    return {**kept, **dict.fromkeys(_THREAD_VARIABLES, str(threads))}


def _openmp(omp: Omp) -> dict[str, str]:
    """Return the variables of OpenMP that the case asks for.

    Places alone would bind too, each runtime in its own way: without `proc_bind` threads stay unbound.
    """
    unbound = "false" if omp.places else None
    asked = {
        "OMP_PROC_BIND": omp.proc_bind or unbound,
        "OMP_PLACES": omp.places,
        "OMP_WAIT_POLICY": omp.wait_policy,
    }
    return {name: value for name, value in asked.items() if value}


def is_replaced(name: str) -> bool:
    """Tell whether an inherited variable would set threads or binding, and is therefore not passed on."""
    return _CONFLICT.fullmatch(name) is not None


def _openmpi_permits(
    case: Case, machine: Machine, environ: Mapping[str, str], root: bool, placement: Placement
) -> tuple[str, ...]:
    """Return the options without which Open MPI refuses: to share cores, and to run as root.

    It refuses root because of what a mistake could do to the system. In a container root is the usual user
    and the system is the container's own, so it is permitted there; elsewhere the user has to say so.
    """
    permits = ("--oversubscribe",) if placement.shared else ()
    given = {**environ, **case.launch.env}
    permitted = _ROOT_OPTION in case.launch.extra or all(given.get(name) == "1" for name in _ROOT_VARIABLES)
    if not root or permitted:
        return permits
    if machine.container:
        return (*permits, _ROOT_OPTION)
    raise LaunchError(
        "Open MPI refuses to run as root outside a container: run pscale as another user, or, if root is "
        f"meant, say `launch: {{extra: [{_ROOT_OPTION}]}}` or set {' and '.join(_ROOT_VARIABLES)} to 1"
    )
