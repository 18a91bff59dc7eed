"""How the ranks of a case are laid out over nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pscale.config import Case
from pscale.errors import PlanError
from pscale.launch.machine import Machine


@dataclass(frozen=True, kw_only=True)
class Placement:
    """So many ranks on each of so many nodes; the last node may have fewer."""

    nodes: int
    ranks_per_node: int
    shared: bool  # ranks have to share cores


def place(case: Case, machine: Machine) -> Placement:
    """Lay out a case: as many ranks on a node as have cores there, evenly, or as many as the case says.

    Raises PlanError for more than there is, unless the case says that its ranks may share cores.
    """
    wanted = case.launch.ranks_per_node or max(1, machine.usable_cores // case.threads)
    nodes = math.ceil(case.ranks / wanted)
    if nodes > machine.nodes or min(wanted, case.ranks) * case.threads > machine.usable_cores:
        if not case.launch.oversubscribe:
            raise _too_many(case, machine, nodes)
        nodes = min(nodes, machine.nodes)
    even = math.ceil(case.ranks / nodes)
    per_node = max(even, min(case.launch.ranks_per_node, case.ranks))
    return Placement(
        nodes=nodes, ranks_per_node=per_node, shared=per_node * case.threads > machine.usable_cores
    )


def _too_many(case: Case, machine: Machine, nodes: int) -> PlanError:
    remedy = "or say `launch: {oversubscribe: true}` to let them share cores"
    if machine.nodes == 1 and not case.launch.ranks_per_node:
        limit = (
            ""
            if machine.usable_cores == machine.cores
            else f" (the control group allows {machine.cpu_limit:g} CPUs)"
        )
        return PlanError(
            f"{case.label}: ranks {case.ranks} x threads {case.threads} = {case.ranks * case.threads} cores, "
            f"but {machine.host} has {machine.usable_cores}{limit}; leave such cases out, "
            f'`exclude: ["ranks * threads > cores"]`, {remedy}'
        )
    each = case.launch.ranks_per_node or math.ceil(case.ranks / nodes)
    return PlanError(
        f"{case.label}: {nodes} nodes with {each} ranks x threads {case.threads} on each, but {machine.host} "
        f"has {machine.nodes} with {machine.usable_cores} cores each; leave such cases out, "
        f'`exclude: ["ranks * threads > cores"]`, {remedy}'
    )
