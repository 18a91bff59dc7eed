"""Where a step's time goes: by phase, by rank, by call, and wait by rank and step. Seconds per step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pscale.analysis.frames import KINDS, Run, records, steps
from pscale.analysis.scaling import Point
from pscale.results.events import PHASES

_TIMES = (*KINDS, "ideal_wait_s")
_AMOUNTS, _BESIDE = ("count", "bytes"), ("hidden_s", "exposed_s", "ideal_wait_s")
_PLACES = {phase: place for place, phase in enumerate(PHASES)}
_FEW_STEPS = 20_000  # of all ranks and launches of a case: their rows are read at once
SLOWEST = 3  # ranks told of per case


@dataclass(frozen=True, kw_only=True)
class PhaseTime:
    """One phase of a case's step: means over ranks, steps and launches, and the rank that computes most."""

    case: str
    phase: str
    compute_s: float
    transfer_s: float
    wait_s: float
    wait_or_transfer_s: float  # wait and transfer of calls where clocks do not distinguish them
    copy_s: float
    offload_s: float  # waiting for what lies in a file
    hidden_s: float  # communication under way while the rank computed; beside the others, not added
    ideal_wait_s: float | None  # the wait that an ideal network would leave; beside the others, not added
    largest_rank: int
    largest_compute_s: float
    step_s: float  # the whole step: mean over steps and launches

    @property
    def inside_s(self) -> float:
        """All kinds of time together: how long the phase lasts."""
        exchanged_s = self.transfer_s + self.wait_s + self.wait_or_transfer_s
        return self.compute_s + exchanged_s + self.copy_s + self.offload_s


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """One rank of a case: means over steps and launches."""

    case: str
    rank: int
    host: str
    compute_s: float
    wait_s: float
    transfer_s: float
    wait_or_transfer_s: float
    excess: float  # compute over that of the typical rank (the lower median), minus one
    phase: str  # where its compute exceeds the mean most
    phase_excess_s: float
    unaccounted: float | None  # share of its wall that is in no phase


@dataclass(frozen=True, kw_only=True)
class CallTime:
    """The calls of one verb on one axis in a case: per rank and step, means.

    A started call is posted in one phase and completed in another, so phases are not distinguished.
    """

    case: str
    axis: str
    verb: str
    count: float
    bytes: float
    transfer_s: float
    wait_s: float
    wait_or_transfer_s: float
    hidden_s: float  # of nonblocking calls: under way while the rank did something else
    exposed_s: float  # of nonblocking calls: inside the calls that start, ask for and complete them
    ideal_wait_s: float | None  # the wait that an ideal network would leave
    bytes_per_s: (
        float | None
    )  # payload over the time under way: transfer and hidden; None without payload or if unclear


@dataclass(frozen=True, kw_only=True)
class WaitMap:
    """Wait in seconds by rank (rows) and step (columns) of a launch, with the transfer of unclear calls."""

    case: str
    repeat: int
    wait_or_transfer: bool  # there are such calls
    wait_s: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class RankMap:
    """Wait and compute in seconds by rank (rows) and step (columns) of a launch; see WaitMap."""

    case: str
    repeat: int
    wait_or_transfer: bool
    wait_s: NDArray[np.float64]
    compute_s: NDArray[np.float64]


def by_phase(run: Run) -> tuple[PhaseTime, ...]:
    """Return the phases of every measured case, in the order of a step."""
    ranks = _rank_means(run)
    groups = ranks.groupby(["case", "phase"], observed=True)
    largest = ranks.loc[groups["compute_s"].idxmax()].set_index(["case", "phase"])
    table = groups[list(_TIMES)].mean()
    table["largest_rank"] = largest["rank"]
    table["largest_compute_s"] = largest["compute_s"]
    table = table.reset_index()
    table["step_s"] = table["case"].map(_mean_step(run)).astype(float)
    found = [PhaseTime(**row) for row in records(table)]
    return tuple(sorted(found, key=lambda time: (time.case, _place(time.phase))))


