"""The command line and environment that start one case. Pure: the same inputs give the same command.

The launcher alone decides threads and binding: whatever of that is inherited from the login shell is taken
away, and the case's own `env` and `extra` come last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pscale.config import Case, Omp
from pscale.errors import LaunchError
from pscale.launch.launcher import Launcher
from pscale.launch.machine import Machine, Placement, place
from pscale.launch.scheduler import is_replaced

_THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"),
    *("NVPL_BLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS"),
    *("RAYON_NUM_THREADS", "POLARS_MAX_THREADS", "TBB_NUM_THREADS", "JULIA_NUM_THREADS", "GOMAXPROCS"),
)
_OWN_BINDING = re.compile(r"--?(bind-to|binding|map-by|cpu-set|cpu-list|rankfile)\b")
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # no function of a shell
_OF_OPENMPI = re.compile(r"(OMPI|PRTE|PMIX)_|(HOSTNAME|PWD|OLDPWD|SHLVL|_)$")  # it sets these itself
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
    if machine.hosts and launcher.scheduler:
        raise LaunchError(
            f"launch.hosts: {launcher.flavour} starts ranks only on nodes of {launcher.scheduler.title}; "
            "name the mpiexec of MPICH, Open MPI or Intel MPI as `launch.launcher`"
        )
    if machine.hosts and launcher.flavour == "openmpi" and " " in launcher.path:
        raise LaunchError(
            "launch.hosts: Open MPI starts nothing on other hosts from a path with a space, as "
            f"{launcher.path!r}; install it in another folder"
        )
    placement = place(case, machine)
    bound = _binding(case, launcher, machine, placement)
    permits = (
        _openmpi_permits(case, machine, environ, root, placement) if launcher.flavour == "openmpi" else ()
    )
    count = () if launcher.scheduler else ("-n", str(case.ranks))
    env = {
        **environment(case.threads, environ),
        **_openmp(case.launch.omp),
        **bound.variables,
        **case.launch.env,
    }
    hands_on = _handed_on(env) if machine.hosts and launcher.flavour == "openmpi" else ()
    return Command(
        argv=(*launcher.opening, *bound.options, *hands_on, *permits, *case.launch.extra, *count, *argv),
        env=env,
    )


def _handed_on(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options by which Open MPI hands variables to ranks on other hosts, as Hydra does itself."""
    names = (name for name in env if _PLAIN_NAME.fullmatch(name) and not _OF_OPENMPI.match(name))
    return tuple(word for name in names for word in ("-x", name))


