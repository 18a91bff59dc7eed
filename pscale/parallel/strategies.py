"""The table of strategies: what each can check and predict before a process starts."""

from __future__ import annotations

from typing import Protocol

from pscale.config import Case
from pscale.errors import PlanError
from pscale.parallel import context, data, expert, sequence, tensor
from pscale.parallel.replicas import TOKENS, Call


class Strategy(Protocol):
    """What a strategy's module offers to the planning side."""

    def check(self, case: Case) -> None:
        """Raise PlanError naming the numbers that clash and the values that would work."""
        ...

    def calls(self, case: Case, rank: int) -> list[Call]:
        """Predict the calls that `rank` makes in one step."""
        ...

    def buffer_bytes(self, case: Case, rank: int) -> int:
        """Predict the memory for exchanges on `rank`."""
        ...


# The axes that the strategies exchange over, each a set of dims of the mesh, in one order on every rank.
GROUPS = (
    ("pp",),
    ("tp",),
    ("cp",),
    ("ep",),
    ("dp", "ep"),  # who shares a batch
    expert.SYNC,
    TOKENS,
    (*TOKENS, "tp"),
    ("dp", "cp", "tp"),
    ("pp", "ep", "tp"),  # who holds different parameters
)

STRATEGIES: dict[str, Strategy] = {
    "data": data,
    "tensor": tensor,
    "sequence": sequence,
    "context": context,
    "expert": expert,
}


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
    return [call for strategy in STRATEGIES.values() for call in strategy.calls(case, rank)]


def buffer_bytes(case: Case, rank: int = 0) -> int:
    """Predict the memory that exchanges need on `rank`."""
    return sum(strategy.buffer_bytes(case, rank) for strategy in STRATEGIES.values())
