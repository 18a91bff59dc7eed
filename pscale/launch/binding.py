"""How each launcher is told where ranks go, and to give every one of them cores of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pscale.config import Case
from pscale.launch.machine import Machine
from pscale.launch.mpi import Launcher
from pscale.launch.placement import Placement

_OWN_OPTION = re.compile(r"--?(bind-to|binding|map-by|cpu-set|cpu-list|rankfile)\b")


@dataclass(frozen=True, kw_only=True)
class Binding:
    """Options of the launcher and variables of the job that bind ranks."""

    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def binding(case: Case, launcher: Launcher, machine: Machine, placement: Placement) -> Binding:
    """Return what lays out and binds the ranks of `case` as it asks; no binding where it brings its own.

    Ranks that share cores stay unbound: bound, two would sit on one core while another is free.
    """
    if launcher.flavour == "srun":
        return Binding(options=_srun(case, placement))
    if launcher.flavour == "flux":
        return Binding(options=_flux(case, placement))
    layout = _layout(launcher, machine, placement)
    if any(_OWN_OPTION.match(option) for option in case.launch.extra):
        return Binding(options=layout)  # launchers refuse to be told twice
    if case.launch.bind == "none" or placement.shared:
        bound = _unbound(launcher, machine, placement)
    else:
        by_flavour = {"mpich": _mpich, "openmpi": _openmpi, "intel": _intel}
        bound = by_flavour[launcher.flavour](case, launcher, machine, placement)
    return replace(bound, options=(*layout, *bound.options))


def _layout(launcher: Launcher, machine: Machine, placement: Placement) -> tuple[str, ...]:
    """Return the options of mpiexec that spread ranks over nodes; none where there is one node.

    Open MPI says with one option how many ranks a node has and how they are bound: that is left to it.
    """
    if machine.nodes == 1:
        return ()
    named = {"openmpi": "--hostfile", "intel": "-machinefile"}.get(launcher.flavour, "-f")
    hosts = (named, machine.hostfile) if machine.hostfile else ()
    return hosts if launcher.flavour == "openmpi" else (*hosts, "-ppn", str(placement.ranks_per_node))


def _srun(case: Case, placement: Placement) -> tuple[str, ...]:
    """Say everything: srun takes little over from the job, since Slurm 22.05 not even the cores of a task."""
    places = {"core": "cores", "socket": "sockets", "numa": "ldoms", "none": "none"}
    return (
        f"--nodes={placement.nodes}",
        f"--ntasks={case.ranks}",
        f"--ntasks-per-node={placement.ranks_per_node}",
        f"--cpus-per-task={case.threads}",
        f"--cpu-bind={'none' if placement.shared else places[case.launch.bind]}",
        "--threads-per-core=1",
        "--distribution=block:block",
        *(("--overcommit",) if placement.shared else ()),
        "--kill-on-bad-exit=1",
        "--export=ALL",
    )


def _flux(case: Case, placement: Placement) -> tuple[str, ...]:
    affinity = "off" if placement.shared or case.launch.bind == "none" else "per-task"
    return (
        f"--nodes={placement.nodes}",
        f"--ntasks={case.ranks}",
        f"--cores-per-task={case.threads}",
        f"--setopt=cpu-affinity={affinity}",
    )


def _unbound(launcher: Launcher, machine: Machine, placement: Placement) -> Binding:
    if launcher.flavour == "intel":
        return Binding(variables={"I_MPI_PIN": "0"})
    if launcher.flavour == "mpich":
        return Binding(options=("-bind-to", "none"))
    spread = ("--map-by", _each_node(placement)) if machine.nodes > 1 else ()
    return Binding(options=(*spread, "--bind-to", "none"))


def _each_node(placement: Placement) -> str:
    return f"ppr:{placement.ranks_per_node}:node"


def _mpich(case: Case, launcher: Launcher, machine: Machine, placement: Placement) -> Binding:
    """Bind with Hydra, which does not bind by itself and looks past an affinity that it inherits."""
    # Which cores the job has on its other nodes is not known here.
    if machine.restricted and (case.launch.bind != "core" or machine.nodes > 1):
        return _unbound(launcher, machine, placement)
    if machine.restricted:
        place = "user:" + ",".join(_cpu_lists(case, machine))
    else:
        place = f"core:{case.threads}" if case.launch.bind == "core" else case.launch.bind
    return Binding(options=("-bind-to", place))


def _cpu_lists(case: Case, machine: Machine) -> list[str]:
    """Return the CPUs of each rank: as many whole cores as it has threads, in order."""
    starts = range(0, case.ranks * case.threads, case.threads)
    return [
        "+".join(str(cpu) for core in machine.core_cpus[start : start + case.threads] for cpu in core)
        for start in starts
    ]


def _openmpi(case: Case, launcher: Launcher, machine: Machine, placement: Placement) -> Binding:
    """Bind with Open MPI, which looks past an inherited affinity: there, ranks share it unbound."""
    if machine.restricted:
        return _unbound(launcher, machine, placement)
    if case.launch.bind == "core":
        each = _each_node(placement) if machine.nodes > 1 else "slot"
        return Binding(options=("--map-by", f"{each}:PE={case.threads}", "--bind-to", "core"))
    place = "package" if case.launch.bind == "socket" and launcher.major >= 5 else case.launch.bind
    spread = _each_node(placement) if machine.nodes > 1 else place
    return Binding(options=("--map-by", spread, "--bind-to", place))


def _intel(case: Case, _launcher: Launcher, machine: Machine, _placement: Placement) -> Binding:
    """Bind with Intel MPI, which counts a domain in logical CPUs and keeps to an inherited affinity."""
    cpus = case.threads * len(machine.core_cpus[0])
    domain = f"{cpus}:compact" if case.launch.bind == "core" else case.launch.bind
    return Binding(variables={"I_MPI_PIN": "1", "I_MPI_PIN_DOMAIN": domain})
