"""What an optimizer exchanges, before a process starts: by what its rule declares."""

from __future__ import annotations

import math

from pscale.config import Case
from pscale.mesh.grid import axis_name
from pscale.nn.optimizers import MASTER, rule_of
from pscale.parallel import sharding
from pscale.parallel.replicas import Call


def calls(case: Case, rank: int) -> list[Call]:
    """Predict the calls over shards in flat memory, and over parts of a cut, that the rule declares."""
    rule, item, found = rule_of(case.train.optimizer), max(sharding.item_bytes(case), MASTER.itemsize), []
    for part in sharding.tensor_groups(case, rank):
        axes = {"shards": part.sharing(case.plan), "cuts": part.cut}
        shards = math.prod(case.plan.sizes[axis] for axis in axes["shards"])
        for over, verb, sent_bytes in rule.exchanges(list(part.tensors.values()), shards, item):
            if axes[over]:
                found.append(Call(axis=axis_name(axes[over]), verb=verb, sent_bytes=sent_bytes, wide=True))
    return found
