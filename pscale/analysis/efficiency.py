"""The efficiency tree of every case, and where the rest of its step went.

The tree is POP's: parallel efficiency = load balance x communication efficiency; the latter = serialisation x
transfer where the wall on an ideal network is known. Times are over all measured steps of a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis.frames import Run, records

KINDS = ("compute_s", "transfer_s", "wait_s", "together_s", "copy_s", "hidden_s")
_LAUNCH = ["case", "repeat"]


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Efficiencies of one case, each the median over its launches; None where not measured."""

    case: str
    parallel: float
    load_balance: float
    communication: float
    serialisation: float | None
    transfer: float | None
    computation: float | None  # against the base case
    overall: float | None  # parallel x computation
    unaccounted: float | None  # share of the wall


@dataclass(frozen=True, kw_only=True)
class Losses:
    """The step of one case as shares of its wall that add up to one."""

    case: str
    useful: float  # compute that the base case needed as well
    scaling: float  # compute beyond that: caches, memory bandwidth, clock, threads
    imbalance: float  # compute of the slowest rank beyond a typical one's (the lower median)
    waiting: float  # other wait: ranks that are late by turns
    transfer: float
    together: float  # other wait, and transfer, where clocks of several nodes do not tell them apart
    copy: float
    unaccounted: float


def launches(run: Run) -> pd.DataFrame:
    """Return a row per launch that ended well: walls and sums of the kinds of time over its measured steps.

    `mean_…`, `max_…`, `typical_…` (lower median) are over ranks, in seconds;
    `core_s` is compute times threads of one step, summed over ranks.
    """
    steps = run.steps
    per_rank = steps[steps["phase"] != ""].groupby([*_LAUNCH, "rank"], observed=True)[list(KINDS)].sum()
    by_launch = per_rank.groupby(level=_LAUNCH, observed=True)
    walls = steps.groupby(_LAUNCH, observed=True)
    table = by_launch.mean().add_prefix("mean_")
    table["max_compute_s"] = by_launch["compute_s"].max()
    table["typical_compute_s"] = by_launch["compute_s"].quantile(0.5, interpolation="lower")
    table["sum_compute_s"] = by_launch["compute_s"].sum()
    table["wall_s"] = walls["end_s"].max()
    table["steps"] = walls["step"].nunique()
    table = table.join(_of_ranks(run)).reset_index()
    table["case"] = table["case"].astype(str)
    known = ["case", "repeat", "threads", "model_flops", "scaling"]
    table = table.merge(run.cases[known], on=_LAUNCH, how="left")
    return table.assign(core_s=table["sum_compute_s"] * table["threads"] / table["steps"])


def _of_ranks(run: Run) -> pd.DataFrame:
    """Return what only the table of ranks knows: the ideal wall, and time that no row explains."""
    groups = run.ranks.groupby(_LAUNCH, observed=True)
    return pd.DataFrame(
        {"t_ideal_s": groups["t_ideal_s"].max(), "mean_unaccounted_s": groups["unaccounted_s"].mean()}
    )


def trees(table: pd.DataFrame, bases: dict[str, str]) -> dict[str, Tree]:
    """Return the efficiency tree by case; `bases` gives the base case of each that has one."""
    factors = table.assign(
        parallel=table["mean_compute_s"] / table["wall_s"],
        load_balance=_share(table["mean_compute_s"], table["max_compute_s"]),
        communication=table["max_compute_s"] / table["wall_s"],
        serialisation=_share(table["max_compute_s"], table["t_ideal_s"]),
        transfer=table["t_ideal_s"] / table["wall_s"],
        computation=_computation(table, bases),
        unaccounted=table["mean_unaccounted_s"] / table["wall_s"],
    )
    factors["overall"] = factors["parallel"] * factors["computation"]
    names = [name for name in Tree.__dataclass_fields__ if name != "case"]
    medians = factors.groupby("case")[names].median()
    finite = medians.where(np.isfinite(medians)).reset_index()
    return {row["case"]: Tree(**row) for row in records(finite)}


def losses(table: pd.DataFrame, tree: dict[str, Tree]) -> dict[str, Losses]:
    """Return where the wall of each case went, as shares: means over its launches."""
    columns = ["wall_s", "max_compute_s", "typical_compute_s", *(f"mean_{kind}" for kind in KINDS)]
    means = table.groupby("case")[columns].mean()
    shares = records(means.div(means["wall_s"], axis=0).reset_index())
    return {row["case"]: _shares(row["case"], row, tree[row["case"]].computation) for row in shares}


def _shares(case: str, of_wall: Mapping[str, Any], computation: float | None) -> Losses:
    """Split the wall, given its parts: the slowest rank's compute from the bottom up, then the rest.

    Base work, then what every typical rank spends beyond it, then what the slowest spends beyond a typical
    one, which costs the others wait; what wait is left has no lasting culprit.
    """
    mean, largest = of_wall["mean_compute_s"], of_wall["max_compute_s"]
    useful = mean * min(1.0, 1.0 if computation is None else computation)
    typical = max(of_wall["typical_compute_s"], useful)
    together = of_wall["mean_together_s"]
    beyond_imbalance = of_wall["mean_wait_s"] + together - (largest - mean)
    parts = {
        "useful": useful,
        "scaling": typical - useful,
        "imbalance": largest - typical + min(0.0, beyond_imbalance),
        "waiting": max(0.0, beyond_imbalance - together),
        "together": min(max(0.0, beyond_imbalance), together),
        "transfer": of_wall["mean_transfer_s"],
        "copy": of_wall["mean_copy_s"],
    }
    return Losses(case=case, **parts, unaccounted=1 - sum(parts.values()))


def _computation(table: pd.DataFrame, bases: dict[str, str]) -> pd.Series[float]:
    """Return core-seconds of compute that the base case needs for this work over those that were spent."""
    spent = table.groupby("case", observed=True)[["core_s", "model_flops"]].median()
    base = spent.reindex(table["case"].map(bases)).set_axis(table.index)
    work = (table["model_flops"] / base["model_flops"]).where(table["scaling"] != "strong", 1.0)
    return base["core_s"] * work / table["core_s"]


def _share(part: pd.Series[float], whole: pd.Series[float]) -> pd.Series[float]:
    """Divide; nothing of nothing is all of it."""
    return (part / whole).where(whole != 0, 1.0)
