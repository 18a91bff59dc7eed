"""Which rank the others wait for: named where one of them is to blame for most of the waiting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from pscale.analysis.frames import Run

_NOTICED = 0.01  # of the step that the others wait for one rank: less is not worth a word
_LATE = 0.1  # of the step: by so much a rank is late in a single step
_ALWAYS = 0.9  # of the steps
_MOST = 0.5  # of all waiting
_BY_TURNS = 1.3  # times an equal part
_STEP = ["repeat", "step"]


@dataclass(frozen=True, kw_only=True)
class Late:
    """The rank for which the others of a case wait most.

    A rank that is late because it waited itself has passed that on: what it waited is taken off what it
    caused, step by step.
    """

    case: str
    rank: int
    host: str
    step_share: float  # of the step that each of the others waits for it, on average
    wait_share: float  # of all waiting in the case
    late_steps: int
    steps: int  # of all launches
    late_s: float  # by how much in a step in which it was late, the median
    phase: str  # where it computed longer than a typical rank in those steps, most of all


def late_ranks(run: Run) -> tuple[Late, ...]:
    """Return the rank to blame for every case that has one."""
    known = run.steps[run.steps["caused_s"].notna()]
    return tuple(
        found
        for case, rows in known.groupby("case", observed=True)
        for found in _of_case(str(case), rows, run)
    )


def _of_case(case: str, rows: pd.DataFrame, run: Run) -> Iterator[Late]:
    others = rows["rank"].nunique() - 1
    waited = rows["wait_s"].sum()
    if others < 1 or not waited > 0:
        return
    times = rows.groupby(["rank", *_STEP])[["caused_s", "wait_s"]].sum()
    blame = (times["caused_s"] - times["wait_s"]).clip(lower=0.0)
    if not blame.sum() > 0:
        return
    blame *= (
        waited / blame.sum() / others
    )  # s that each of the others waits; what is passed on is whose it was
    by_rank = blame.groupby(level="rank").sum()
    rank = int(by_rank.index.to_numpy()[by_rank.to_numpy().argmax()])
    steps = rows[_STEP].drop_duplicates()
    wall_s = rows.groupby("repeat")["end_s"].max().sum()
    step_share, wait_share = by_rank[rank] / wall_s, by_rank[rank] * others / waited
    if step_share < _NOTICED or wait_share < max(_MOST, _BY_TURNS / (others + 1)):
        return
    mine = blame.xs(rank, level="rank")
    late = mine[mine >= _LATE * wall_s / len(steps)]
    hosts = run.ranks[(run.ranks["case"] == case) & (run.ranks["rank"] == rank)]["host"].dropna()
    yield Late(
        case=case,
        rank=rank,
        host=str(hosts.iloc[0]) if len(hosts) else "",
        step_share=float(step_share),
        wait_share=float(wait_share),
        late_steps=len(late),
        steps=len(steps),
        late_s=float(late.median()) if len(late) else float(mine.median()),
        phase=_phase(rows, rank, (late if len(late) else mine).index),
    )


def _phase(rows: pd.DataFrame, rank: int, steps: pd.Index) -> str:
    """Return the phase in which a rank computed longer than a typical one in these steps, most of all."""
    chosen = rows.set_index(_STEP)
    chosen = chosen[chosen.index.isin(steps)].reset_index()
    of_phase = chosen.groupby([*_STEP, "phase"], observed=True)["compute_s"]
    typical = of_phase.quantile(0.5, interpolation="lower").rename("typical_s")
    mine = chosen[chosen["rank"] == rank].join(typical, on=[*_STEP, "phase"])
    excess = (mine["compute_s"] - mine["typical_s"]).groupby(mine["phase"], observed=True).sum()
    return str(excess.idxmax())


def sentence(late: Late) -> str:
    """Say who keeps the others waiting, how often, and what that looks like."""
    where = f" on {late.host}" if late.host else ""
    who = f"The others wait for rank {late.rank}{where}, {late.step_share:.0%} of the step"
    often = f"in {late.late_steps} of {late.steps} steps it is late by {late.late_s * 1e3:.3g} ms (median)"
    if not late.late_steps:
        often = f"it is late by {late.late_s * 1e3:.3g} ms a step (median)"
    return f"{who}, {late.wait_share:.0%} of all waiting: {often}, most of it in {late.phase}"


def hint(late: Late) -> str:
    """Say what usually makes a rank late as this one is."""
    if 0 < late.late_steps < _ALWAYS * late.steps:
        return "Something stops it now and then: look for other work on its core."
    return "It is slow all the time: look at its share of the work, its clock, and what else runs there."
