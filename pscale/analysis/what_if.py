"""Recorded steps replayed on other networks, and how long they would take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pscale.analysis.frames import Run, events, records
from pscale.analysis.timeline import how_to_trace
from pscale.errors import UsageError
from pscale.runs.events import VERBS, Kind
from pscale.simulator.network import ALL, Network, Prices
from pscale.simulator.program import Position, rank_program, simulate

AS_IT_WAS = Network()
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
        replayed = [wall_ns(launch, AS_IT_WAS) for launch in launches]
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
    return Launch(
        axes=axes,
        rows=[_rows(part, axes) for part in parts],
        positions=[list(_positions(part, axes, sizes)) for part in parts],
    )


def _rows(part: pd.DataFrame, axes: Sequence[str]) -> Rows:
    """Return the events of one rank as it made them: numbers for names, whole nanoseconds."""
    numbers = {"": -1, **{axis: number for number, axis in enumerate(axes)}}
    coded = {"kind": _KINDS, "axis": numbers, "verb": _VERBS}
    rows: Rows = {name: part[name].astype(str).map(codes).to_numpy(np.int64) for name, codes in coded.items()}
    rows |= {name: part[name].to_numpy(np.int64) for name in _WHOLE}
    times = {name: part[f"{name}_s"].to_numpy(np.float64) for name in ("enter", "leave", "wait")}
    return rows | {name: np.rint(times_s * 1e9).astype(np.int64) for name, times_s in times.items()}


def _positions(
    part: pd.DataFrame, axes: Sequence[str], sizes: Mapping[tuple[str, int], int]
) -> Iterator[Position]:
    """Yield the place of one rank on every axis; alone on those on which it makes no calls."""
    rank = int(part["rank"].iloc[0])
    groups = part.groupby("axis", observed=True)["group"].first().to_dict()
    for axis in axes:
        group = int(groups.get(axis, rank))
        yield Position(group=group, size=int(sizes.get((axis, group), 1)), rank=rank)


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
