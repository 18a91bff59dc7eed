"""What all strategies check and predict before a process starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pscale.config import Case
from pscale.config.axes import PLAN_AXES
from pscale.errors import PlanError
from pscale.parallel import (
    collectives,
    compression,
    data_parallel,
    expert,
    offload,
    optimizer,
    pipeline,
    precision,
    recompute,
    saved_state,
    sequence,
    tensor,
)
from pscale.parallel.context import plan as context
from pscale.parallel.matrix import plan as matrix
from pscale.parallel.replicas import Call
from pscale.parallel.suggestions import alternatives, divisors, nearest

CHECKS: Sequence[Callable[[Case], None]] = (
    data_parallel.check_shards,
    collectives.check,  # asks for the ranks of dp, so sets of shards have to be refused by then
    data_parallel.check_batch,
    tensor.check,
    sequence.check,
    context.check,
    expert.check,
    pipeline.check,
    matrix.check,
    compression.check,  # asks how a rank's part is made up, so the plan has to fit the model by then
    recompute.check,
    precision.check,
    optimizer.check,
    offload.check,
    saved_state.check,
)
CALLS: Sequence[Callable[[Case, int], list[Call]]] = (
    data_parallel.calls,
    collectives.calls,
    tensor.calls,
    sequence.calls,
    context.calls,
    expert.calls,
    pipeline.calls,
    matrix.calls,
    compression.calls,
    recompute.calls,
    optimizer.calls,
)


def check(case: Case) -> None:
    """Raise PlanError if the case cannot run on any machine."""
    plan = case.plan
    if plan.ranks != case.ranks:
        needed = f"{plan.ranks} rank" + ("s" if plan.ranks > 1 else "")
        raise PlanError(
            f"the plan needs {needed} ({plan.product}), the case has {case.ranks}; {_fitting(case)} works"
        )
    for check_one in CHECKS:
        check_one(case)


def _fitting(case: Case) -> str:
    """Write which degrees have the product of the case: one changed, and dp, if that is enough."""
    plan, ranks = case.plan, case.ranks
    others = plan.ranks // plan.dp
    if ranks % others == 0:
        return f"dp {ranks // others}"
    fits = []
    for axis in (axis for axis in PLAN_AXES if axis != "dp"):
        room, left = divmod(ranks * getattr(plan, axis), others)
        wholes = divisors(room) if left == 0 else []
        works = [size for size in wholes if _works(_with(case, {axis: size, "dp": room // size}))]
        if near := nearest(works, getattr(plan, axis)):
            fits.append(f"{axis} {alternatives(near)} with dp rest")
    if not fits:
        fits = [f"degrees whose product is {ranks}, each {alternatives(divisors(ranks))}"]
        if ranks > others:
            fits.append(f"ranks {ranks - ranks % others} with dp rest")
    return ", or ".join(fits)


def _with(case: Case, degrees: dict[str, int]) -> Case:
    """Return the case with other degrees: where people give the batch of one replica, of another batch."""
    plan, batch = replace(case.plan, **degrees), case.train.batch  # type: ignore[arg-type]
    if case.scaling == "weak":
        batch = batch // case.plan.batch_parts * plan.batch_parts
    return replace(case, plan=plan, train=replace(case.train, batch=batch))


def _works(case: Case) -> bool:
    try:
        check(case)
    except PlanError:
        return False
    return True


def calls(case: Case, rank: int = 0) -> list[Call]:
    """Predict all calls that `rank` makes in one step, whatever the strategies of the plan."""
    return [call for calls_of in CALLS for call in calls_of(case, rank) if call.count]


def buffer_bytes(case: Case, rank: int = 0) -> int:
    """Predict the memory in which calls of MPI arrange data, or add up, on `rank`."""
    arranged = tensor.buffer_bytes(case, rank) + sequence.buffer_bytes(case, rank)
    return arranged + precision.sums_bytes(case, rank, calls(case, rank))
