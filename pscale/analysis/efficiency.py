"""The efficiency tree of every case, of the phases of its steps and of the axes of its mesh; its lost time.

The tree is POP's: parallel efficiency = load balance x communication efficiency; the latter = serialisation x
transfer where the wall on an ideal network is known. Times are over all measured steps of a launch, factors
ratios of medians over launches. Overall is the scaling efficiency that all of the report states, times the
parallel efficiency of the base case; computation is what parallel efficiency leaves of it.

Lost time splits the wall as the tree does, in shares that add up to one. What is useful is the overall
efficiency; computation, load balance, serialisation and transfer each take what their factor leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis.columns import Row
from pscale.analysis.difference import more_rounds
from pscale.analysis.frames import KINDS, Run, records, workloads
from pscale.analysis.resources import idle
from pscale.analysis.scaling import bases as bases_of
from pscale.analysis.stats import Estimate, level, student_quantile
from pscale.config import Plan, from_dict
from pscale.config.workload import WALL
from pscale.runs.step_time import Vector

_LAUNCH = ["case", "repeat"]
_SAME: Estimate | None = Estimate(value=1.0, low=1.0, high=1.0)
_FACTORS = {  # of medians over launches, so that they multiply exactly
    "parallel": ("mean_compute_s", "wall_s"),
    "load_balance": ("mean_compute_s", "max_compute_s"),
    "communication": ("max_compute_s", "wall_s"),
    "serialisation": ("max_compute_s", "t_ideal_s"),
    "transfer": ("t_ideal_s", "wall_s"),
}
LOSSES = {  # shares of a step that are no use, in words
    "threads": "idle threads",
    "outside": "start and end of the launch",
    "scaling": "slower compute",
    "imbalance": "load imbalance",
    "serialisation": "serialisation",
    "transfer": "transfer",
    "wait_or_transfer": "serialisation or transfer",
    "copy": "copies",
    "offload": "stalls for offloaded data",
    "unaccounted": "unaccounted",
}
_OF_BASE = ("useful", "threads", "outside", "scaling")  # shares that the base case decides as well
_MEASURED = {  # beside what an ideal network tells
    "transfer": "mean_transfer_s",
    "wait_or_transfer": "mean_wait_or_transfer_s",
    "copy": "mean_copy_s",
    "offload": "mean_offload_s",
    "unaccounted": "mean_unaccounted_s",
}
_USED = [
    *("mean_compute_s", "max_compute_s", "wall_s", "t_ideal_s", "core_s", "model_flops", "work"),
    "mean_unaccounted_s",
]
_WHOLE_STEP = ("wall_s", "t_ideal_s", "mean_compute_s", "max_compute_s")
_COMPUTING = 0.05  # of a phase, on the rank that computes most in it: the phase is for computing
_SPENT = [*KINDS, "ideal_wait_s", "wall_s"]


def launches(run: Run) -> pd.DataFrame:
    """Return a row per launch that ended well: walls and sums of the kinds of time over its measured steps.

    `mean_…` and `max_…` are over ranks, in seconds; `core_s` is compute times threads of one step,
    summed over ranks.
    """
    ranks = run.ranks.groupby(_LAUNCH, observed=True)
    known = {
        "wall_s": run.ends.groupby(_LAUNCH, observed=True)["end_s"].max(),
        "t_ideal_s": ranks["t_ideal_s"].max(),
        "mean_unaccounted_s": ranks["unaccounted_s"].mean(),
    }
    of_ranks = _named(run).groupby([*_LAUNCH, "rank"], observed=True)[_SPENT].sum(min_count=1)
    table = _over_ranks(of_ranks, _LAUNCH).drop(columns=["wall_s", "t_ideal_s"])
    return _whole_launches(run, _with_cores(run, table.join(pd.DataFrame(known))))


def _whole_launches(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """Let start and end of a launch be computing where its step time is that of the whole launch."""
    of_launch = [case for case, workload in workloads(run).items() if workload.times == WALL]
    walls_s = run.cases.drop_duplicates(_LAUNCH).set_index(_LAUNCH)["wall_s"]
    wall_s = walls_s.reindex(pd.MultiIndex.from_frame(table[_LAUNCH])).to_numpy()
    outside_s = (wall_s - table["wall_s"]).clip(lower=0.0).where(table["case"].isin(of_launch)).fillna(0.0)
    moved = {name: table[name] + outside_s for name in _WHOLE_STEP}
    core_s = table["core_s"] + outside_s * table["ranks"] * table["threads"] / table["steps"]
    return table.assign(**moved, core_s=core_s, outside_s=outside_s)


def phases(run: Run) -> pd.DataFrame:
    """Return the same a launch and phase; its wall is that of the rank on which it is longest.

    So is its ideal wall: compute, copies, stalls of offload and the wait that an ideal network leaves.
    """
    return _with_cores(run, _over_ranks(_named(run), [*_LAUNCH, "phase"]).assign(mean_unaccounted_s=np.nan))


def _named(run: Run) -> pd.DataFrame:
    return run.phases[run.phases["phase"] != ""]


def _over_ranks(of_ranks: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Return the spread of the kinds of time over ranks."""
    ideal_s = of_ranks[["compute_s", "copy_s", "offload_s", "ideal_wait_s"]].sum(axis=1, skipna=False)
    groups = of_ranks.assign(t_ideal_s=ideal_s).groupby(by, observed=True)
    largest = (
        groups[["compute_s", "wall_s", "t_ideal_s"]].max().rename(columns={"compute_s": "max_compute_s"})
    )
    means = groups[list(KINDS)].mean().add_prefix("mean_")
    return means.join(largest).assign(sum_compute_s=groups["compute_s"].sum(), ranks=groups.size())