def slowest_ranks(run: Run) -> tuple[RankTime, ...]:
    """Return, for cases of several ranks, those that compute most and so keep the others waiting."""
    means = _rank_means(run)
    if means.empty:
        return ()
    in_phase = means.groupby(["case", "phase"], observed=True)["compute_s"]
    means["phase_excess_s"] = means["compute_s"] - in_phase.transform("mean")
    by_rank = means.groupby(["case", "rank"], observed=True)
    table = by_rank[["compute_s", "wait_s", "transfer_s", "wait_or_transfer_s"]].sum()
    worst = means.loc[by_rank["phase_excess_s"].idxmax()].set_index(["case", "rank"])
    table = table.join(worst[["phase", "phase_excess_s"]])
    accounts = run.ranks.groupby(["case", "rank"], observed=True)[["unaccounted_s", "wall_s"]].sum()
    table["unaccounted"] = accounts["unaccounted_s"] / accounts["wall_s"]
    table["host"] = run.ranks.groupby(["case", "rank"], observed=True)["host"].first()
    table = table.reset_index().astype({"case": str, "host": str})
    of_case = table.groupby("case")["compute_s"]
    typical = table["case"].map(of_case.quantile(0.5, interpolation="lower"))
    table["excess"] = (table["compute_s"] / typical - 1).fillna(0.0)
    table = table[of_case.transform("size") > 1]
    table = table.sort_values(["case", "compute_s"], ascending=[True, False], kind="stable")
    return tuple(RankTime(**row) for row in records(table.groupby("case").head(SLOWEST)))


def calls(run: Run) -> tuple[CallTime, ...]:
    """Return the communication of every case with steps by axis and verb."""
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
    return tuple(CallTime(**row) for row in records(means))


def by_waiting(points: Sequence[Point], times: Sequence[PhaseTime]) -> list[str]:
    """Return the measured cases, that whose step is waited away most first; of equal ones the largest."""
    waits: defaultdict[str, float] = defaultdict(float)
    for time in times:
        waits[time.case] += (time.wait_s + time.wait_or_transfer_s) / time.step_s
    measured = [point for point in points if point.steps]
    order = sorted(measured, key=lambda point: (waits[point.case], point.ranks, point.cores), reverse=True)
    return [point.case for point in order]


def wait_map(run: Run, cases: Sequence[str]) -> WaitMap | None:
    """Return the waits of the first good launch of the first of these cases; None without any."""
    found = next(rank_maps(run, cases[:1]), None)
    if found is None:
        return None
    return WaitMap(
        case=found.case,
        repeat=found.repeat,
        wait_or_transfer=found.wait_or_transfer,
        wait_s=tuple(map(tuple, found.wait_s.tolist())),
    )


def rank_maps(run: Run, cases: Iterable[str]) -> Iterator[RankMap]:
    """Yield wait and compute of every good launch of these cases that has rows of its steps."""
    launches = run.ends.groupby("case", observed=True)["repeat"].unique().to_dict()
    steps_of = _rank_steps(run, ["case"]).to_dict()
    for case in cases:
        repeats = sorted(map(int, launches.get(case, ())))
        together = steps(run, case) if steps_of.get(case, 0) <= _FEW_STEPS else None
        for repeat in repeats:
            rows = steps(run, case, repeat) if together is None else together[together["repeat"] == repeat]
            yield RankMap(
                case=case,
                repeat=repeat,
                wait_or_transfer=bool(rows["wait_or_transfer_s"].any()),
                wait_s=_by_rank_and_step(rows, rows["wait_s"] + rows["wait_or_transfer_s"]),
                compute_s=_by_rank_and_step(rows, rows["compute_s"]),
            )


def _by_rank_and_step(rows: pd.DataFrame, values: pd.Series[float]) -> NDArray[np.float64]:
    """Return sums over the phases: a row a rank, a column a step."""
    ranks, steps = rows["rank"].to_numpy(np.int64), rows["step"].to_numpy(np.int64)
    shape = int(ranks.max()) + 1, int(steps.max()) + 1
    sums = np.bincount(ranks * shape[1] + steps, values.to_numpy(np.float64), shape[0] * shape[1])
    return sums.astype(np.float64).reshape(shape)


def _rank_means(run: Run) -> pd.DataFrame:
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


def _place(phase: str) -> tuple[int, str]:
    return _PLACES.get(phase, len(_PLACES)), phase
