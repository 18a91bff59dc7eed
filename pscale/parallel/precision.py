"""Numbers of 16 bits: which plans have them, and the memory in which their sums arrive."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pscale.config import Case
from pscale.errors import PlanError
from pscale.mesh.grid import coordinates
from pscale.number import narrow
from pscale.parallel import division
from pscale.parallel.replicas import Call

_BYTES = 2
_SUMS = ("all_reduce", "reduce_scatter", "reduce")


def check(case: Case) -> None:
    """Raise PlanError for what is not computed, or exchanged, in 16 bits."""
    dtype, plan = case.model.dtype, case.plan
    if case.model.kind == "collectives" and dtype != "float32":
        raise PlanError(f"precision {dtype} is of what a model computes; collectives send float32")
    if not narrow(dtype):
        return
    if division.widens(case) and plan.reduction == "gather-broadcast":
        raise PlanError(
            "reduction gather-broadcast adds up in float32 whatever is sent; reduce float32 is for bucketed, "
            "all-reduce and zero, reduce wire for all"
        )
    if plan.compression != "none":
        raise PlanError(
            f"compression {plan.compression} is of gradients of 32 bits or more, precision {dtype} sends 16; "
            "compression none or precision float32 would do"
        )


def calls(case: Case, rank: int) -> list[Call]:  # noqa: ARG001
    """Predict nothing: the calls are those of others, with smaller numbers."""
    return []


def sums_bytes(case: Case, rank: int, calls: Iterable[Call]) -> int:
    """Predict the memory in which parts of the sums among `calls` arrive: on every axis, of the largest."""
    if not narrow(case.model.dtype):
        return 0
    places, sizes = coordinates(case.plan.sizes, rank), case.plan.sizes
    largest: dict[str, int] = {}
    for call in calls:
        if call.verb in _SUMS and not call.wide:
            largest[call.axis] = max(largest.get(call.axis, 0), call.sent_bytes // _BYTES)
    total = 0
    for axis, numbers in largest.items():
        place, dims = 0, axis.split("+")
        for dim in dims:
            place = place * sizes[dim] + places[dim]
        ranks = math.prod(sizes[dim] for dim in dims)
        mine = numbers * (place + 1) // ranks - numbers * place // ranks
        total += (ranks - 1) * mine * _BYTES
    return total
