"""The efficiency tree of every case and of its phases.

The tree is POP's: parallel efficiency = load balance x communication efficiency; the latter = serialisation x
transfer where the wall on an ideal network is known. Times are over all measured steps of a launch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pscale.analysis.frames import KINDS, Run
from pscale.analysis.stats import Estimate, Sample, estimate, ratio, sample

_LAUNCH = ["case", "repeat"]
_SAME: Estimate | None = Estimate(value=1.0, low=1.0, high=1.0)
_FACTORS = {  # of medians over launches, so that they multiply exactly
    "parallel": ("mean_compute_s", "wall_s"),
    "load_balance": ("mean_compute_s", "max_compute_s"),
    "communication": ("max_compute_s", "wall_s"),
    "serialisation": ("max_compute_s", "t_ideal_s"),
    "transfer": ("t_ideal_s", "wall_s"),
}


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Efficiencies of one case, or of one phase of its steps; None where not measured.

    Each is a ratio of medians over launches, with an interval for whole steps of two launches and more.
    """

    case: str
    phase: str  # empty: whole steps
    of_step: float  # wall of the phase on the rank where it is longest, over that of the step
    overall: Estimate | None  # parallel x computation
    computation: Estimate | None  # against the base case
    parallel: Estimate | None  # load balance x communication
    load_balance: Estimate | None
    communication: Estimate | None  # serialisation x transfer
    serialisation: Estimate | None
    transfer: Estimate | None
    unaccounted: float | None  # share of the wall
    threads: float | None = None  # CPU time of the threads over their number x compute wall; in computation


def launches(run: Run) -> pd.DataFrame:
    """Return a row per launch that ended well: walls and sums of the kinds of time over its measured steps.

    `mean_…`, `max_…`, `typical_…` (lower median) are over ranks, in seconds;
    `core_s` is compute times threads of one step, summed over ranks, and `wall_core_s` the same of the wall.
    """
    ranks = run.ranks.groupby(_LAUNCH, observed=True)
    known = {
        "wall_s": run.ends.groupby(_LAUNCH, observed=True)["end_s"].max(),
        "t_ideal_s": ranks["t_ideal_s"].max(),
        "mean_unaccounted_s": ranks["unaccounted_s"].mean(),
    }
    sums = _of_ranks(run.phases, _LAUNCH).drop(columns=["wall_s", "t_ideal_s"])
    return _with_cores(run, sums.join(pd.DataFrame(known)))


def phases(run: Run) -> pd.DataFrame:
    """Return the same a launch and phase; its wall is that of the rank on which it is longest.

    So is its ideal wall: compute, copies and the wait that an ideal network leaves.
    """
    return _with_cores(run, _of_ranks(run.phases, [*_LAUNCH, "phase"]))


