"""The efficiency tree of every case, of the phases of its steps and of the axes of its mesh.

The tree is POP's: parallel efficiency = load balance x communication efficiency; the latter = serialisation x
transfer where the wall on an ideal network is known. Times are over all measured steps of a launch, factors
ratios of medians over launches. Overall is the scaling efficiency that all of the report states, times the
parallel efficiency of the base case; computation is what parallel efficiency leaves of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pscale.analysis.columns import Row
from pscale.analysis.frames import KINDS, Run, records
from pscale.analysis.scaling import bases as bases_of
from pscale.analysis.stats import Estimate, level
from pscale.config import Plan, from_dict

_LAUNCH = ["case", "repeat"]
_SAME: Estimate | None = Estimate(value=1.0, low=1.0, high=1.0)
_FACTORS = {  # of medians over launches, so that they multiply exactly
    "parallel": ("mean_compute_s", "wall_s"),
    "load_balance": ("mean_compute_s", "max_compute_s"),
    "communication": ("max_compute_s", "wall_s"),
    "serialisation": ("max_compute_s", "t_ideal_s"),
    "transfer": ("t_ideal_s", "wall_s"),
}


_COMPUTING = 0.05  # of a phase, on the rank that computes most in it: the phase is for computing
_TOLD = ("overall", "computation", *_FACTORS)


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Efficiencies of one case, or of one phase of its steps; None where not measured.

    Those of whole steps have an interval from two launches on.
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
    `core_s` is compute times threads of one step, summed over ranks.
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
    columns = [*KINDS, "injected_delay_s", "ideal_wait_s", "wall_s"]
    per_rank = named.groupby([*by, "rank"], observed=True)[columns].sum(min_count=1)
    per_rank["t_ideal_s"] = per_rank[["compute_s", "copy_s", "offload_s", "ideal_wait_s"]].sum(
        axis=1, skipna=False
    )
    groups = per_rank.groupby(level=by, observed=True)
    table = groups[[*KINDS, "injected_delay_s"]].mean().add_prefix("mean_")
    table["max_compute_s"] = groups["compute_s"].max()
    table["typical_compute_s"] = groups["compute_s"].quantile(0.5, interpolation="lower")
    table["sum_compute_s"] = groups["compute_s"].sum()
    table["wall_s"], table["t_ideal_s"] = groups["wall_s"].max(), groups["t_ideal_s"].max()
    return table.assign(ranks=groups.size())


def _with_cores(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    steps = run.ends.groupby(_LAUNCH, observed=True).size().rename("steps")
    table = table.join(steps, on=_LAUNCH).reset_index()
    table["case"] = table["case"].astype(str)
    stated = {case: (planned.get("workload") or {}).get("work") for case, planned in run.planned.items()}
    table["work"] = table["case"].map(stated).astype(float)
    known = ["case", "repeat", "threads", "model_flops", "scaling"]
    table = table.merge(run.cases[known], on=_LAUNCH, how="left")
    return table.assign(core_s=table["sum_compute_s"] * table["threads"] / table["steps"])


def trees(table: pd.DataFrame, points: Sequence[Row]) -> dict[str, Tree]:
    """Return the efficiency tree by case, from the launches of all and the efficiencies in `points`."""
    bases, efficiencies = bases_of(points), {point.case: point.efficiency for point in points}
    rows = _by_case(table[table.duplicated("case", keep=False)])
    values = {known["case"]: known for known in _values(table, bases)}
    found = {}
    for case, known in values.items():
        intervals = _intervals(rows[case], known) if case in rows else {}
        tree = _tree(known, intervals)
        base = values.get(bases.get(case, ""), {}).get("parallel")
        found[case] = tree if known["own"] else _against_base(tree, base, efficiencies[case])
    return found


def _against_base(tree: Tree, base: float | None, efficiency: Estimate | None) -> Tree:
    """Return a tree with what its case is against the base, given the parallel efficiency of that."""
    if not base or efficiency is None or tree.parallel is None or not tree.parallel.value:
        return replace(tree, overall=None, computation=None)
    overall = efficiency.times(base)
    return replace(tree, overall=overall, computation=overall.times(1 / tree.parallel.value))


def phase_trees(table: pd.DataFrame, bases: Mapping[str, str], whole: pd.DataFrame) -> tuple[Tree, ...]:
    """Return the tree of every phase that is for computing; `whole` is the table of whole steps.

    Of a phase that is for communication, efficiency says nothing: the share of the step says what it costs.
    """
    walls_s = whole.groupby("case")["wall_s"].median().to_dict()
    found = []
    for phase, of_phase in table.groupby("phase", observed=True):
        medians = of_phase.groupby("case")[["max_compute_s", "wall_s"]].transform("median")
        busy = medians["max_compute_s"] > _COMPUTING * medians["wall_s"]
        computing = of_phase[busy].drop(columns="mean_unaccounted_s", errors="ignore")
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
    work = (medians["model_flops"] / base["model_flops"]).where(~strong, 1.0)
    work = (medians["work"] / base["work"]).fillna(work)
    found["computation"] = work * base["core_s"] / medians["core_s"]
    found["own"] = [bases.get(str(case)) == case for case in medians.index]
    found["overall"] = found["parallel"].where(found["own"])
    if "mean_unaccounted_s" in medians:
        found["unaccounted"] = medians["mean_unaccounted_s"] / medians["wall_s"]
    return records(found.replace([np.inf, -np.inf], np.nan).reset_index().astype({"case": str}))


_USED = (
    *("mean_compute_s", "max_compute_s", "wall_s", "t_ideal_s", "core_s", "model_flops", "work"),
    "mean_unaccounted_s",
)
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


def _intervals(rows: _Rows, known: Mapping[str, Any]) -> dict[str, Estimate]:
    """Return the factors of a case of several launches that have an interval."""
    found = {name: _factor(rows, *parts, known[name]) for name, parts in _FACTORS.items()}
    if known["own"]:
        found["overall"] = found["parallel"]
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def _factor(rows: _Rows, above: str, below: str, value: float | None) -> Estimate | None:
    """Return a factor with the interval of its launches' own; a share is never above one."""
    part, whole = rows[above], rows[below]
    if value is None or not (part > 0).all() or not (whole > 0).all():
        return None
    known = level(np.log((part / whole).astype(np.float64))).estimate()
    return None if known.low is None else known.times(value / known.value).at_most(1.0)


