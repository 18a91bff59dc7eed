"""What the network gives: bare collectives, calls of training beside them, and steps on other networks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan, prod
from operator import eq
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pscale.analysis.frames import Run, calls, events, of_unclear, records
from pscale.analysis.timeline import how_to_trace
from pscale.config import Model, Plan, from_dict
from pscale.errors import UsageError
from pscale.runs.schema import VERBS, Kind
from pscale.simulator.network import ALL, Network, Prices
from pscale.simulator.program import Position, rank_program, simulate

_TEXTS = {"case": str, "axis": str, "verb": str, "phase": str}
_CALL = ["case", "axis", "verb"]
USUAL = Model.dtype
_REDUCING = ("all_reduce", "reduce_scatter", "reduce")
_ONE_TO_ONE = ("send", "receive")  # completed when their memory is next needed, not when they are over


def bandwidths(run: Run) -> pd.DataFrame:
    """Return all of the cases of kind `collectives`, by axis, verb, size, type and operation."""
    rows = _bare_calls(run)
    if rows.empty:
        return rows
    rows["verb"] = rows["verb"].replace("receive", "send")
    table = _times(rows[rows["phase"] == "forward"])
    planned = [run.planned[case] for case in table["case"]]
    ranks = [int(of_case["plan"][axis]) for of_case, axis in zip(planned, table["axis"], strict=True)]
    sizes = np.array([int(of_case["model"]["message_bytes"]) for of_case in planned])
    table = _with_types(table, run)
    on_the_bus = [_on_the_bus(verb, count) for verb, count in zip(table["verb"], ranks, strict=True)]
    under_way = rows[rows["phase"] == "backward"].groupby(_CALL)[["hidden_s", "exposed_s"]].sum()
    table = table.assign(ranks=ranks, message_bytes=sizes, algorithm_bytes_per_s=sizes / table["call_s"])
    table = table.assign(bus_bytes_per_s=table["algorithm_bytes_per_s"] * on_the_bus)
    table = table.join((under_way["hidden_s"] / under_way.sum(axis=1)).rename("hidden"), on=_CALL)
    return table.sort_values(["axis", "verb", "ranks", "message_bytes", "dtype", "op"], kind="stable")


def _with_types(table: pd.DataFrame, run: Run) -> pd.DataFrame:
    """Return the calls of cases with the type of their numbers, and the operation of those that reduce."""
    models = [run.planned[case]["model"] for case in table["case"]]
    ops = [model.get("op", "sum") for model in models]
    reducing = table["verb"].isin(_REDUCING)
    types = [model.get("dtype", USUAL) for model in models]
    return table.assign(dtype=types, op=np.where(reducing, ops, ""))


def _bare_calls(run: Run) -> pd.DataFrame:
    """Return the rows of the calls of the cases of kind `collectives`, but for barriers; no rows if none."""
    measured = run.bare & set(run.calls["case"].unique())
    tables = [calls(run, case).astype(_TEXTS) for case in run.planned if case in measured]
    rows = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
    return rows if rows.empty else rows[rows["verb"] != "barrier"].copy()


def _times(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of a call: mean, and of the soonest and the latest rank."""
    inside = rows[["transfer_s", "wait_s"]].sum(axis=1)
    started = rows["exposed_s"] > 0
    rows = rows.assign(inside_s=inside.where(~started, rows["exposed_s"]))
    sent = rows["bytes"].where(rows["verb"] == "send", 1) > 0  # a message counts once, where it is sent
    rows = rows.assign(calls=rows["count"].where(sent, 0))
    by_rank = rows.groupby([*_CALL, "rank"])[["inside_s", "calls"]].sum()
    call_s = (by_rank["inside_s"] / by_rank["calls"]).groupby(_CALL)
    return call_s.agg(call_s="mean", least_s="min", most_s="max").reset_index()


def _on_the_bus(verb: str, ranks: int) -> float:
    """Return how much of a message a link has to carry under the best algorithm, as nccl-tests count it."""
    if verb in ("broadcast", "reduce", "send"):
        return 1.0
    return (2 if verb == "all_reduce" else 1) * (ranks - 1) / ranks


