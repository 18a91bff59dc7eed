"""Which rank the others wait for: named where one of them is to blame for most of the waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis.frames import Run, records, steps
from pscale.analysis.wording import duration

_NOTICED = 0.01  # of the step that the others wait for one rank: less is not worth a word
_LATE = 0.1  # of the step: by so much a rank is late in a single step
_ALWAYS = 0.9  # of the steps
_OWN = (
    0.5  # of its lateness that a rank spent itself: for what is done in turns, others wait for no fault of it
)
_MOST = 0.5  # of all waiting
_BY_TURNS = 1.3  # times an equal part
_STEP = ["repeat", "step"]


@dataclass(frozen=True, kw_only=True)
class Late:
    """The rank for which the others of a case wait most.

    A rank that is late because it waited itself has passed that on: what it waited is taken off what it
    caused, step by step. One that took no longer than a typical rank is none: in the
    bubble of a pipeline ranks wait for what is done in turns.
    """

    case: str
    rank: int
    host: str
    step_share: float  # of the step that each of the others waits for it, on average
    wait_share: float  # of all waiting in the case
    late_steps: int
    steps: int  # of all launches
    late_s: float  # by how much in a step in which it was late, on average
    phase: str  # where it computed longer than a typical rank in those steps, most of all


def late_ranks(run: Run) -> tuple[Late, ...]:
    """Return the rank to blame for every case that has one."""
    if run.blame.empty:
        return ()
    table = _by_rank(run)
    worst = table.loc[table.groupby("case", observed=True)["blame_s"].idxmax()]
    bound = np.maximum(_MOST, _BY_TURNS / (worst["others"] + 1))
    named = worst[(worst["step_share"] >= _NOTICED) & (worst["wait_share"] >= bound)]
    return tuple(found for row in records(named) if (found := _late(row, run)))


def _by_rank(run: Run) -> pd.DataFrame:
    """Return case and rank with what the others wait for it, in `blame_s` as each of them waits.

    Blame is scaled so that it adds up to all waiting: what is passed on is whose it was.
    """
    table = run.blame.groupby(["case", "rank"], observed=True)["blame_s"].sum().reset_index()
    of_case = table.groupby("case", observed=True)
    launches = run.ends.groupby(["case", "repeat"], observed=True)["end_s"].agg(["max", "size"])
    known = run.waited.set_index(["case", "repeat"])
    sums = launches.join(known, how="inner").groupby(level="case", observed=True).sum()
    table["others"] = of_case["rank"].transform("size") - 1
    for name, column in (("wall_s", "max"), ("steps", "size"), ("waited_s", "wait_s")):
        table[name] = table["case"].map(sums[column]).astype(float)
    blamed_s = of_case["blame_s"].transform("sum")
    table = table[(table["others"] > 0) & (table["waited_s"] > 0) & (blamed_s > 0)].copy()
    table["scale"] = table["waited_s"] / blamed_s / table["others"]
    table["blame_s"] *= table["scale"]
    table["step_share"] = table["blame_s"] / table["wall_s"]
    table["wait_share"] = table["blame_s"] * table["others"] / table["waited_s"]
    return table


def _late(row: Mapping[str, Any], run: Run) -> Late | None:
    """Return what is to be said of the rank that a row of `_by_rank` is about; nothing if it is not slow."""
    case, rank, steps_taken = str(row["case"]), int(row["rank"]), int(row["steps"])
    rows = run.blame[(run.blame["case"] == case) & (run.blame["rank"] == rank)]
    mine = rows.set_index(_STEP)["blame_s"] * row["scale"]
    late = mine[mine >= _LATE * row["wall_s"] / steps_taken]
    if late.empty:
        late = mine[mine > 0]  # never by much, but often enough to be named
    excess = _excess(steps(run, case), rank, late.index)
    if excess.sum() < _OWN * late.sum():
        return None
    hosts = run.ranks[(run.ranks["case"] == case) & (run.ranks["rank"] == rank)]["host"].dropna()
    return Late(
        case=case,
        rank=rank,
        host=str(hosts.iloc[0]) if len(hosts) else "",
        step_share=float(row["step_share"]),
        wait_share=float(row["wait_share"]),
        late_steps=len(late),
        steps=steps_taken,
        late_s=float(late.mean()),
        phase=str(excess.idxmax()),
    )


def _excess(rows: pd.DataFrame, rank: int, places: pd.Index) -> pd.Series:
    """Return how much longer than a typical rank this one took in these steps itself, by phase."""
    chosen = rows.set_index(_STEP)
    chosen = chosen[chosen.index.isin(places)].reset_index()
    chosen["own_s"] = chosen[["compute_s", "copy_s", "offload_s"]].sum(axis="columns")
    of_phase = chosen.groupby([*_STEP, "phase"], observed=True)["own_s"]
    typical = of_phase.quantile(0.5, interpolation="lower").rename("typical_s")
    mine = chosen[chosen["rank"] == rank].join(typical, on=[*_STEP, "phase"])
    return (mine["own_s"] - mine["typical_s"]).groupby(mine["phase"], observed=True).sum()


def sentence(late: Late) -> str:
    """Say who keeps the others waiting, how often, and what that looks like."""
    where = f" on {late.host}" if late.host else ""
    who = f"The others wait for rank {late.rank}{where}, {late.step_share:.0%} of the step"
    often = f"in {late.late_steps} of {late.steps} steps it is late by {duration(late.late_s)} on average"
    return f"{who}, {late.wait_share:.0%} of all waiting: {often}, most of it in {late.phase}"


def hint(late: Late) -> str:
    """Say what usually makes a rank late as this one is."""
    if late.late_steps < _ALWAYS * late.steps:
        return "Something stops it now and then: look for other work on its core."
    return "It is slow all the time: look at its share of the work, its clock, and what else runs there."
