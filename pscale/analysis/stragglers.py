"""Which rank the others wait for: named where one of them causes most of the waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis.frames import Run, records, steps
from pscale.analysis.wording import duration, percent

_NOTICED = 0.01  # of the step that the others wait for one rank: less is not worth a word
_LATE = 0.1  # of the step: by so much a rank is late in a single step
_ALWAYS = 0.9  # of the steps
_OWN = 0.5  # of its delay that a rank spent itself: for what is done in turns, others wait for no fault of it
_MOST = 0.5  # of all waiting
_BY_TURNS = 1.3  # times an equal part
_STEP = ["repeat", "step"]


@dataclass(frozen=True, kw_only=True)
class Straggler:
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


def stragglers(run: Run) -> tuple[Straggler, ...]:
    """Return the straggler of every case that has one."""
    if run.caused_waits.empty:
        return ()
    table = _by_rank(run)
    table = table[table["caused_s"].notna()]
    worst = table.loc[table.groupby("case", observed=True)["caused_s"].idxmax()]
    bound = np.maximum(_MOST, _BY_TURNS / (worst["others"] + 1))
    named = worst[(worst["step_share"] >= _NOTICED) & (worst["wait_share"] >= bound)]
    return tuple(found for row in records(named) if (found := _straggler(row, run)))


def _by_rank(run: Run) -> pd.DataFrame:
    """Return case and rank with what the others wait for it, in `caused_s` as each of them waits.

    What ranks cause is scaled to add up to all waiting: wait that is passed on counts at its origin.
    """
    table = run.caused_waits.groupby(["case", "rank"], observed=True)["caused_s"].sum().reset_index()
    of_case = table.groupby("case", observed=True)
    launches = run.ends.groupby(["case", "repeat"], observed=True)["end_s"].agg(["max", "size"])
    known = run.waited.set_index(["case", "repeat"])
    sums = launches.join(known, how="inner").groupby(level="case", observed=True).sum()
    table["others"] = of_case["rank"].transform("size") - 1
    for name, column in (("wall_s", "max"), ("steps", "size"), ("waited_s", "wait_s")):
        table[name] = table["case"].map(sums[column]).astype(float)
    all_caused_s = of_case["caused_s"].transform("sum")
    table = table[(table["others"] > 0) & (table["waited_s"] > 0) & (all_caused_s > 0)].copy()
    table["scale"] = table["waited_s"] / all_caused_s / table["others"]
    table["caused_s"] *= table["scale"]
    table["step_share"] = table["caused_s"] / table["wall_s"]
    table["wait_share"] = table["caused_s"] * table["others"] / table["waited_s"]
    return table


def _straggler(row: Mapping[str, Any], run: Run) -> Straggler | None:
    """Return what is to be said of the rank that a row of `_by_rank` is about; nothing if it is not slow."""
    case, rank, steps_taken = str(row["case"]), int(row["rank"]), int(row["steps"])
    rows = run.caused_waits[(run.caused_waits["case"] == case) & (run.caused_waits["rank"] == rank)]
    mine = rows.set_index(_STEP)["caused_s"] * row["scale"]
    late = mine[mine >= _LATE * row["wall_s"] / steps_taken]
    if late.empty:
        late = mine[mine > 0]  # never by much, but often enough to be named
    excess = _excess(steps(run, case), rank, late.index)
    if excess.sum() < _OWN * late.sum():
        return None
    hosts = run.ranks[(run.ranks["case"] == case) & (run.ranks["rank"] == rank)]["host"].dropna()
    return Straggler(
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


def sentence(straggler: Straggler) -> str:
    """Say who keeps the others waiting, how often, and what that looks like."""
    where = f" on {straggler.host}" if straggler.host else ""
    return (
        f"The others wait for rank {straggler.rank}{where}: {percent(straggler.step_share)} of the step, "
        f"{percent(straggler.wait_share)} of all waiting. It is late in {straggler.late_steps} of "
        f"{straggler.steps} steps, by {duration(straggler.late_s)} on average, mostly in {straggler.phase}."
    )


def hint(straggler: Straggler) -> str:
    """Say what usually makes a rank late as this one is."""
    if straggler.late_steps < _ALWAYS * straggler.steps:
        return "It stalls intermittently: look for other work on its core."
    return "It is slow all the time: look at its share of the work, its clock, and what else runs there."
