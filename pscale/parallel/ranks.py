"""The groups of ranks that strategies exchange over."""

from __future__ import annotations

from itertools import combinations

from pscale.config.axes import (
    ALL_AXES,
    BATCH_AXES,
    GRID_AXES,
    HALVES,
    PARAMETER_AXES,
    PLAN_AXES,
    SEQUENCE_AXES,
    SETS,
    TOKEN_AXES,
)

_REPEATING = (("tx",), ("ty",), ("tz",), ("tz", "tx"), ("tz", "ty"))
_SHARD = HALVES["dp"][1]
# The groups of ranks that the strategies exchange over, each a set of axes, in one order on every rank.
GROUPS = (
    *((axis,) for axis in PLAN_AXES if axis in {*PARAMETER_AXES, *SEQUENCE_AXES}),
    (*SEQUENCE_AXES, "tp"),  # who shares a sequence
    BATCH_AXES,  # who shares a batch
    PARAMETER_AXES,  # who holds different parameters
    (SETS,),  # who has the same shard of another set
    *(
        (half,) for axis in SEQUENCE_AXES for half in HALVES.get(axis, ())
    ),  # who has other keys, or other heads
    ALL_AXES,  # who has different shards
    # Of a grid: single axes for products, all sets of them for parameters that they cut.
    *(axes for count in range(1, len(GRID_AXES) + 1) for axes in combinations(GRID_AXES, count)),
    # Over whom gradients are summed: of parameters and of experts, of all replicas and within a set of
    # shards, of what is whole on every rank, on tensor ranks that cut sequences, or on ranks of a grid.
    *(
        (*(_SHARD if sharded and axis == "dp" else axis for axis in tokens), *more)
        for sharded in (False, True)
        for tokens in (TOKEN_AXES, [axis for axis in TOKEN_AXES if axis != "ep"])
        for more in ((), ("tp",), *_REPEATING)
    ),
)
