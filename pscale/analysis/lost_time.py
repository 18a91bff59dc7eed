"""Where the step of every case went: shares of its wall that add up to one, as the efficiency tree splits it.

What is useful is the overall efficiency. Beyond it, in the order of the tree: computation, load balance,
serialisation and transfer each take from the step what their factor leaves of those above.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import stdev
from typing import Any

import pandas as pd

from pscale.analysis.columns import Row
from pscale.analysis.deciding import more_rounds
from pscale.analysis.efficiency_tree import Tree
from pscale.analysis.frames import grouped, records
from pscale.analysis.stats import Estimate, student_quantile
from pscale.analysis.threads import idle
from pscale.analysis.wording import percent

LOSSES = {  # shares of a step that are no use, in words
    "threads": "idle threads",
    "scaling": "slower compute",
    "imbalance": "load imbalance",
    "serialisation": "serialisation",
    "transfer": "transfer",
    "wait_or_transfer": "serialisation or transfer",
    "copy": "copies",
    "offload": "stalls for offloaded data",
    "unaccounted": "unaccounted",
}
_OF_BASE = ("useful", "threads", "scaling")  # shares that the base case decides as well
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
    spread: Mapping[str, float] = field(default_factory=dict)  # half of the 95% intervals; empty: one launch

    def text(self, name: str) -> str:
        """Return a share with half of its interval, such as "18.6% ± 2.1%"."""
        known = f" ± {percent(min(1.0, self.spread[name]))}" if self.spread else ""
        return percent(getattr(self, name)) + known

    def exceeds(self, name: str, other: str, share: float) -> bool:
        """Tell whether a share is surely above 0 and above another one, of which `share` is to be told."""
        if not self.spread:
            return False
        own, spread = getattr(self, name), self.spread[name]
        return bool(own > spread and own - share >= math.hypot(spread, self.spread[other]))

    def rounds_to_exceed(self, name: str, other: str, share: float, rounds: int) -> int | None:
        """Return how many more rounds should tell that, after so many; None where none worth advising do."""
        own, spread = getattr(self, name), self.spread[name]
        above_zero = more_rounds(spread, own, rounds)
        above_other = more_rounds(math.hypot(spread, self.spread[other]), own - share, rounds)
        return None if above_zero is None or above_other is None else max(above_zero, above_other)


def lost_time(
    table: pd.DataFrame, trees: Mapping[str, Tree], bases: Mapping[str, str], threads: Sequence[Row]
) -> dict[str, LostTime]:
    """Return where the wall of each case went, by case; `table` is that of `efficiency_tree.launches`."""
    medians = table.groupby("case")[["wall_s", *(f"mean_{kind}" for kind in _MEASURED)]].median()
    shares = medians.div(medians["wall_s"], axis=0).fillna(0.0)
    idle_of = {time.case: idle(time) for time in threads}
    found = {}
    rows = grouped(records(table), lambda row: str(row["case"]))
    for row in records(shares.assign(wall_s=medians["wall_s"]).reset_index()):
        tree = trees[row["case"]]
        of_base = idle_of.get(bases.get(row["case"], ""), 0.0) if tree.computation else 0.0
        idle_more = max(0.0, idle_of.get(row["case"], 0.0) - of_base)
        beside = {kind.removesuffix("_s"): row[f"mean_{kind}"] for kind in _MEASURED}
        if tree.parallel and tree.communication:
            losses = _shares(tree, tree.parallel.value, tree.communication.value, beside, idle_more)
            of_itself = bases.get(row["case"]) == row["case"]
            spread = _spread(tree, rows[row["case"]], None if of_itself else row["wall_s"], idle_more)
            found[row["case"]] = replace(losses, spread=spread)
    return found


def _spread(
    tree: Tree, rows: Sequence[Mapping[str, Any]], wall_s: float | None, idle_more: float
) -> dict[str, float]:
    """Return half of the interval of every share, from those of the launches by themselves.

    Unless the case is its own base, without `wall_s`, how far its efficiency is known comes on top.
    """
    own = [_of_launch(tree, row, wall_s, idle_more) for row in rows if row["wall_s"]]
    if len(own) < 2:
        return {}
    reach = student_quantile(len(own) - 1) / math.sqrt(len(own))
    found = {name: reach * stdev(getattr(each, name) for each in own) for name in ("useful", *LOSSES)}
    known = tree.overall if tree.computation and wall_s else None
    if known and known.low is not None and known.high is not None:
        for name in _OF_BASE:
            if any(getattr(each, name) for each in own):
                found[name] = max(found[name], (known.high - known.low) / 2)
    return found


def _of_launch(tree: Tree, row: Mapping[str, Any], wall_s: float | None, idle_more: float) -> LostTime:
    """Split the wall of one launch as that of all, which is `wall_s`."""
    wall, (parallel, communication) = row["wall_s"], (row["mean_compute_s"], row["max_compute_s"])
    own = replace(tree, transfer=Estimate(value=row["t_ideal_s"] / wall) if tree.transfer else None)
    if tree.computation and tree.overall and wall_s and parallel:
        own = replace(own, computation=Estimate(value=tree.overall.value * wall_s / parallel))
    beside = {kind.removesuffix("_s"): (row[f"mean_{kind}"] or 0.0) / wall for kind in _MEASURED}
    return _shares(own, parallel / wall, communication / wall, beside, idle_more)


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


def _communication(tree: Tree, left: float, beside: Mapping[str, float]) -> dict[str, Any]:
    """Split what is left of the step: transfer first, then what was measured beside it, the rest is wait."""
    known = dict(beside)
    if tree.transfer:  # as an ideal network tells it, whatever the clocks say
        known |= {"transfer": max(0.0, 1 - tree.transfer.value), "wait_or_transfer": 0.0}
    found = {}
    for name in ("transfer", "copy", "offload", "unaccounted", "wait_or_transfer"):
        found[name] = min(known[name], left)
        left -= found[name]
    return {**found, "serialisation": left}