def _seconds(curve: pd.Series[float], size: float) -> float:
    """Return the time of a size: that of the smallest below it, by bandwidth above the largest."""
    sizes, seconds = curve.index.to_numpy(np.float64), curve.to_numpy(np.float64)
    if size > sizes[-1]:
        return float(seconds[-1] * size / sizes[-1])
    return float(np.exp(np.interp(np.log(size), np.log(sizes), np.log(seconds))))


def with_bare(
    calls: pd.DataFrame, planned: Mapping[str, Mapping[str, Any]], bare: Run | None
) -> pd.DataFrame:
    """Return the calls with the bandwidth of their verb in a run of bare collectives, over as many ranks.

    One of the same type is preferred, then that on the axis of the same name, since ranks lie alike there.
    Raises UsageError if `bare` is another run.
    """
    if bare is None:
        return calls
    curves = _curves(bare)

    def rate(case: str, axis: str, verb: str, size: float) -> float:
        like = planned[case].get("model", {}).get("dtype"), axis
        fitting = [key for key in curves if key[2:] == (verb, _ranks(planned[case], axis))]
        if not fitting or size <= 0:
            return nan
        nearest = max(fitting, key=lambda key: (*map(eq, key[:2], like), key[0] == USUAL))
        return size / _seconds(curves[nearest], size)

    named = zip(*(calls[name].astype(str) for name in _CALL), calls["bytes"] / calls["count"], strict=True)
    rates = np.array([rate(*call) for call in named], np.float64)
    return calls.assign(bare_bytes_per_s=rates, bare_share=calls["bytes_per_s"] / rates)


def _ranks(planned: Mapping[str, Any], axis: str) -> int:
    """Return how many ranks an axis such as dp+cp has."""
    sizes = from_dict(Plan, planned.get("plan", {})).sizes
    return prod(sizes.get(dim, 1) for dim in axis.split("+"))


def calls_alone(bare: Run) -> pd.DataFrame:
    """Return the blocking calls of bare collectives by rank, step and verb.

    Of reductions, sums alone. `seconds` are those of `count` calls, `ranks` those of the axis. Raises
    UsageError for a run without any.
    """
    rows = _bare_calls(bare)
    if rows.empty:
        raise UsageError(f"--bare: {bare.path} has no bare collectives; `pscale run collectives`")
    rows = _with_types(rows[(rows["phase"] == "forward") & ~rows["verb"].isin(_ONE_TO_ONE)], bare)
    rows = rows[rows["op"].isin(("", "sum"))]
    seconds = rows["transfer_s"] + rows["wait_s"].where(of_unclear(rows, bare.unclear), 0.0)
    axes = rows[["case", "axis"]].drop_duplicates()
    sizes = {(case, axis): _ranks(bare.planned[case], axis) for case, axis in axes.itertuples(index=False)}
    ranks = [sizes[at] for at in zip(rows["case"], rows["axis"], strict=True)]
    return rows.assign(seconds=seconds, ranks=ranks)


def _curves(bare: Run) -> dict[Any, pd.Series[float]]:
    """Return the seconds of a call by its size, both rising, by type, axis, verb and ranks of the axis.

    A larger message never takes less than a smaller one.
    """
    by = ["case", "dtype", "axis", "verb", "ranks"]
    sums = calls_alone(bare).groupby(by)[["seconds", "bytes", "count"]].sum().reset_index()
    sums = sums[sums["seconds"] > 0]
    sums["size"], sums["seconds"] = sums["bytes"] / sums["count"], sums["seconds"] / sums["count"]
    return {
        key: of_call.groupby("size")["seconds"].median().cummax() for key, of_call in sums.groupby(by[1:])
    }


# Recorded steps on other networks

_AS_IT_WAS = Network()
Rows = dict[str, NDArray[Any]]  # whole numbers

_KINDS = {kind.name.lower(): int(kind) for kind in Kind}
_VERBS = {"": -1, **{verb: number for number, verb in enumerate(VERBS)}}
_WHOLE = ("step", "bytes", "request", "partner")


@dataclass(frozen=True)
class Launch:
    """The events of all ranks of a launch; axes are numbered in the order of `axes`."""

    axes: Sequence[str]
    rows: Sequence[Rows]
    positions: Sequence[Sequence[Position]]


