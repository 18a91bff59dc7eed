"""Where the step of every case went: shares of its wall that add up to one, as the efficiency tree splits it.

What is useful is the overall efficiency. Beyond it, in the order of the tree: computation, load balance,
serialisation and transfer each take from the step what their factor leaves of those above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from pscale.analysis.efficiency_tree import Tree
from pscale.analysis.frames import records
from pscale.analysis.threads import ThreadTime, idle

LOSSES = {  # shares of a step that are no use, in words
    "threads": "idle threads",
    "scaling": "computation",
    "imbalance": "load imbalance",
    "serialisation": "serialisation",
    "transfer": "transfer",
    "wait_or_transfer": "serialisation or transfer",
    "copy": "copies",
    "offload": "stalls for offloaded data",
    "unaccounted": "unaccounted",
}
_MEASURED = ("transfer_s", "wait_or_transfer_s", "copy_s", "offload_s", "unaccounted_s")


@dataclass(frozen=True, kw_only=True)
class LostTime:
    """The step of one case as shares of its wall that add up to one; ratios of medians over launches."""

    case: str
    useful: float  # compute that the base case needed as well; without one, all compute
    threads: float  # cores of a rank that idle while it computes, more than in the base case
    scaling: float  # other compute beyond the base case's: caches, memory bandwidth, clock
    imbalance: float  # compute of the slowest rank beyond the mean
    serialisation: float  # other wait for ranks that are late: by turns, or one after another
    transfer: float  # what the network adds
    wait_or_transfer: float  # the last two, where the clocks of several nodes do not distinguish them
    copy: float
    offload: float  # waiting for what lies in a file
    unaccounted: float


def lost_time(
    table: pd.DataFrame, trees: Mapping[str, Tree], bases: Mapping[str, str], threads: Sequence[ThreadTime]
) -> dict[str, LostTime]:
    """Return where the wall of each case went, by case; `table` is that of `efficiency_tree.launches`."""
    medians = table.groupby("case")[["wall_s", *(f"mean_{kind}" for kind in _MEASURED)]].median()
    shares = medians.div(medians["wall_s"], axis=0).fillna(0.0)
    idle_of = {time.case: idle(time) for time in threads}
    found = {}
    for row in records(shares.reset_index()):
        tree = trees[row["case"]]
        of_base = idle_of.get(bases.get(row["case"], ""), 0.0) if tree.computation else 0.0
        idle_more = max(0.0, idle_of.get(row["case"], 0.0) - of_base)
        beside = {kind.removesuffix("_s"): row[f"mean_{kind}"] for kind in _MEASURED}
        if tree.parallel and tree.communication:
            found[row["case"]] = _shares(
                tree, tree.parallel.value, tree.communication.value, beside, idle_more
            )
    return found


def _shares(
    tree: Tree, parallel: float, communication: float, beside: Mapping[str, float], idle_more: float
) -> LostTime:
    """Split the wall: compute into what is useful and what is not, then imbalance, then the rest.

    Compute and imbalance take from the step what the slowest rank computes: `communication`.
    """
    useful = parallel * min(1.0, tree.computation.value) if tree.computation else parallel - idle_more
    useful = max(0.0, useful)
    idled = min(idle_more, parallel - useful)
    return LostTime(
        case=tree.case,
        useful=useful,
        threads=idled,
        scaling=parallel - useful - idled,
        imbalance=communication - parallel,
        **_communication(tree, 1 - communication, beside),
    )


def _communication(tree: Tree, left: float, beside: Mapping[str, float]) -> dict[str, float]:
    """Split what is left of the step: transfer first, then what was measured beside it, the rest is wait."""
    known = dict(beside)
    if tree.transfer:  # as an ideal network tells it, whatever the clocks say
        known |= {"transfer": max(0.0, 1 - tree.transfer.value), "wait_or_transfer": 0.0}
    found = {}
    for name in ("transfer", "copy", "offload", "unaccounted", "wait_or_transfer"):
        found[name] = min(known[name], left)
        left -= found[name]
    return {**found, "serialisation": left}
