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
    placement = place(case, machine)
    flavour = _FLAVOURS.get(launcher.flavour, _Flavour)(case, launcher, machine, placement)
    own = any(_OWN_BINDING.match(option) for option in case.launch.extra)  # launchers refuse it given twice
    bound, variables = _NONE if own else flavour.binding()
    env = {**environment(case.threads, environ), **_openmp(case.launch.omp), **variables, **case.launch.env}
    permits = flavour.permits({**environ, **case.launch.env}, root=root)
    count = () if launcher.scheduler else ("-n", str(case.ranks))
    return Command(
        argv=(
            *(*launcher.opening, *flavour.layout(), *bound, *flavour.handed_on(env), *permits),
            *(*case.launch.extra, *count, *argv),
        ),
        env=env,
    )


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


Binding = tuple[tuple[str, ...], Mapping[str, str]]  # options of the launcher, variables of the job
_NONE: Binding = (), {}


@dataclass(frozen=True)
class _Flavour:
    """How a launcher lays out and binds the ranks of a case; of one that is not known, not at all."""

    case: Case
    launcher: Launcher
    machine: Machine
    placement: Placement

    @property
    def binds(self) -> bool:
        """Whether ranks are bound: of those that share cores two would sit on one while another is free."""
        return self.case.launch.bind != "none" and not self.placement.shared and self.machine.binds

    def layout(self) -> tuple[str, ...]:
        """Return the options that spread ranks over nodes; none where there is one node."""
        scheduler = self.launcher.scheduler
        return scheduler.launcher_options(self.case, self.placement) if scheduler else ()

    def binding(self) -> Binding:
        """Return what binds each rank to what the case says, or keeps the launcher from binding."""
        return _NONE

    def permits(self, given: Mapping[str, str], *, root: bool) -> tuple[str, ...]:  # noqa: ARG002
        """Return the options without which the launcher refuses to start; `given` are variables."""
        return ()

    def handed_on(self, env: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG002
        """Return the options that hand variables to ranks on other hosts."""
        return ()

    def _on_nodes(self, hostfile: str) -> tuple[str, ...]:
        """Return the options for several nodes, with that which names the file of their hosts."""
        if self.machine.nodes == 1:
            return ()
        return (hostfile, self.machine.hostfile) if self.machine.hostfile else ()

    def _per_node(self) -> tuple[str, ...]:
        return ("-ppn", str(self.placement.ranks_per_node)) if self.machine.nodes > 1 else ()

    def _ranks_by_host(self) -> str:
        return ",".join(f"{host}:{ranks}" for host, ranks in self.placement.hosts.items())


class _Mpich(_Flavour):
    """Hydra, which does not bind by itself and ignores an inherited affinity."""

    def layout(self) -> tuple[str, ...]:
        if self.placement.hosts:
            return "-hosts", self._ranks_by_host()
        return *self._on_nodes("-f"), *self._per_node()

    def binding(self) -> Binding:
        case, machine, bind = self.case, self.machine, self.case.launch.bind
        unit = f"core:{case.threads}" if bind == "core" else bind
        if machine.restricted:  # as many whole cores as a rank has threads, in order
            starts = range(0, case.ranks * case.threads, case.threads)
            cores = (machine.core_cpus[start : start + case.threads] for start in starts)
            unit = f"user:{','.join('+'.join(str(cpu) for core in each for cpu in core) for each in cores)}"
        # Which cores a restricted job has on its other nodes is not known here.
        is_known = not machine.restricted or (bind == "core" and machine.nodes == 1)
        return ("-bind-to", unit if self.binds and is_known else "none"), {}


class _OpenMpi(_Flavour):
    """Open MPI, which ignores an inherited affinity: there, ranks share it unbound.

    It says with one option how many ranks a node has and how they are bound.
    """

    def layout(self) -> tuple[str, ...]:
        if self.placement.hosts:
            if " " in self.launcher.path:
                raise LaunchError(
                    "launch.hosts: Open MPI starts nothing on other hosts from a path with a space, as "
                    f"{self.launcher.path!r}; install it in another folder"
                )
            return "--host", self._ranks_by_host()
        return self._on_nodes("--hostfile")

    @property
    def _spread(self) -> str:
        """How it spreads ranks over several hosts; empty for one, of which nobody gave the name."""
        if self.placement.hosts:
            return "slot"
        return f"ppr:{self.placement.ranks_per_node}:node" if self.machine.nodes > 1 else ""

    def binding(self) -> Binding:
        bind, spread = self.case.launch.bind, self._spread
        if not self.binds or self.machine.restricted:
            return (*(("--map-by", spread) if spread else ()), "--bind-to", "none"), {}
        if bind == "core":
            return ("--map-by", f"{spread or 'slot'}:PE={self.case.threads}", "--bind-to", "core"), {}
        unit = "package" if bind == "socket" and self.launcher.major >= 5 else bind
        return ("--map-by", spread or unit, "--bind-to", unit), {}

    def permits(self, given: Mapping[str, str], *, root: bool) -> tuple[str, ...]:
        """Return the options to share cores, and to run as root.

        It refuses root because of what a mistake could do to the system. In a container root is the usual
        user and the system is the container's own, so it is permitted there; elsewhere the user says so.
        """
        permits = ("--oversubscribe",) if self.placement.shared else ()
        permitted = _ROOT_OPTION in self.case.launch.extra or all(
            given.get(name) == "1" for name in _ROOT_VARIABLES
        )
        if not root or permitted:
            return permits
        if self.machine.container:
            return (*permits, _ROOT_OPTION)
        raise LaunchError(
            "Open MPI refuses to run as root outside a container: run pscale as another user, or, if root is "
            f"meant, say `launch: {{extra: [{_ROOT_OPTION}]}}` or set {' and '.join(_ROOT_VARIABLES)} to 1"
        )

    def handed_on(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """Return the options that hand variables on, as Hydra does itself."""
        names = (name for name in env if _PLAIN_NAME.fullmatch(name) and not _OF_OPENMPI.match(name))
        return tuple(word for name in names for word in ("-x", name)) if self.machine.hosts else ()


class _Intel(_Flavour):
    """Intel MPI, which counts a domain in logical CPUs and keeps to an inherited affinity."""

    def layout(self) -> tuple[str, ...]:
        hosts, each = self.placement.hosts, self.placement.ranks_per_node
        if not hosts:
            return *self._on_nodes("-machinefile"), *self._per_node()
        if any(ranks != each for ranks in [*hosts.values()][:-1]):  # the last one it fills in their order
            counts = ", ".join(f"{ranks} on {host}" for host, ranks in hosts.items())
            raise LaunchError(
                f"launch.hosts: Intel MPI starts as many ranks on each host, not {counts}; "
                "say `ranks_per_node`"
            )
        return "-hosts", ",".join(hosts), "-ppn", str(each)

    def binding(self) -> Binding:
        if not self.binds:
            return (), {"I_MPI_PIN": "0"}
        cpus, bind = self.case.threads * len(self.machine.core_cpus[0]), self.case.launch.bind
        return (), {"I_MPI_PIN": "1", "I_MPI_PIN_DOMAIN": f"{cpus}:compact" if bind == "core" else bind}


_FLAVOURS: Mapping[str, type[_Flavour]] = {"mpich": _Mpich, "openmpi": _OpenMpi, "intel": _Intel}
