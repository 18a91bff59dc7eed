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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from statistics import median, stdev
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis.columns import Row
from pscale.analysis.difference import more_rounds
from pscale.analysis.frames import KINDS, Run, grouped, records, workloads
from pscale.analysis.resources import idle
from pscale.analysis.scaling import bases as bases_of
from pscale.analysis.stats import Estimate, level, student_quantile
from pscale.config import Plan, from_dict
from pscale.config.workload import WALL

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
_MEASURED = [f"mean_{kind}_s" for kind in ("transfer", "wait_or_transfer", "copy", "offload", "unaccounted")]
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
    return _with_cores(run, _over_ranks(_named(run), [*_LAUNCH, "phase"]))


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
    bases, efficiencies = bases_of(points), {point.case: point.efficiency for point in points}
    of_threads = {row.case: row.efficiency for row in threads if row.threads > 1}
    of_case = _by_case(records(table))
    medians = {case: _medians(rows) for case, rows in of_case.items()}
    for case, rows in of_case.items():
        base = medians.get(bases.get(case, ""))
        found = _tree(rows, medians[case], base) | {"case": case, "threads": of_threads.get(case)}
        if bases.get(case) == case:
            found |= {"overall": found["parallel"], "computation": _SAME}
        else:
            of_base = _factor([], "parallel", base) if base else None
            found |= _against_base(found["parallel"], of_base, efficiencies[case])
        yield found


def _against_base(
    parallel: Estimate | None, base: Estimate | None, efficiency: Estimate | None
) -> dict[str, Estimate | None]:
    """Return the factors of a case against its base, given the parallel efficiency of either."""
    if not (base and base.value and efficiency and parallel and parallel.value):
        return {"overall": None, "computation": None}
    overall = efficiency.times(base.value)
    return {"overall": overall, "computation": overall.times(1 / parallel.value)}


def phase_trees(
    table: pd.DataFrame, bases: Mapping[str, str], whole: pd.DataFrame
) -> Iterator[dict[str, Any]]:
    """Yield the tree of every phase that is for computing; `whole` is the table of whole steps.

    Of a phase that is for communication, efficiency says nothing: the share of the step says what it costs.
    """
    walls_s = {case: _median(rows, "wall_s") for case, rows in _by_case(records(whole)).items()}
    of_phases = grouped(records(table.sort_values("phase", kind="stable")), lambda row: str(row["phase"]))
    for phase, of_phase in of_phases.items():
        medians = {case: _medians(rows) for case, rows in _by_case(of_phase).items()}
        busy = {
            case: each
            for case, each in medians.items()
            if (_over(each["max_compute_s"], each["wall_s"]) or 0.0) > _COMPUTING
        }
        for case, each in busy.items():
            base = bases.get(case)
            tree = _tree([], each, busy.get(base or "")) | {"case": case, "phase": phase}
            own = {"overall": tree["parallel"], "computation": _SAME} if base == case else {}
            yield tree | own | {"of_step": _over(each["wall_s"], walls_s[case])}


