"""What each axis of the mesh costs: efficiencies as if all the others were ideal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis.frames import Run, records
from pscale.config import Plan, from_dict

_LAUNCH = ["case", "repeat"]


@dataclass(frozen=True, kw_only=True)
class AxisTree:
    """Efficiencies of a case along one axis; medians over launches, None where not measured.

    Unlike those of whole steps they do not multiply to the whole: what is lost on an axis is set against all
    of the wall. Waiting can move from one axis to another on an ideal network, so that a factor may pass 1.
    """

    case: str
    axis: str
    parallel: float  # serialisation x transfer: all of the wall but the time in calls on this axis
    load_balance: float  # compute of a rank over that of the slowest of those that it meets on this axis
    serialisation: float | None  # what waiting on this axis leaves on an ideal network
    transfer: float | None  # what the network of this axis leaves


def axis_trees(run: Run, launches: pd.DataFrame) -> tuple[AxisTree, ...]:
    """Return the axes of every case on which ranks communicate; `launches` is that of `efficiency`."""
    columns = ["wait_s", "transfer_s", "together_s", "ideal_wait_s"]
    sums = run.calls.groupby([*_LAUNCH, "axis"], observed=True)[columns].sum(min_count=1).reset_index()
    table = sums.astype({"case": str, "axis": str}).merge(launches[[*_LAUNCH, "wall_s", "ranks"]], on=_LAUNCH)
    rank_walls = table["wall_s"] * table["ranks"]
    inside = table[["wait_s", "transfer_s", "together_s"]].sum(axis=1)
    table["parallel"] = 1 - inside / rank_walls
    table["transfer"] = 1 - (inside - table["ideal_wait_s"]) / rank_walls
    table["serialisation"] = table["parallel"] / table["transfer"]
    names = ["parallel", "serialisation", "transfer"]
    medians = table.groupby(["case", "axis"])[names].median().reset_index()
    compute = run.phases.groupby(["case", "rank"], observed=True)["compute_s"].sum().reset_index()
    of_case: dict[str, list[float]] = {}
    for case, compute_s in zip(compute["case"].astype(str), compute["compute_s"], strict=True):
        of_case.setdefault(case, []).append(compute_s)
    return tuple(
        AxisTree(**row, load_balance=balance(run.planned, row["case"], row["axis"], of_case[row["case"]]))
        for row in records(medians)
    )


def balance(
    planned: Mapping[str, Mapping[str, Any]], case: str, axis: str, compute_s: Sequence[float]
) -> float:
    """Return the compute of all ranks, in order, over that of the slowest rank of each one's group."""
    sizes = from_dict(Plan, planned[case]["plan"]).sizes
    grid = np.array(compute_s, np.float64).reshape(tuple(sizes.values()))
    along = tuple(place for place, dim in enumerate(sizes) if dim in axis.split("+"))
    slowest = np.broadcast_to(grid.max(axis=along, keepdims=True), grid.shape).sum()
    return float(grid.sum() / slowest) if slowest else 1.0