def what_if(run: Run, networks: Mapping[str, Network]) -> Iterator[dict[str, Any]]:
    """Yield the mean step of every traced case on each of the `networks`, which are named.

    Raises UsageError where nothing was traced or an axis is named that no case has, PlanError where a tier is
    missing.
    """
    if not networks:
        return
    table = events(run)
    if table.empty:
        raise UsageError(
            f"{run.path}: no calls were recorded, so there is nothing to replay on another network; "
            f"{how_to_trace(run)}"
        )
    _check(networks, {str(axis) for axis in table["axis"].cat.categories if axis})
    for case, of_case in table.groupby("case", observed=True):
        launches = [launch_of(rows) for _, rows in of_case.groupby("repeat")]
        measured = [max(int(rows["leave"][-1]) for rows in launch.rows) for launch in launches]
        steps = int(of_case["step"].max()) + 1
        replayed = [wall_ns(launch, _AS_IT_WAS) for launch in launches]
        for name, network in networks.items():
            expected = [wall_ns(launch, network) for launch in launches]
            times = (float(np.median(walls)) * 1e-9 / steps for walls in (measured, replayed, expected))
            fields = dict(zip(("measured_s", "replayed_s", "expected_s"), times, strict=True))
            yield dict(
                case=str(case), network=name, change=fields["expected_s"] / fields["replayed_s"] - 1, **fields
            )


def _check(networks: Mapping[str, Network], axes: set[str]) -> None:
    unknown = sorted({axis for network in networks.values() for axis in network.links} - axes - {ALL})
    if unknown:
        known = f"calls on {', '.join(sorted(axes))}" if axes else "no calls at all"
        raise UsageError(f"--what-if: the run has no calls on {', '.join(unknown)}; it has {known}")


def launch_of(table: pd.DataFrame) -> Launch:
    """Return what the ranks of a launch recorded, of rows of `events`."""
    axes = sorted({str(axis) for axis in table["axis"].unique()} - {""})
    groups = table[table["axis"] != ""].groupby(["axis", "group"], observed=True)["rank"].nunique()
    sizes = {(row["axis"], row["group"]): row["rank"] for row in records(groups.reset_index())}
    parts = [part for _, part in table.groupby("rank")]
    positions = []
    for part in parts:  # a rank is alone on axes on which it makes no calls
        rank = int(part["rank"].iloc[0])
        group_of = part.groupby("axis", observed=True)["group"].first().to_dict()
        places = [(axis, int(group_of.get(axis, rank))) for axis in axes]
        positions.append([Position(group=at[1], size=int(sizes.get(at, 1)), rank=rank) for at in places])
    return Launch(axes=axes, rows=[_rows(part, axes) for part in parts], positions=positions)


def _rows(part: pd.DataFrame, axes: Sequence[str]) -> Rows:
    """Return the events of one rank as it made them: numbers for names, whole nanoseconds."""
    numbers = {"": -1, **{axis: number for number, axis in enumerate(axes)}}
    coded = {"kind": _KINDS, "axis": numbers, "verb": _VERBS}
    rows: Rows = {name: part[name].astype(str).map(codes).to_numpy(np.int64) for name, codes in coded.items()}
    rows |= {name: part[name].to_numpy(np.int64) for name in _WHOLE}
    times = {name: part[f"{name}_s"].to_numpy(np.float64) for name in ("enter", "leave", "wait")}
    return rows | {name: np.rint(times_s * 1e9).astype(np.int64) for name, times_s in times.items()}


def wall_ns(launch: Launch, network: Network) -> float:
    """Return when the last rank ends on the network."""
    programs = [
        rank_program(rows, rows["wait"], prices, 0)
        for rows, prices in zip(launch.rows, _prices(launch, network), strict=True)
    ]
    waited = zip(programs, simulate(programs, launch.positions), strict=True)
    return max(float(own.ends(own.waits(waits))[-1]) for own, waits in waited)


def _prices(launch: Launch, network: Network) -> Iterator[list[Prices | None]]:
    """Yield for every rank what its calls on each axis cost."""
    members: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for seats in launch.positions:
        for axis, seat in enumerate(seats):
            members[axis, seat.group].append(seat.rank)
    known = {
        (axis, group): network.prices(launch.axes[axis], np.array(ranks), len(launch.rows))
        for (axis, group), ranks in members.items()
    }
    for seats in launch.positions:
        yield [known[axis, seat.group] for axis, seat in enumerate(seats)]