def _of_ranks(sums: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Describe the spread of the kinds of time over ranks; `sums` are those over steps."""
    named = sums[sums["phase"] != ""]
    columns = [*KINDS, "ideal_wait_s", "wall_s"]
    per_rank = named.groupby([*by, "rank"], observed=True)[columns].sum(min_count=1)
    per_rank["t_ideal_s"] = per_rank[["compute_s", "copy_s", "ideal_wait_s"]].sum(axis=1, skipna=False)
    groups = per_rank.groupby(level=by, observed=True)
    table = groups[list(KINDS)].mean().add_prefix("mean_")
    table["max_compute_s"] = groups["compute_s"].max()
    table["typical_compute_s"] = groups["compute_s"].quantile(0.5, interpolation="lower")
    table["sum_compute_s"] = groups["compute_s"].sum()
    table["wall_s"], table["t_ideal_s"] = groups["wall_s"].max(), groups["t_ideal_s"].max()
    return table.assign(ranks=groups.size())


def _with_cores(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    steps = run.ends.groupby(_LAUNCH, observed=True).size().rename("steps")
    table = table.join(steps, on=_LAUNCH).reset_index()
    table["case"] = table["case"].astype(str)
    known = ["case", "repeat", "threads", "model_flops", "scaling"]
    table = table.merge(run.cases[known], on=_LAUNCH, how="left")
    threads = table["threads"] / table["steps"]
    return table.assign(
        core_s=table["sum_compute_s"] * threads, wall_core_s=table["wall_s"] * table["ranks"] * threads
    )


def trees(table: pd.DataFrame, bases: Mapping[str, str], seed: int) -> dict[str, Tree]:
    """Return the efficiency tree by case; `bases` gives the base case of each that has one."""
    rows = {str(case): group for case, group in table.groupby("case")}
    return {case: _tree(rows, case, bases, seed=seed) for case in rows}


def phase_trees(table: pd.DataFrame, bases: Mapping[str, str], whole: pd.DataFrame) -> tuple[Tree, ...]:
    """Return the tree of every phase in which somebody computes; `whole` is the table of whole steps."""
    walls_s = {str(case): float(wall_s) for case, wall_s in whole.groupby("case")["wall_s"].median().items()}
    found = []
    for phase, of_phase in table.groupby("phase", observed=True):
        rows = {str(case): group for case, group in of_phase.groupby("case")}
        computing = {case: group for case, group in rows.items() if group["max_compute_s"].median() > 0}
        found += [_tree(computing, case, bases, phase=str(phase), step_s=walls_s[case]) for case in computing]
    return tuple(found)


def _tree(
    rows: Mapping[str, pd.DataFrame],
    case: str,
    bases: Mapping[str, str],
    *,
    phase: str = "",
    step_s: float | None = None,
    seed: int | None = None,
) -> Tree:
    """Return the tree of the launches `rows[case]`; with intervals if there is a `seed` for them."""
    own, base = rows[case], rows.get(bases.get(case, ""))
    keys = None if seed is None else (seed, *case.encode())
    factors = {name: _factor(own, *parts, keys) for name, parts in _FACTORS.items()}
    overall, computation = factors["parallel"], _SAME
    if base is not own:
        overall, computation = (_against(base, own, spent, keys) for spent in ("wall_core_s", "core_s"))
    wall_s = float(own["wall_s"].median())
    unaccounted = None if phase else float(own["mean_unaccounted_s"].median()) / wall_s
    return Tree(
        case=case,
        phase=phase,
        of_step=1.0 if step_s is None else wall_s / step_s,
        overall=overall,
        computation=computation,
        unaccounted=unaccounted,
        threads=None,
        **factors,
    )


def _factor(rows: pd.DataFrame, above: str, below: str, seed: Sequence[int] | None) -> Estimate | None:
    """Divide medians over launches; nothing of nothing is all of it. Launches are resampled in pairs."""
    part, whole = rows[above], rows[below]
    if part.isna().any() or whole.isna().any():
        return None
    value = float(part.median()) / float(whole.median()) if whole.median() else 1.0
    if seed is None or not (part > 0).all() or not (whole > 0).all():
        return Estimate(value=value)
    drawn = _sampled(part / whole, seed)
    return estimate(value, None if drawn.draws is None else drawn.draws * value / drawn.value)


def _against(
    base: pd.DataFrame | None, own: pd.DataFrame, spent: str, seed: Sequence[int] | None
) -> Estimate | None:
    """Return core-seconds of compute that the base case needs for this work over those `spent` here."""
    if base is None:
        return None
    work = 1.0
    if own["scaling"].iloc[0] != "strong":
        done, of_base = float(own["model_flops"].median()), float(base["model_flops"].median())
        work = done / of_base if of_base > 0 else math.nan
    value = work * float(base["core_s"].median()) / float(own[spent].median())
    if not math.isfinite(value):
        return None
    if seed is None:
        return Estimate(value=value)
    return ratio(_sampled(base["core_s"], (*seed, 1)), _sampled(own[spent], seed), factor=work)


def _sampled(values: pd.Series[float], seed: Sequence[int]) -> Sample:
    """Return a sample of launches that are one value each."""
    return sample([np.array([value]) for value in values], seed)