def _by_case(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    return grouped(rows, lambda row: str(row["case"]))


_Medians = Mapping[str, Any]


def _medians(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the medians over launches of what is known of them, and `lacks`: what is not known of all."""
    found: dict[str, Any] = {"lacks": set(), "strong": rows[0]["scaling"] == "strong"}
    for name in _USED:
        found[name] = _median(rows, name)
        if any(row.get(name) is None for row in rows):
            found["lacks"].add(name)
    return found


def _median(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    known = [row[name] for row in rows if row.get(name) is not None]
    return median(known) if known else None


_USED = (
    *("mean_compute_s", "max_compute_s", "wall_s", "t_ideal_s", "core_s", "model_flops", "work"),
    "mean_unaccounted_s",
)


def _over(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def _tree(rows: Sequence[Mapping[str, Any]], medians: _Medians, base: _Medians | None) -> dict[str, Any]:
    """Return factors, with the intervals that these launches, if any, give; None where one is unknown."""
    computation = _computation(medians, base) if base else None
    return {
        "phase": "",
        "of_step": 1.0,
        **{name: _factor(rows, name, medians) for name in _FACTORS},
        "computation": None if computation is None else _exactly(computation),
        "unaccounted": _over(medians["mean_unaccounted_s"], medians["wall_s"]),
    }


def _computation(medians: _Medians, base: _Medians) -> float | None:
    """Return computing for the same work on the base case over that of a case."""
    work = 1.0 if medians["strong"] else _over(medians["model_flops"], base["model_flops"])
    stated = _over(medians["work"], base["work"])
    work = work if stated is None else stated
    return None if work is None or base["core_s"] is None else _over(work * base["core_s"], medians["core_s"])


@lru_cache(1024)  # of very many phases most factors are one
def _exactly(value: float) -> Estimate:
    return Estimate(value=value)


def _factor(rows: Sequence[Mapping[str, Any]], name: str, medians: _Medians) -> Estimate | None:
    """Return a factor, with the interval of its launches' own: nothing of nothing is all of it.

    A share is never above one.
    """
    above, below = _FACTORS[name]
    if medians["lacks"].intersection((above, below)):
        return None
    value = medians[above] / medians[below] if medians[below] else 1.0
    if len(rows) < 2 or not all(row[above] > 0 and row[below] > 0 for row in rows):
        return _exactly(value)
    known = level(np.log([row[above] / row[below] for row in rows])).estimate()
    return _exactly(value) if known.low is None else known.times(value / known.value).at_most(1.0)


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


def exceeds(lost: Row, name: str, other: str, share: float) -> bool:
    """Tell whether a share is surely above 0 and above another one, of which `share` is to be told."""
    value, spread = getattr(lost, name).value, half(getattr(lost, name))
    if spread is None:
        return False
    return bool(value > spread and value - share >= math.hypot(spread, half(getattr(lost, other)) or 0.0))


def rounds_to_exceed(lost: Row, name: str, other: str, share: float, rounds: int) -> int | None:
    """Return how many more rounds should tell that, after so many; None where none worth advising do."""
    value, spread = getattr(lost, name).value, half(getattr(lost, name)) or 0.0
    above_zero = more_rounds(spread, value, rounds)
    above_other = more_rounds(math.hypot(spread, half(getattr(lost, other)) or 0.0), value - share, rounds)
    return None if above_zero is None or above_other is None else max(above_zero, above_other)


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
    of_case = _by_case(records(table))
    idle_of = {case: 0.0 for case, rows in of_case.items() if rows[0]["threads"] == 1}
    idle_of |= {time.case: idle(time) for time in threads}
    for case, launched in of_case.items():
        tree, base = trees[case], bases.get(case, "")
        rows = [row for row in launched if row["wall_s"] and all(row[kind] is not None for kind in _MEASURED)]
        if not (rows and tree.parallel and tree.communication):
            continue
        wall_s = median(row["wall_s"] for row in rows)
        beside = {kind: median(row[kind] for row in rows) / wall_s for kind in _MEASURED}
        of_base = idle_of.get(base, math.nan) if tree.computation else 0.0
        idle_more = 0.0 if base == case else idle_of.get(case, math.nan) - of_base
        idled = float(np.fmax(0.0, idle_more))
        more = {"threads": idled, **_outside(rows, of_case.get(base, ()), tree, trees.get(base))}
        losses = _shares(tree, tree.parallel.value, tree.communication.value, beside, more)
        spread = _spread(tree, rows, None if base == case else wall_s, more)
        yield {"case": case} | {
            name: Estimate(value=share)
            if name not in spread
            else Estimate(value=share, low=share - spread[name], high=share + spread[name])
            for name, share in losses.items()
            if name != "threads" or not math.isnan(idle_more)
        }


def _outside(
    rows: Sequence[Mapping[str, Any]], of_base: Sequence[Mapping[str, Any]], tree: Row, base: Row | None
) -> dict[str, float]:
    """Return the share of the launch outside its steps beyond that of the base case, where a step is all."""
    share, base_share = (
        _median([{"share": row["outside_s"] / row["wall_s"]} for row in each], "share")
        for each in (rows, of_base)
    )
    if not share:
        return {}
    scaled = tree.overall and base and base.overall and tree.overall.value / base.overall.value
    return {"outside": max(0.0, share - (base_share or 0.0) * scaled)} if scaled else {}


def _spread(
    tree: Row, rows: Sequence[Mapping[str, Any]], wall_s: float | None, more: Mapping[str, float]
) -> dict[str, float]:
    """Return half of the interval of every share, from those of the launches by themselves.

    Unless the case is its own base, without `wall_s`, how far its efficiency is known comes on top.
    """
    own = [_of_launch(tree, row, wall_s, more) for row in rows]
    if len(own) < 2:
        return {}
    reach = student_quantile(len(own) - 1) / math.sqrt(len(own))
    found = {name: reach * stdev(each[name] for each in own) for name in own[0]}
    known = tree.overall if tree.computation and wall_s else None
    if known and known.low is not None and known.high is not None:
        for name in _OF_BASE:
            if any(each.get(name) for each in own):
                found[name] = max(found[name], (known.high - known.low) / 2)
    return found


def _of_launch(
    tree: Row, row: Mapping[str, Any], wall_s: float | None, more: Mapping[str, float]
) -> dict[str, float]:
    """Split the wall of one launch as that of all, which is `wall_s`."""
    wall, (parallel, communication) = row["wall_s"], (row["mean_compute_s"], row["max_compute_s"])
    own = tree._replace(transfer=Estimate(value=row["t_ideal_s"] / wall) if tree.transfer else None)
    if tree.computation and tree.overall and wall_s and parallel:
        own = own._replace(computation=Estimate(value=tree.overall.value * wall_s / parallel))
    beside = {kind: row[kind] / wall for kind in _MEASURED}
    return _shares(own, parallel / wall, communication / wall, beside, more)


def _shares(
    tree: Row,
    parallel: float,
    communication: float,
    beside: Mapping[str, float],
    more: Mapping[str, float],
) -> dict[str, float]:
    """Split the wall: compute into what is useful, `more` and the rest, then imbalance, then communication.

    Compute and imbalance take from the step what the slowest rank computes: `communication`.
    """
    useful = parallel * min(1.0, tree.computation.value) if tree.computation else parallel - more["threads"]
    useful = max(0.0, useful)
    rest, known = parallel - useful, {}
    for name, share in more.items():
        known[name] = min(share, rest)
        rest -= known[name]
    return {
        "useful": useful,
        **known,
        "scaling": rest,
        "imbalance": communication - parallel,
        **_communication(tree, 1 - communication, beside),
    }


def _communication(tree: Row, left: float, beside: Mapping[str, float]) -> dict[str, float]:
    """Split what is left of the step: transfer first, then what was measured beside it, the rest is wait."""
    known = {kind.removeprefix("mean_").removesuffix("_s"): share for kind, share in beside.items()}
    if tree.transfer:  # as an ideal network tells it, whatever the clocks say
        known |= {"transfer": max(0.0, 1 - tree.transfer.value), "wait_or_transfer": 0.0}
    found = {}
    for name in ("transfer", "copy", "offload", "unaccounted", "wait_or_transfer"):
        found[name] = min(known[name], left)
        left -= found[name]
    return {**found, "serialisation": left}
