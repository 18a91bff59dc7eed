"""How each MPI is told to give every rank cores of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pscale.config import Case
from pscale.launch.machine import Machine
from pscale.launch.mpi import Launcher

_OWN_OPTION = re.compile(r"--?(bind-to|binding|map-by|cpu-set|cpu-list|rankfile)\b")


@dataclass(frozen=True, kw_only=True)
class Binding:
    """Options of the launcher and variables of the job that bind ranks."""

    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def binding(case: Case, launcher: Launcher, machine: Machine) -> Binding:
    """Return what binds the ranks of `case` as it asks; nothing where it brings options of its own.

    Ranks that share cores stay unbound: bound, two would sit on one core while another is free.
    """
    if any(_OWN_OPTION.match(option) for option in case.launch.extra):
        return Binding()  # launchers refuse to be told twice
    if case.launch.bind == "none" or case.ranks * case.threads > machine.usable_cores:
        return _unbound(launcher)
    by_flavour = {"mpich": _mpich, "openmpi": _openmpi, "intel": _intel}
    return by_flavour[launcher.flavour](case, launcher, machine)


def _unbound(launcher: Launcher) -> Binding:
    options = {"mpich": ("-bind-to", "none"), "openmpi": ("--bind-to", "none"), "intel": ()}
    pin = {"I_MPI_PIN": "0"} if launcher.flavour == "intel" else {}
    return Binding(options=options[launcher.flavour], variables=pin)


def _mpich(case: Case, launcher: Launcher, machine: Machine) -> Binding:
    """Bind with Hydra, which does not bind by itself and looks past an affinity that it inherits."""
    if machine.restricted and case.launch.bind != "core":
        return _unbound(launcher)
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


def _openmpi(case: Case, launcher: Launcher, machine: Machine) -> Binding:
    """Bind with Open MPI, which looks past an inherited affinity: there, ranks share it unbound."""
    if machine.restricted:
        return _unbound(launcher)
    if case.launch.bind == "core":
        return Binding(options=("--map-by", f"slot:PE={case.threads}", "--bind-to", "core"))
    place = "package" if case.launch.bind == "socket" and launcher.major >= 5 else case.launch.bind
    return Binding(options=("--map-by", place, "--bind-to", place))


def _intel(case: Case, _launcher: Launcher, machine: Machine) -> Binding:
    """Bind with Intel MPI, which counts a domain in logical CPUs and keeps to an inherited affinity."""
    cpus = case.threads * len(machine.core_cpus[0])
    domain = f"{cpus}:compact" if case.launch.bind == "core" else case.launch.bind
    return Binding(variables={"I_MPI_PIN": "1", "I_MPI_PIN_DOMAIN": domain})
