"""Where the time of a step goes: by phase, rank, call and class of kernels, in waits, and for which rank.

Seconds a step, frames as `columns` declares them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pscale.analysis.columns import Row
from pscale.analysis.frames import KINDS, Run, by_case, records, steps
from pscale.runs.schema import PHASES

_TIMES = (*KINDS, "ideal_wait_s")
_INSIDE = ["compute_s", "transfer_s", "wait_s", "wait_or_transfer_s", "copy_s", "offload_s"]
_AMOUNTS, _BESIDE = ("count", "bytes"), ("hidden_s", "exposed_s", "ideal_wait_s")
_PLACES = {phase: place for place, phase in enumerate(PHASES)}
_STORED = (  # columns of the rows of steps
    *("case", "repeat", "rank", "step", "phase"),
    *(kind for kind in _INSIDE if kind != "wait_or_transfer_s"),
)
_FEW_STEPS = 20_000  # of all ranks and launches of a case: their rows are read at once
_SLOWEST = 3  # ranks of a case

_NOTICED = 0.01  # of the step that the others wait for one rank: less is not worth a word
_LATE = 0.1  # of the step: by so much a rank is late in a single step
_OWN = 0.5  # of its delay that a rank spent itself: for what is done in turns, others wait for no fault of it
_MOST = 0.5  # of all waiting
_BY_TURNS = 1.3  # times an equal part
_STEP = ["repeat", "step"]
_WAITS = ("wait_s", "wait_or_transfer_s")
_MAPPED = (*_WAITS, "compute_s")

_KERNEL = ["calls", "flops", "bytes", "time_s"]
_ROOFS = {"gemm_peak_gflops": "peak_gflops", "stream_gb_s": "stream_gb_s"}


def phases(run: Run, ranks: pd.DataFrame) -> pd.DataFrame:
    """Return the phases of every measured case, in the order of a step; `ranks` are `rank_means`."""
    groups = ranks.groupby(["case", "phase"], observed=True)
    largest = ranks.loc[groups["compute_s"].idxmax()].set_index(["case", "phase"])
    table = groups[list(_TIMES)].mean()
    table["largest_rank"] = largest["rank"]
    table["largest_compute_s"] = largest["compute_s"]
    table = table.reset_index()
    table["step_s"] = table["case"].map(_mean_step(run)).astype(float)
    table["inside_s"] = table[_INSIDE].sum(axis=1)
    table["share"] = table["inside_s"] / table["step_s"]
    return _in_order(table)


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Return rows in the order of the phases of a step."""
    order = table["phase"].astype(str).map(lambda phase: (_PLACES.get(phase, len(_PLACES)), phase))
    return table.loc[order.sort_values(kind="stable").index]


def slowest_ranks(run: Run, means: pd.DataFrame) -> pd.DataFrame:
    """Return, for cases of several ranks, the ranks that compute most and so keep the others waiting."""
    if means.empty:
        return means
    in_phase = means.groupby(["case", "phase"], observed=True)["compute_s"]
    means = means.assign(phase_excess_s=means["compute_s"] - in_phase.transform("mean"))
    by_rank = means.groupby(["case", "rank"], observed=True)
    table = by_rank[["compute_s", "wait_s", "transfer_s", "wait_or_transfer_s"]].sum()
    worst = means.loc[by_rank["phase_excess_s"].idxmax()].set_index(["case", "rank"])
    table = table.join(worst[["phase", "phase_excess_s"]])
    known = run.ranks.dropna(subset=["unaccounted_s", "wall_s"])
    accounts = known.groupby(["case", "rank"], observed=True)[["unaccounted_s", "wall_s"]].sum()
    table["unaccounted"] = accounts["unaccounted_s"] / accounts["wall_s"]
    table["host"] = run.ranks.groupby(["case", "rank"], observed=True)["host"].first()
    table = table.reset_index().astype({"case": str, "host": str})
    of_case = table.groupby("case")["compute_s"]
    typical = table["case"].map(of_case.quantile(0.5, interpolation="lower"))
    table["excess"] = (table["compute_s"] / typical - 1).fillna(0.0)
    table = table[of_case.transform("size") > 1]
    table = table.sort_values(["case", "compute_s"], ascending=[True, False], kind="stable")
    return table.groupby("case").head(_SLOWEST)


def calls(run: Run) -> pd.DataFrame:
    """Return the communication of every case with steps by axis and verb.

    A started call is posted in one phase and completed in another, so phases are not distinguished.
    """
    columns = [*_AMOUNTS, "transfer_s", "wait_s", "wait_or_transfer_s", *_BESIDE]
    groups = run.calls.groupby(["case", "axis", "verb"], observed=True)
    means = _sums(groups, columns).astype({"case": str})
    taken = means["case"].map(_rank_steps(run, ["case"])).astype(float)
    means[columns] = means[columns].div(taken, axis=0)
    means = means[taken.notna()]
    under_way = means["transfer_s"] + means["hidden_s"]
    means["bytes_per_s"] = (means["bytes"] / under_way).where(
        (means["bytes"] > 0) & (under_way > 0) & (means["wait_or_transfer_s"] == 0)
    )
    return means