def _with_cores(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    steps = run.ends.groupby(_LAUNCH, observed=True).size().rename("steps")
    table = table.join(steps, on=_LAUNCH).reset_index()
    table["case"] = table["case"].astype(str)
    stated = {case: (planned.get("workload") or {}).get("work") for case, planned in run.planned.items()}
    table["work"] = table["case"].map(stated).astype(float)
    table = table.join(run.cases.set_index(_LAUNCH)[["threads", "model_flops", "scaling"]], on=_LAUNCH)
    return table.assign(core_s=table["sum_compute_s"] * table["threads"] / table["steps"])


def trees(table: pd.DataFrame, points: Sequence[Row], threads: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the efficiency tree of every case, from the launches of all and the efficiencies in `points`."""
    known = records(_trees(table, ["case"], bases_of(points)).reset_index())
    launched: dict[Any, pd.DataFrame] = dict(iter(table.groupby("case")))
    efficiencies = {row.case: row.efficiency for row in points}
    of_threads = {row.case: row.efficiency for row in threads if row.threads > 1}
    parallel = {row["case"]: row["parallel"] for row in known}
    for row in known:
        case, base, of_base = row["case"], row["base"], parallel.get(row["base"])
        for name, columns in _FACTORS.items():
            row[name] = _with_interval(row[name], *(launched[case][column].to_numpy() for column in columns))
        row |= {"overall": None, "computation": None, "of_step": 1.0, "threads": of_threads.get(case)}
        if base == case:
            row |= {"overall": row["parallel"], "computation": _SAME}
        elif of_base and efficiencies[case] and row["parallel"] and row["parallel"].value:
            row["overall"] = efficiencies[case].times(of_base)
            row["computation"] = row["overall"].times(1 / row["parallel"].value)
        yield row


def phase_trees(table: pd.DataFrame, bases: Mapping[str, str], whole: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the tree of every phase that is for computing; `whole` is the table of whole steps.

    Of a phase that is for communication, efficiency says nothing: the share of the step says what it costs.
    """
    names = ["phase", "case"]
    medians = table.groupby(names, observed=True)[["max_compute_s", "wall_s"]].median()
    busy = medians.index[medians["max_compute_s"] > _COMPUTING * medians["wall_s"]]
    table = table[pd.MultiIndex.from_frame(table[names]).isin(busy)]
    found = _trees(table, names, bases).reset_index()
    own = found["case"] == found["base"]
    found["overall"] = found["parallel"].where(own)
    found["computation"] = found["computation"].astype(object).mask(own, _SAME)
    walls_s = found["case"].map(whole.groupby("case")["wall_s"].median()).astype(float)
    found["of_step"] = found["wall_s"] / walls_s
    return records(found)


def _trees(table: pd.DataFrame, by: list[str], bases: Mapping[str, str]) -> pd.DataFrame:
    """Return factors of medians over launches, unknown where one lacks them: nothing of nothing is all of it.

    Computation is that of the same work on the base case over that of a case.
    """
    groups = table.groupby(by, observed=True)
    medians = groups[_USED].median().where(groups[_USED].count().eq(groups.size(), axis=0))
    levels = [medians.index.get_level_values(name) for name in by]
    base = levels[-1].map(bases)
    of_base = medians.reindex(pd.MultiIndex.from_arrays([*levels[:-1], base]) if levels[1:] else base)
    of_base.index = medians.index
    factors = {
        name: (medians[above] / medians[below]).mask((medians[below] == 0) & medians[above].notna(), 1.0)
        for name, (above, below) in _FACTORS.items()
    }
    flops, stated = (medians[name] / of_base[name] for name in ("model_flops", "work"))
    work = stated.fillna(flops.mask(groups["scaling"].first() == "strong", 1.0))
    return pd.DataFrame(factors).assign(
        wall_s=medians["wall_s"],
        computation=work * of_base["core_s"] / medians["core_s"].where(medians["core_s"] > 0),
        unaccounted=medians["mean_unaccounted_s"] / medians["wall_s"].where(medians["wall_s"] > 0),
        base=base,
    )


def _with_interval(value: float | None, above: Vector, below: Vector) -> Estimate | None:
    """Return a factor with the interval of its launches' own; a share is never above one."""
    if value is None or len(above) < 2 or not min(above.min(), below.min()) > 0:
        return None if value is None else Estimate(value=value)
    known = level(np.log(above / below)).estimate()
    return known.times(value / known.value).at_most(1.0)


def axis_trees(run: Run, launches: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the axes of every case on which ranks communicate; `launches` is that of `launches`.

    Waiting can move from one axis to another on an ideal network, so that a factor may pass 1.
    """
    columns = ["wait_s", "transfer_s", "wait_or_transfer_s", "ideal_wait_s"]
    calls = run.calls[run.calls["axis"] != ""]  # a wait for nothing is of no communicator
    sums = calls.groupby([*_LAUNCH, "axis"], observed=True)[columns].sum(min_count=1).reset_index()
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


def exceeds(lost: Row, name: str, other: str, share: float, rounds: int) -> tuple[bool, int | None]:
    """Return whether a share is surely above 0 and above another one, of which `share` counts.

    If not, also how many more rounds should tell, after so many; None where none worth advising do.
    """
    value, spread = getattr(lost, name).value, half(getattr(lost, name))
    if spread is None:
        return False, None
    both = math.hypot(spread, half(getattr(lost, other)) or 0.0)
    if value > spread and value - share >= both:
        return True, None
    needed = (more_rounds(spread, value, rounds), more_rounds(both, value - share, rounds))
    return False, None if None in needed else max(filter(None, needed))


def half(share: Estimate) -> float | None:
    """Return half of an interval; None without one."""
    return None if share.low is None or share.high is None else (share.high - share.low) / 2


def lost_time(
    table: pd.DataFrame, trees: Mapping[str, Row], bases: Mapping[str, str], threads: Sequence[Row]
) -> Iterator[dict[str, Any]]:
    """Yield where the wall of each case went: shares that add up to one, ratios of medians over launches.

    Idle threads are unknown where threads were not observed: they are in the compute then. Launches of which
    a kind of time is unknown are left out.
    """
    idle_of = dict.fromkeys(table.loc[table["threads"] == 1, "case"], 0.0)
    idle_of |= {time.case: idle(time) for time in threads}
    outside = (table["outside_s"] / table["wall_s"]).groupby(table["case"]).median()
    known = table[(table["wall_s"] > 0) & table[[*_MEASURED.values()]].notna().all(axis=1)]
    for case, rows in ((str(case), rows) for case, rows in known.groupby("case")):
        tree, base = trees[case], bases.get(case, "")
        if not (tree.parallel and tree.communication):
            continue
        more, of_base = idle_of.get(case, math.nan), idle_of.get(base, math.nan) if tree.computation else 0.0
        idled = 0.0 if base == case else more - of_base
        parts = pd.DataFrame({name: rows[column] / rows["wall_s"] for name, column in _MEASURED.items()})
        parts = parts.assign(
            parallel=rows["mean_compute_s"] / rows["wall_s"],
            communication=rows["max_compute_s"] / rows["wall_s"],
            computation=tree.computation.value if tree.computation else math.nan,
            ideal=rows["t_ideal_s"] / rows["wall_s"] if tree.transfer else math.nan,
            threads=0.0 if math.isnan(idled) else max(0.0, idled),
            outside=_outside(outside.to_dict(), case, base, trees),
        )
        wall_s = float(rows["wall_s"].median())
        whole = parts.iloc[:1].assign(
            **{name: float(rows[column].median()) / wall_s for name, column in _MEASURED.items()},
            parallel=tree.parallel.value,
            communication=tree.communication.value,
            ideal=tree.transfer.value if tree.transfer else math.nan,
        )
        if tree.computation and tree.overall and base != case:
            own = tree.overall.value * wall_s / rows["mean_compute_s"].where(rows["mean_compute_s"] > 0)
            parts["computation"] = own.fillna(tree.computation.value)
        reach = _reach(_split(parts), None if base == case else tree)
        shares = _split(whole).iloc[0].drop(["threads"] * math.isnan(idled)).dropna()
        yield {"case": case} | {
            str(name): Estimate(value=share, low=share - reach[name], high=share + reach[name])
            if name in reach
            else Estimate(value=share)
            for name, share in shares.items()
        }


def _outside(share: Mapping[Any, float], case: str, base: str, trees: Mapping[str, Row]) -> float:
    """Return the share of the launch outside its steps beyond that of the base case, where a step is all."""
    overall, of_base = (trees[each].overall if each in trees else None for each in (case, base))
    if not (share[case] and overall and of_base):
        return math.nan
    return float(max(0.0, share[case] - share.get(base, 0.0) * overall.value / of_base.value))


def _reach(shares: pd.DataFrame, tree: Row | None) -> dict[Any, float]:
    """Return half of the interval of every share, from those of the launches by themselves.

    Unless the case is its own base, without `tree`, how far its efficiency is known comes on top.
    """
    if len(shares) < 2:
        return {}
    found = shares.std() * student_quantile(len(shares) - 1) / math.sqrt(len(shares))
    spread = half(tree.overall) if tree and tree.computation and tree.overall else None
    if spread is not None:
        touched = [name for name in _OF_BASE if shares[name].any()]
        found[touched] = found[touched].clip(lower=spread)
    return found.dropna().to_dict()


def _split(of: pd.DataFrame) -> pd.DataFrame:
    """Split walls: compute into what is useful, idle threads, what is outside and the rest, then imbalance.

    Compute and imbalance take from the step what the slowest rank computes: `communication`. Of what is left
    transfer comes first, as an ideal network tells it, whatever the clocks say; then what was measured beside
    it; the rest is wait.
    """
    useful = of["parallel"] * of["computation"].clip(upper=1.0)
    found = {"useful": useful.fillna(of["parallel"] - of["threads"]).clip(lower=0.0)}
    left = of["parallel"] - found["useful"]
    for name in ("threads", "outside"):
        found[name] = of[name].clip(upper=left)
        left = left - found[name].fillna(0.0)
    found |= {"scaling": left, "imbalance": of["communication"] - of["parallel"]}
    known = of.assign(
        transfer=(1 - of["ideal"]).clip(lower=0.0).fillna(of["transfer"]),
        wait_or_transfer=of["wait_or_transfer"].mask(of["ideal"].notna(), 0.0),
    )
    left = 1 - of["communication"]
    for name in ("transfer", "copy", "offload", "unaccounted", "wait_or_transfer"):
        found[name] = known[name].clip(upper=left)
        left = left - found[name]
    return pd.DataFrame(found).assign(serialisation=left)
