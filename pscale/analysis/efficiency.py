"""The efficiency tree of every case and of its phases.

The tree is POP's: parallel efficiency = load balance x communication efficiency; the latter = serialisation x
transfer where the wall on an ideal network is known. Times are over all measured steps of a launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pscale.analysis.frames import KINDS, Run, records
from pscale.analysis.stats import Estimate, Sample, estimate, ratio, sample
from pscale.analysis.steady import Steady

_LAUNCH = ["case", "repeat"]
_SAME: Estimate | None = Estimate(value=1.0, low=1.0, high=1.0)
_FACTORS = {  # of medians over launches, so that they multiply exactly
    "parallel": ("mean_compute_s", "wall_s"),
    "load_balance": ("mean_compute_s", "max_compute_s"),
    "communication": ("max_compute_s", "wall_s"),
    "serialisation": ("max_compute_s", "t_ideal_s"),
    "transfer": ("t_ideal_s", "wall_s"),
}


_TOLD = ("overall", "computation", *_FACTORS)


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

    So is its ideal wall: compute, copies, stalls of offload and the wait that an ideal network leaves.
    """
    return _with_cores(run, _of_ranks(run.phases, [*_LAUNCH, "phase"]))


def _of_ranks(sums: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Describe the spread of the kinds of time over ranks; `sums` are those over steps."""
    named = sums[sums["phase"] != ""]
    columns = [*KINDS, "injected_s", "ideal_wait_s", "wall_s"]
    per_rank = named.groupby([*by, "rank"], observed=True)[columns].sum(min_count=1)
    per_rank["t_ideal_s"] = per_rank[["compute_s", "copy_s", "offload_s", "ideal_wait_s"]].sum(
        axis=1, skipna=False
    )
    groups = per_rank.groupby(level=by, observed=True)
    table = groups[[*KINDS, "injected_s"]].mean().add_prefix("mean_")
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
    several = table[table.duplicated("case", keep=False)]
    rows = _by_case(several)
    found = {}
    for known in _values(table, bases):
        case = known["case"]
        intervals = _intervals(rows, case, bases, (seed, *case.encode()), known) if case in rows else {}
        found[case] = _tree(known, intervals)
    return found


def phase_trees(table: pd.DataFrame, bases: Mapping[str, str], whole: pd.DataFrame) -> tuple[Tree, ...]:
    """Return the tree of every phase in which somebody computes; `whole` is the table of whole steps."""
    walls_s = whole.groupby("case")["wall_s"].median().to_dict()
    found = []
    for phase, of_phase in table.groupby("phase", observed=True):
        busy_s = of_phase.groupby("case")["max_compute_s"].transform("median")
        computing = of_phase[busy_s > 0].drop(columns="mean_unaccounted_s", errors="ignore")
        for known in _values(computing, bases):
            of_step = known["wall_s"] / walls_s[known["case"]]
            found.append(_tree(known, {}, phase=str(phase), of_step=of_step))
    return tuple(found)


def _values(table: pd.DataFrame, bases: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return, a row a case, its wall, what is unaccounted, and every factor: None where it is not known.

    Factors are ratios of medians over launches; nothing of nothing is all of it.
    """
    of_case = table.groupby("case")
    columns = [name for name in _USED if name in table.columns]
    medians = of_case[columns].median()
    lacks = table[columns].isna().groupby(table["case"]).any()
    found = pd.DataFrame({"wall_s": medians["wall_s"]})
    for name, (above, below) in _FACTORS.items():
        value = (medians[above] / medians[below]).where(medians[below] != 0, 1.0)
        found[name] = value.mask(lacks[above] | lacks[below])
    base = medians.reindex([bases.get(str(case), "") for case in medians.index]).set_axis(medians.index)
    strong = of_case["scaling"].first() == "strong"
    found["work"] = (medians["model_flops"] / base["model_flops"]).where(~strong, 1.0)
    for name, spent in (("overall", "wall_core_s"), ("computation", "core_s")):
        found[name] = found["work"] * base["core_s"] / medians[spent]
    own = [bases.get(str(case)) == case for case in medians.index]
    found.loc[own, "overall"], found["own"] = found.loc[own, "parallel"], own
    if "mean_unaccounted_s" in medians:
        found["unaccounted"] = medians["mean_unaccounted_s"] / medians["wall_s"]
    return records(found.replace([np.inf, -np.inf], np.nan).reset_index().astype({"case": str}))


_USED = (
    *("mean_compute_s", "max_compute_s", "wall_s", "t_ideal_s", "core_s", "wall_core_s", "model_flops"),
    "mean_unaccounted_s",
)
_WHOLE = Steady(start=0, reached=True)
_Rows = Mapping[str, NDArray[Any]]  # columns of the launches of one case


def _by_case(table: pd.DataFrame) -> dict[str, _Rows]:
    """Return the launches of every case, column by column."""
    return {
        str(case): {name: rows[name].to_numpy() for name in _USED if name in rows}
        for case, rows in table.groupby("case")
    }


def _tree(
    known: Mapping[str, Any], intervals: Mapping[str, Estimate], *, phase: str = "", of_step: float = 1.0
) -> Tree:
    """Return the tree of a case from its factors and the intervals of some of them."""
    factors = {
        name: intervals.get(name) or (None if (value := known[name]) is None else _exactly(value))
        for name in _TOLD
    }
    if known["own"]:
        factors["computation"] = _SAME
    return Tree(
        case=known["case"],
        phase=phase,
        of_step=of_step,
        unaccounted=known.get("unaccounted"),
        threads=None,
        **factors,
    )


@lru_cache(1024)  # of very many phases most factors are one
def _exactly(value: float) -> Estimate:
    return Estimate(value=value)


def _intervals(
    rows: Mapping[str, _Rows],
    case: str,
    bases: Mapping[str, str],
    seed: Sequence[int],
    known: Mapping[str, Any],
) -> dict[str, Estimate]:
    """Return the factors of a case of several launches that have an interval.

    Launches are resampled in pairs for what is of one case; those of the base case too for the others.
    """
    own, base = rows[case], rows.get(bases.get(case, ""))
    found = {name: _factor(own, *parts, known[name], seed) for name, parts in _FACTORS.items()}
    if known["own"]:
        found["overall"] = found["parallel"]
    elif base is not None:
        for name, spent in (("overall", "wall_core_s"), ("computation", "core_s")):
            if known[name] is not None:
                sides = _sampled(base["core_s"], (*seed, 1)), _sampled(own[spent], seed)
                found[name] = ratio(*sides, factor=known["work"])
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def _factor(rows: _Rows, above: str, below: str, value: float | None, seed: Sequence[int]) -> Estimate | None:
    part, whole = rows[above], rows[below]
    if value is None or not (part > 0).all() or not (whole > 0).all():
        return None
    drawn = _sampled(part / whole, seed)
    return estimate(value, None if drawn.draws is None else drawn.draws * value / drawn.value)


def _sampled(values: NDArray[Any], seed: Sequence[int]) -> Sample:
    """Return a sample of launches that are one value each."""
    return sample(list(values.astype(np.float64)[:, None]), seed, [_WHOLE] * len(values))