def by_waiting(points: Sequence[Row], times: Sequence[Row]) -> list[str]:
    """Return the measured cases, that whose step is waited away most first; of equal ones the largest."""
    waits: defaultdict[str, float] = defaultdict(float)
    for time in times:
        waits[time.case] += (time.wait_s + time.wait_or_transfer_s) / time.step_s
    measured = (point for point in points if point.steps)
    order = sorted(measured, key=lambda point: (waits[point.case], point.ranks, point.cores), reverse=True)
    return [point.case for point in order]


def wait_maps(run: Run, cases: Iterable[str]) -> Iterator[pd.DataFrame]:
    """Yield wait and compute of every good launch of these cases that has rows of its steps.

    A row a rank and step, rank after rank.
    """
    launches = run.ends.groupby("case", observed=True)["repeat"].unique().to_dict()
    steps_of = _rank_steps(run, ["case"]).to_dict()
    for case in cases:
        repeats = sorted(map(int, launches.get(case, ())))
        together = steps(run, case, columns=_STORED) if steps_of.get(case, 0) <= _FEW_STEPS else None
        for repeat in repeats:
            rows = (
                steps(run, case, repeat, _STORED)
                if together is None
                else together[together["repeat"] == repeat]
            )
            ranks, places = rows["rank"].to_numpy(np.int64), rows["step"].to_numpy(np.int64)
            count = int(places.max()) + 1
            size = (int(ranks.max()) + 1) * count
            times = (np.bincount(ranks * count + places, rows[kind].to_numpy(), size) for kind in _MAPPED)
            known: dict[str, Any] = {"case": case, "repeat": repeat}
            known |= dict(zip(("rank", "step"), divmod(np.arange(size), count), strict=True))
            yield pd.DataFrame(known | dict(zip(_MAPPED, times, strict=True)))


def cells(wait_map: pd.DataFrame, *kinds: str) -> NDArray[np.float64]:
    """Return kinds of time of a map, added up: a row a rank, a column a step."""
    times: NDArray[np.float64] = wait_map[list(kinds or _WAITS)].to_numpy(np.float64).sum(axis=1)
    return times.reshape(-1, int(wait_map["step"].max()) + 1)


def rank_means(run: Run) -> pd.DataFrame:
    """Return the kinds of time per case, rank and phase: means over steps and launches."""
    rows = run.phases[run.phases["phase"] != ""]
    sums = _sums(rows.groupby(["case", "rank", "phase"], observed=True), list(_TIMES))
    taken = sums[["case", "rank"]].join(_rank_steps(run, ["case", "rank"]), on=["case", "rank"])
    sums[list(_TIMES)] = sums[list(_TIMES)].div(taken["steps"], axis=0)
    return sums


def _sums(groups: Any, columns: list[str]) -> pd.DataFrame:
    """Return sums over the rows of groups; of ideal waits only where one is known, as 0 is a wait too."""
    sums: pd.DataFrame = groups[columns].sum()
    return sums.assign(ideal_wait_s=groups["ideal_wait_s"].sum(min_count=1)).reset_index()


def _mean_step(run: Run) -> pd.Series[float]:
    launches = run.ends.groupby(["case", "repeat"], observed=True)
    return (launches["end_s"].max() / launches.size()).groupby("case", observed=True).mean()


def _rank_steps(run: Run, by: list[str]) -> pd.Series[int]:
    """Count the measured steps of every rank, over all launches."""
    return run.seats.groupby(by, observed=True)["steps"].sum()


def stragglers(run: Run) -> list[dict[str, Any]]:
    """Return the rank for which the others of a case wait most, of every case that has one.

    A rank that is late because it waited itself has passed that on: what it waited is taken off what it
    caused, step by step. A rank that took no longer than a typical rank is none: in the bubble of a pipeline
    ranks wait for what is done in turns.
    """
    if run.caused_waits.empty:
        return []
    table = _by_rank(run)
    table = table[table["caused_s"].notna()]
    worst = table.loc[table.groupby("case", observed=True)["caused_s"].idxmax()]
    bound = np.maximum(_MOST, _BY_TURNS / (worst["others"] + 1))
    named = worst[(worst["step_share"] >= _NOTICED) & (worst["wait_share"] >= bound)]
    return [found for row in records(named) if (found := _straggler(row, run))]


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


