"""What a rank needs of the strategies together: the axes they exchange over, and who holds its parameters.

What strategies check and predict before a process starts is in `strategies`, which ranks need not import.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from pscale.config import Case
from pscale.mesh.axis import Mesh
from pscale.nn.offload.storage import Storage
from pscale.nn.param import Param
from pscale.parallel.data import Replicated
from pscale.parallel.expert import SYNC
from pscale.parallel.replicas import CUTTING, EVERYWHERE, GRID, SETS, TOKENS, Replicas
from pscale.parallel.zero import Sharded

_REPEATING = (("tx",), ("ty",), ("tz",), ("tz", "tx"), ("tz", "ty"))
# The axes that the strategies exchange over, each a set of dims of the mesh, in one order on every rank.
GROUPS = (
    ("pp",),
    ("tp",),
    ("cp",),
    ("cp", "tp"),  # who shares a sequence
    ("ep",),
    ("dp", "ep"),  # who shares a batch
    SYNC,
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


def make_replicas(
    units: Sequence[Sequence[Param]], mesh: Mesh, case: Case, storage: Storage | None = None
) -> Replicas:
    """Return who holds the parameters of this rank's units: every replica all of them, or a share.

    The state of their optimizer is in memory, or in `storage` if the plan offloads it.
    """
    made = Sharded if case.plan.zero else Replicated
    return made(units, mesh, case, storage if case.plan.offloads_state else None)