def axis_trees(run: Run, launches: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the axes of every case on which ranks communicate; `launches` is that of `launches`.

    Waiting can move from one axis to another on an ideal network, so that a factor may pass 1.
    """
    columns = ["wait_s", "transfer_s", "wait_or_transfer_s", "ideal_wait_s"]
    sums = run.calls.groupby([*_LAUNCH, "axis"], observed=True)[columns].sum(min_count=1).reset_index()
    table = sums.astype({"case": str, "axis": str}).merge(launches[[*_LAUNCH, "wall_s", "ranks"]], on=_LAUNCH)
    rank_walls = table["wall_s"] * table["ranks"]
    inside = table[["wait_s", "transfer_s", "wait_or_transfer_s"]].sum(axis=1)
    table["parallel"] = 1 - inside / rank_walls
    table["transfer"] = 1 - (inside - table["ideal_wait_s"]) / rank_walls
    table["serialisation"] = table["parallel"] / table["transfer"]
    names = ["parallel", "serialisation", "transfer"]
    medians = table.groupby(["case", "axis"])[names].median().reset_index()
    compute: dict[str, list[list[float]]] = {}
    by_rank = run.phases.groupby([*_LAUNCH, "rank"], observed=True)["compute_s"].sum().reset_index()
    for case, rows in by_rank.groupby("case", observed=True):
        compute[str(case)] = [own.tolist() for _, own in rows.groupby("repeat")["compute_s"]]
    for row in records(medians):
        plan = run.planned[row["case"]].get("plan")
        sizes = from_dict(Plan, plan).sizes if plan else {}
        known = set(row["axis"].split("+")) & set(sizes)  # else it is a communicator of a program of its own
        balances = [
            balance(sizes, row["axis"], compute_s)
            for compute_s in compute[row["case"]]
            if len(compute_s) == math.prod(sizes.values())  # else some ranks are lost
        ]
        yield row | {"load_balance": median(balances) if known and balances else None}


def balance(sizes: Mapping[str, int], axis: str, compute_s: Sequence[float]) -> float:
    """Return the compute of all ranks, in order, over that of the slowest rank of each one's group."""
    grid = np.array(compute_s, np.float64).reshape(tuple(sizes.values()))
    along = tuple(place for place, dim in enumerate(sizes) if dim in axis.split("+"))
    slowest = np.broadcast_to(grid.max(axis=along, keepdims=True), grid.shape).sum()
    return float(grid.sum() / slowest) if slowest else 1.0