def _straggler(row: Mapping[str, Any], run: Run) -> dict[str, Any] | None:
    """Return what is to be said of the rank that a row of `_by_rank` is about; nothing if it is not slow."""
    case, rank, steps_taken = str(row["case"]), int(row["rank"]), int(row["steps"])
    rows = run.caused_waits[(run.caused_waits["case"] == case) & (run.caused_waits["rank"] == rank)]
    mine = rows.set_index(_STEP)["caused_s"] * row["scale"]
    late = mine[mine >= _LATE * row["wall_s"] / steps_taken]
    if late.empty:
        late = mine[mine > 0]  # never by much, but often enough to be named
    excess = _excess(steps(run, case, columns=_STORED), rank, late.index)
    if excess.sum() < _OWN * late.sum():
        return None
    hosts = run.ranks[(run.ranks["case"] == case) & (run.ranks["rank"] == rank)]["host"].dropna()
    return {
        "case": case,
        "rank": rank,
        "host": str(hosts.iloc[0]) if len(hosts) else "",
        "step_share": float(row["step_share"]),
        "wait_share": float(row["wait_share"]),
        "late_steps": len(late),
        "steps": steps_taken,
        "late_s": float(late.mean()),
        "phase": str(excess.idxmax()),
    }


def _excess(rows: pd.DataFrame, rank: int, places: pd.Index) -> pd.Series:
    """Return how much longer than a typical rank this one took in these steps itself, by phase."""
    chosen = rows.set_index(_STEP)
    chosen = chosen[chosen.index.isin(places)].reset_index()
    chosen["own_s"] = chosen[["compute_s", "copy_s", "offload_s"]].sum(axis="columns")
    of_phase = chosen.groupby([*_STEP, "phase"], observed=True)["own_s"]
    typical = of_phase.quantile(0.5, interpolation="lower").rename("typical_s")
    mine = chosen[chosen["rank"] == rank].join(typical, on=[*_STEP, "phase"])
    return (mine["own_s"] - mine["typical_s"]).groupby(mine["phase"], observed=True).sum()


def kernels(run: Run) -> pd.DataFrame:
    """Return the classes of kernels of every case whose kernels were timed, under their roofs.

    The roofs are means over ranks, of the best launch, since other work can but lower them.
    """
    means = run.kernels.assign(**{name: run.kernels[name] / run.kernels["ranks"] for name in _KERNEL})
    table = means.groupby(["case", "phase", "kernel"], observed=True)[_KERNEL].median().reset_index()
    of_launches = run.ranks.groupby(["case", "repeat"], observed=True)[list(_ROOFS)].mean()
    roofs = of_launches.groupby("case", observed=True).max().rename(columns=_ROOFS)
    table = table.astype({"case": str, "phase": str, "kernel": str}).join(roofs.rename(index=str), on="case")
    return _in_order(_under_roofs(table))


def _under_roofs(table: pd.DataFrame) -> pd.DataFrame:
    """Return kernels with their rates, and those that their roofs allow."""
    whole_s = table.groupby("case")["time_s"].transform("sum")
    counted = (table["bytes"] > 0) & (table["time_s"] > 0)
    gflops = (table["flops"] / table["time_s"] * 1e-9).where(counted)
    gb_s = (table["bytes"] / table["time_s"] * 1e-9).where(counted)
    intensity = (table["flops"] / table["bytes"]).where(counted)
    peak = table["peak_gflops"].where((table["peak_gflops"] > 0) & (table["stream_gb_s"] > 0))
    sloped = intensity * table["stream_gb_s"]
    roofed = sloped.notna() & peak.notna()
    return table.assign(
        time_share=(table["time_s"] / whole_s).where(whole_s > 0, 0.0),
        intensity=intensity,
        gflops=gflops,
        gb_s=gb_s,
        roof_gflops=sloped.combine(peak, min).where(roofed),
        roof_share=(gflops / peak).combine(gb_s / table["stream_gb_s"], max).where(roofed),
        bound=np.where(roofed, np.where(sloped < peak, "memory", "compute"), ""),
    )


def bubbles(run: Run, phases: Sequence[Row], calls: Sequence[Row]) -> pd.DataFrame:
    """Return the predicted and the measured bubble of every measured case that has stages."""
    unclear = {call.case for call in calls if call.axis == "pp" and call.wait_or_transfer_s}
    wait_s = {case: wait_s for case, wait_s in waits_for_stages(calls).items() if case not in unclear}
    step_s = {time.case: time.step_s for time in phases}
    names = {"pp": "stages", "virtual_stages": "chunks", "predicted_bubble": "predicted"}
    good = run.good[(run.good["pp"] > 1) & run.good["case"].isin(step_s)].drop_duplicates("case")
    waits, steps = (good["case"].map(known).astype(float) for known in (wait_s, step_s))
    return good.rename(columns=names).assign(measured=waits / steps)


def waits_for_stages(calls: Sequence[Row]) -> dict[str, float]:
    """Return the wait of a step in messages between the stages of a pipeline, by case."""
    of_case = by_case(call for call in calls if call.axis == "pp")
    return {case: sum(call.wait_s for call in rows) for case, rows in of_case.items()}
