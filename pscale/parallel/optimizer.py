"""What an optimizer exchanges, before a process starts: by what its rule declares."""

from __future__ import annotations

import math

from pscale.config import Case
from pscale.config.axes import SETS
from pscale.errors import PlanError
from pscale.mesh.grid import axis_name
from pscale.nn.optimizers import MASTER, rule_of
from pscale.nn.optimizers.base import Units
from pscale.parallel import sharding
from pscale.parallel.replicas import Call


def check(case: Case) -> None:
    """Raise PlanError if the learning rate would never be what was asked for."""
    train = case.train
    total = train.warmup + train.steps
    if train.lr_warmup >= total:
        raise PlanError(
            f"lr_warmup {train.lr_warmup} leaves none of the {total} steps (warmup {train.warmup} + steps "
            f"{train.steps}) at the full rate; lr_warmup {total - 1} or less would"
        )


def calls(case: Case, rank: int) -> list[Call]:
    """Predict the calls over shards in flat memory, and over parts of a cut, that the rule declares."""
    rule, item, found = rule_of(case.train.optimizer), state_item_bytes(case), []
    for part in sharding.tensor_groups(case, rank):
        axes = {"shards": _sharing(case, part), "cuts": part.cut}
        for over, verb, sent_bytes in rule.exchanges(*_units(case, part), item):
            if axes[over]:
                found.append(Call(axis=axis_name(axes[over]), verb=verb, sent_bytes=sent_bytes, wide=True))
    return found


def _sharing(case: Case, part: sharding.TensorGroup) -> tuple[str, ...]:
    """Return the axes whose ranks share the units."""
    return tuple(axis for axis in part.sync if axis != SETS) if case.plan.zero else ()


def _units(case: Case, part: sharding.TensorGroup) -> tuple[Units, int]:
    """Return the tensors of each unit, and how many ranks share them."""
    return list(part.tensors.values()), math.prod(case.plan.sizes[axis] for axis in _sharing(case, part))


def state_item_bytes(case: Case) -> int:
    """Return the size of a number of the state."""
    return max(sharding.item_bytes(case), MASTER.itemsize)
