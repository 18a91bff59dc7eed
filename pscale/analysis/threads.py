"""What the threads of a rank did with its cores: CPU time of each, and what kept the others idle.

A rank with M threads has M cores. While it communicates, only its main thread has work; while NumPy computes
outside of BLAS, too. The busiest of the other threads tells how long BLAS was at work on several threads, and
what the others lack of it is imbalance inside BLAS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from pscale.analysis.columns import Row
from pscale.analysis.frames import Run, records
from pscale.analysis.wording import percent

Numbers = NDArray[np.float64]

_LAUNCH = ["case", "repeat"]
_TOLD = 0.01  # of the time of a rank's cores: less is not worth a word
_SLEEPS_AT_ONCE = 10  # OPENBLAS_THREAD_TIMEOUT is a power of two of clock ticks: up to this, well below 1 us


def thread_times(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the thread times of every measured case whose threads were observed."""
    table = _of_ranks(run)
    figures = ["efficiency", *_SHARES]
    by_launch = table.groupby(["case", "repeat"])[figures].mean()
    medians = by_launch.groupby(level="case").median()
    times: dict[str, list[Numbers]] = {}
    for case, cpu_s in zip(table["case"], table["cpu_s"], strict=True):
        times.setdefault(case, []).append(cpu_s)
    for case, median in zip(medians.index, records(medians), strict=True):
        total = sum(median[name] for name in _SHARES)
        yield dict(
            case=str(case),
            threads=len(times[case][0]),
            cpu_s=tuple(np.mean(times[case], axis=0).tolist()),
            efficiency=median["efficiency"],
            # The median of each share alone need not leave the sum at one.
            **{name: median[name] / total for name in _SHARES},
            spins=spins(run.planned.get(str(case), {})),
        )


_SHARES = ("used", "in_mpi", "single", "imbalance", "off_core")


def _of_ranks(run: Run) -> pd.DataFrame:
    """Return a row per rank and launch: its shares, and the CPU time of its threads per step."""
    seat = [*_LAUNCH, "rank"]
    walls = run.phases.groupby(seat, observed=True)[["compute_s", "wall_s"]].sum()
    walls["steps"] = run.seats.set_index(seat)["steps"]
    known = run.ranks.loc[run.ranks["thread_cpu_s"].notna(), [*seat, "thread_cpu_s"]]
    ranks = known.astype({"case": str}).merge(walls.reset_index().astype({"case": str}), on=seat)
    asked = run.cases[[*_LAUNCH, "threads"]].rename(columns={"threads": "asked"})
    ranks = ranks.merge(asked, on=_LAUNCH)
    parts = [pd.DataFrame(columns=[*_LAUNCH, "efficiency", *_SHARES, "cpu_s"])]
    for _, rows in ranks[ranks["compute_s"] > 0].groupby("asked"):
        threads = int(rows["asked"].iloc[0])
        cpu_s = np.array([padded(each, threads) for each in rows["thread_cpu_s"]])
        shares = split(cpu_s, rows["compute_s"].to_numpy(), rows["wall_s"].to_numpy())
        of_step = cpu_s / rows["steps"].to_numpy()[:, None]
        parts.append(rows[_LAUNCH].assign(**shares, cpu_s=[*of_step]))
    return pd.concat(parts[1:] or parts)


def split(cpu_s: ArrayLike, compute_s: ArrayLike, wall_s: ArrayLike) -> dict[str, Numbers]:
    """Return efficiency and shares of ranks, from the CPU time of their threads, the main one first.

    Of what a thread used no more than the compute wall counts: the rest it span, waiting for work or in MPI.
    """
    compute, wall = np.asarray(compute_s, np.float64), np.asarray(wall_s, np.float64)
    used = np.minimum(cpu_s, compute[..., None])
    threads, main, others = used.shape[-1], used[..., 0], used[..., 1:]
    several = others.max(axis=-1) if threads > 1 else compute  # BLAS on several threads
    cores = threads * wall
    return {
        "efficiency": used.sum(axis=-1) / (threads * compute),
        "used": used.sum(axis=-1) / cores,
        "in_mpi": threads * (wall - compute) / cores,
        "single": (threads - 1) * (compute - several) / cores,
        "imbalance": (several[..., None] - others).sum(axis=-1) / cores,
        "off_core": (compute - main) / cores,
    }


def padded(cpu_s: Sequence[float], threads: int) -> list[float]:
    """Return the main thread and the busiest others, as many as were asked for; idle ones used none."""
    return [*cpu_s, *([0.0] * threads)][:threads]


def spins(planned: Mapping[str, Any]) -> bool:
    """Tell whether threads without work may spin, given the launch of a case: unless it says otherwise."""
    launch = planned.get("launch", {})
    timeout = str(launch.get("env", {}).get("OPENBLAS_THREAD_TIMEOUT", ""))
    passive = (launch.get("omp") or {}).get("wait_policy") == "passive"
    return not (passive or (timeout.isdigit() and int(timeout) <= _SLEEPS_AT_ONCE))


def idle(time: Row) -> float:
    """Return the share of its cores' time that threads leave idle while their rank computes."""
    return float(time.single + time.imbalance)


def lost(time: Row) -> str:
    """Say where the cores of a rank lose time, most first; empty where that is nowhere."""
    words = {
        "in_mpi": "to communication",
        "single": "to single-threaded NumPy",
        "imbalance": "to imbalance within BLAS",
        "off_core": "to other processes",
    }
    shares = {name: getattr(time, name) for name in words}
    told = sorted((name for name in words if shares[name] >= _TOLD), key=lambda name: -shares[name])
    if not told:
        return ""
    first, *others = ((percent(shares[name]), words[name]) for name in told)
    return ", ".join([f"{first[0]} of their time {first[1]}", *map(" ".join, others)])
