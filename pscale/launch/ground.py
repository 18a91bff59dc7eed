"""What there is to launch on: this machine, the nodes of the job around pscale, or those of a partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pscale.config import Launch
from pscale.errors import LaunchError, UsageError
from pscale.launch import machine
from pscale.launch.machine import Machine
from pscale.launch.scheduler.protocol import Shape
from pscale.launch.whereabouts import Whereabouts, decide


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Where launches happen, and what they have there."""

    where: Whereabouts
    shape: Shape

    @property
    def machine(self) -> Machine:
        """One node, and how many there are."""
        return self.shape.machine


def survey(
    launch: Launch, environ: Mapping[str, str], *, nodes: int | None = None, cores_per_node: int | None = None
) -> Ground:
    """Look around for a suite's `launch`; `nodes` and `cores_per_node` are what the site's profile says.

    Raises LaunchError where a scheduler that is wanted does not answer, UsageError where it does not know its
    nodes and no profile does.
    """
    where = decide(launch.scheduler, environ)
    here = machine.inspect()
    if where.inside:
        return Ground(where=where, shape=Shape(machine=where.inside.machine(here)))
    if where.scheduler is None:
        return Ground(where=where, shape=Shape(machine=here))
    try:
        told = where.scheduler.shape(launch)
    except LaunchError:
        if not (nodes and cores_per_node):
            raise
        told = None
    if told is None:
        if not (nodes and cores_per_node):
            raise UsageError(
                f"{where.scheduler.name} does not tell what its nodes are like; say it in a site's profile, "
                "sites.yaml beside the suite: `mysite: {nodes: 100, cores_per_node: 48}` (docs/clusters.md)"
            )
        name = f"{where.scheduler.name} {launch.partition}".rstrip()
        told = Shape(machine=replace(here, host=name, cpu_model=name, cpu_limit=None, restricted=False))
    cores = tuple((cpu,) for cpu in range(cores_per_node)) if cores_per_node else told.machine.core_cpus
    stated = replace(told.machine, nodes=nodes or told.machine.nodes, core_cpus=cores)
    return Ground(where=where, shape=replace(told, machine=stated))