def environment(threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a job: `environ` with its thread counts and bindings replaced by `threads`."""
    kept = {name: value for name, value in environ.items() if not is_replaced(name)}
    counts = (*_THREAD_VARIABLES, *(name for name in environ if name.endswith("_NUM_THREADS")))
    return {**kept, **dict.fromkeys(counts, str(threads))}  # without it a runtime takes all cores


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


@dataclass(frozen=True, kw_only=True)
class _Binding:
    """Options of the launcher and variables of the job that bind ranks."""

    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def _binding(case: Case, launcher: Launcher, machine: Machine, placement: Placement) -> _Binding:
    """Return what lays out and binds the ranks of `case`; none where it brings its own, or for no flavour.

    Ranks that share cores stay unbound: bound, two would sit on one core while another is free.
    """
    if not launcher.flavour:
        return _Binding()
    if launcher.scheduler:
        return _Binding(options=launcher.scheduler.launcher_options(case, placement))
    layout = _layout(launcher, machine, placement)
    if any(_OWN_BINDING.match(option) for option in case.launch.extra):
        return _Binding(options=layout)  # launchers refuse an option given twice
    if case.launch.bind == "none" or placement.shared or not machine.binds:
        bound = _unbound(launcher, machine, placement)
    else:
        by_flavour = {"mpich": _mpich, "openmpi": _openmpi, "intel": _intel}
        bound = by_flavour[launcher.flavour](case, launcher, machine, placement)
    return replace(bound, options=(*layout, *bound.options))


def _layout(launcher: Launcher, machine: Machine, placement: Placement) -> tuple[str, ...]:
    """Return the options of mpiexec that spread ranks over nodes; none where there is one node.

    Open MPI says with one option how many ranks a node has and how they are bound: that is left to it.
    """
    if placement.hosts:
        if launcher.flavour == "intel":
            return "-hosts", ",".join(placement.hosts), "-ppn", str(_alike(placement))
        named = "--host" if launcher.flavour == "openmpi" else "-hosts"
        return named, ",".join(f"{host}:{ranks}" for host, ranks in placement.hosts.items())
    if machine.nodes == 1:
        return ()
    named = {"openmpi": "--hostfile", "intel": "-machinefile"}.get(launcher.flavour, "-f")
    hosts = (named, machine.hostfile) if machine.hostfile else ()
    return hosts if launcher.flavour == "openmpi" else (*hosts, "-ppn", str(placement.ranks_per_node))


def _alike(placement: Placement) -> int:
    """Return the number of ranks of each host but the last, which Intel MPI fills in their order."""
    each = placement.ranks_per_node
    if any(ranks != each for ranks in [*placement.hosts.values()][:-1]):
        counts = ", ".join(f"{ranks} on {host}" for host, ranks in placement.hosts.items())
        raise LaunchError(
            f"launch.hosts: Intel MPI starts as many ranks on each host, not {counts}; say `ranks_per_node`"
        )
    return each


def _unbound(launcher: Launcher, machine: Machine, placement: Placement) -> _Binding:
    if launcher.flavour == "intel":
        return _Binding(variables={"I_MPI_PIN": "0"})
    if launcher.flavour == "mpich":
        return _Binding(options=("-bind-to", "none"))
    spread = _spread(machine, placement)
    return _Binding(options=(*(("--map-by", spread) if spread else ()), "--bind-to", "none"))


def _spread(machine: Machine, placement: Placement) -> str:
    """Return how Open MPI spreads ranks over several hosts; empty for one, of which nobody gave the name."""
    if placement.hosts:
        return "slot"
    return f"ppr:{placement.ranks_per_node}:node" if machine.nodes > 1 else ""


def _mpich(case: Case, launcher: Launcher, machine: Machine, placement: Placement) -> _Binding:
    """Bind with Hydra, which does not bind by itself and ignores an inherited affinity."""
    # Which cores the job has on its other nodes is not known here.
    if machine.restricted and (case.launch.bind != "core" or machine.nodes > 1):
        return _unbound(launcher, machine, placement)
    if machine.restricted:
        unit = "user:" + ",".join(_cpu_lists(case, machine))
    else:
        unit = f"core:{case.threads}" if case.launch.bind == "core" else case.launch.bind
    return _Binding(options=("-bind-to", unit))


def _cpu_lists(case: Case, machine: Machine) -> list[str]:
    """Return the CPUs of each rank: as many whole cores as it has threads, in order."""
    starts = range(0, case.ranks * case.threads, case.threads)
    return [
        "+".join(str(cpu) for core in machine.core_cpus[start : start + case.threads] for cpu in core)
        for start in starts
    ]


def _openmpi(case: Case, launcher: Launcher, machine: Machine, placement: Placement) -> _Binding:
    """Bind with Open MPI, which ignores an inherited affinity: there, ranks share it unbound."""
    if machine.restricted:
        return _unbound(launcher, machine, placement)
    spread = _spread(machine, placement)
    if case.launch.bind == "core":
        return _Binding(options=("--map-by", f"{spread or 'slot'}:PE={case.threads}", "--bind-to", "core"))
    unit = "package" if case.launch.bind == "socket" and launcher.major >= 5 else case.launch.bind
    return _Binding(options=("--map-by", spread or unit, "--bind-to", unit))


def _intel(case: Case, _launcher: Launcher, machine: Machine, _placement: Placement) -> _Binding:
    """Bind with Intel MPI, which counts a domain in logical CPUs and keeps to an inherited affinity."""
    cpus = case.threads * len(machine.core_cpus[0])
    domain = f"{cpus}:compact" if case.launch.bind == "core" else case.launch.bind
    return _Binding(variables={"I_MPI_PIN": "1", "I_MPI_PIN_DOMAIN": domain})
