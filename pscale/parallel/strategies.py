"""The table of strategies: what each can check and predict before a process starts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Protocol

from pscale.config import Case, Plan, Train
from pscale.errors import PlanError
from pscale.mesh.axis import Mesh
from pscale.nn.param import Param
from pscale.parallel import (
    collectives,
    context,
    data,
    expert,
    optimizer,
    pipeline,
    recompute,
    sequence,
    tensor,
    zero_plan,
)
from pscale.parallel.compression import plan as compression
from pscale.parallel.data import Replicated
from pscale.parallel.matrix import plan as matrix
from pscale.parallel.replicas import CUTTING, EVERYWHERE, GRID, SETS, TOKENS, Call, Replicas
from pscale.parallel.zero import Sharded


class Strategy(Protocol):
    """What a strategy's module offers to the planning side."""

    def check(self, case: Case) -> None:
        """Raise PlanError naming the numbers that clash and the values that would work."""
        ...

    def calls(self, case: Case, rank: int) -> list[Call]:
        """Predict the calls that `rank` makes in one step."""
        ...


class Buffered(Protocol):
    """A strategy whose exchanges need memory of their own, beside the pool of activations."""

    def buffer_bytes(self, case: Case, rank: int) -> int:
        """Predict that memory on `rank`."""
        ...


_REPEATING = (("tx",), ("ty",), ("tz",), ("tz", "tx"), ("tz", "ty"))
# The axes that the strategies exchange over, each a set of dims of the mesh, in one order on every rank.
GROUPS = (
    ("pp",),
    ("tp",),
    ("cp",),
    ("cp", "tp"),  # who shares a sequence
    ("ep",),
    ("dp", "ep"),  # who shares a batch
    expert.SYNC,
    TOKENS,
    (*TOKENS, "tp"),
    ("dp", "cp", "tp"),
    CUTTING,  # who holds different parameters
    ("shard", "ep", "cp"),  # who shares a set of shards
    ("shard", "ep", "cp", "tp"),
    ("shard", "cp"),
    ("shard", "cp", "tp"),
    (SETS,),  # who has the same shard of another set
    EVERYWHERE,  # who has different shards
    # Of a grid: single dims for products, all sets of them for parameters that they cut, others for
    # parameters that ranks repeat or sum.
    *(dims for count in range(1, len(GRID) + 1) for dims in combinations(GRID, count)),
    *((*data, *dims) for data in (TOKENS, ("shard", "ep", "cp")) for dims in _REPEATING),
)

STRATEGIES: dict[str, Strategy] = {
    "collectives": collectives,
    "data": data,
    "compression": compression,
    "zero": zero_plan,
    "tensor": tensor,
    "sequence": sequence,
    "context": context,
    "expert": expert,
    "pipeline": pipeline,
    "matrix": matrix,
    "recompute": recompute,
    "optimizer": optimizer,
}
BUFFERED: tuple[Buffered, ...] = (data, compression, zero_plan, tensor, sequence)


def make_replicas(
    units: Sequence[Sequence[Param]], mesh: Mesh, plan: Plan, train: Train, dtype: str
) -> Replicas:
    """Return who holds the parameters of this rank's units: every replica all of them, or a share."""
    made = Sharded if plan.zero else Replicated
    return made(units, mesh, plan, train, dtype)


def check(case: Case) -> None:
    """Raise PlanError if the case cannot run on any machine."""
    plan = case.plan
    if plan.ranks != case.ranks:
        needed = f"{plan.ranks} rank" + ("s" if plan.ranks > 1 else "")
        raise PlanError(
            f"the plan needs {needed} ({plan.product}), the case has {case.ranks}; "
            f"degrees whose product is {case.ranks} would do"
        )
    for strategy in STRATEGIES.values():
        strategy.check(case)


def calls(case: Case, rank: int = 0) -> list[Call]:
    """Predict all calls that `rank` makes in one step, whatever the strategies of the plan."""
    predicted = (call for strategy in STRATEGIES.values() for call in strategy.calls(case, rank))
    return [call for call in predicted if call.count]


def buffer_bytes(case: Case, rank: int = 0) -> int:
    """Predict the memory that exchanges need on `rank` beside the pool of activations."""
    return sum(strategy.buffer_bytes(case, rank) for strategy in BUFFERED)
