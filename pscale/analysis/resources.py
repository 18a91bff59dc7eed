"""What ranks get of their machine: cores, what others take of these, threads, and memory by kind."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from pscale.analysis.columns import Row
from pscale.analysis.frames import Run, records
from pscale.analysis.text import percent
from pscale.config.metrics import MEMORY_KINDS as KINDS
from pscale.runs.host import numbers_in

NOTICED = 0.01  # of the cores' time
GRAVE = 0.05  # of the cores' time: figures are then not the program's
BUSY = 0.75  # of the cores that the threads of a rank are to use
_ON_HOST = ["repeat", "host"]
_LIST = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*")  # of CPUs
_LONGEST = 5_000  # characters of one


def explains(row: Row, loss: float) -> bool:
    """Tell whether interference may be what a loss of a step comes from, or spoils all figures."""
    return bool(row.share >= GRAVE or row.share >= max(NOTICED, loss / 2))


def interferences(
    observed: Mapping[str, Mapping[str, Any]], points: Iterable[Row], threads: Iterable[Row]
) -> Iterator[dict[str, Any]]:
    """Yield what was taken from the cores of each case, if anything tells; `observed`: `observations`.

    The cause is the largest share, but of an effect, ranks off their cores, its known cause.
    """
    off_core = {time.case: time.off_core for time in threads}
    for point in (point for point in points if point.case in observed and point.launches):
        shares = _shares(observed[point.case], point, off_core.get(point.case, math.nan))
        causes = {name: shares[name] for name in ("others", "steal", "limit") if not math.isnan(shares[name])}
        cause, effect = max(causes, key=causes.__getitem__, default="off_core"), shares["off_core"]
        if not math.isnan(effect) and causes.get(cause, 0.0) < max(NOTICED, effect / 2):
            cause = "off_core"
        if not math.isnan(shares[cause]):
            yield dict(case=point.case, cause=cause, share=shares[cause], **shares)


def _shares(seen: Mapping[str, Any], point: Row, off_core: float) -> dict[str, float]:
    cpus = len(seen["cpus"])
    missing = 1 - seen["gemm_cores"] / point.threads
    if 0 < cpus < point.cores:  # ranks that share cores take them from each other
        off_core = missing = 0.0
    shares = {
        "others": (seen["others"] - max(0, cpus - point.cores)) / point.cores if cpus else math.nan,
        "steal": seen["steal"],
        "limit": seen["quota"],
        "off_core": np.fmax(off_core, missing) if missing > 1 - BUSY else off_core,
    }
    return {name: float(np.clip(share, 0.0, 1.0)) for name, share in shares.items()}


def observations(ranks: pd.DataFrame) -> dict[str, Mapping[str, Any]]:
    """Return, by case, what its ranks observed of their machine; NaN where nothing is known.

    `cpus` are the pairs of host and CPU that the ranks may run on, `threads` the numbers of threads that BLAS
    had, and `others` how many cores other processes kept busy; rates are those of the worst rank.
    """
    if ranks.empty:
        return {}
    cases = ranks["case"].astype(str).rename("case")
    cpus = {text: max(1, len(_cpus_in(text))) for text in ranks["cpus"].dropna().unique()}
    of_rank = ranks[["load_average", "gemm_cores", "unaccounted_s", "wall_s"]].assign(
        steal=ranks["steal_s"] / ranks["wall_s"] / ranks["cpus"].astype(object).map(cpus).fillna(1),
        switches_per_s=ranks["involuntary_context_switches"] / ranks["wall_s"],
        ghz=ranks["clock_mhz"] / 1000,
        **ranks[["cgroup_throttled_s", "thermal_throttles"]],
    )
    groups = of_rank.groupby(cases)
    found = groups[["wall_s", "cgroup_throttled_s", "thermal_throttles", "unaccounted_s"]].sum(min_count=1)
    found = found.rename(columns={"thermal_throttles": "throttles"}).assign(
        quota=found["cgroup_throttled_s"] / found["wall_s"],
        unaccounted=found["unaccounted_s"] / found["wall_s"],
        gemm_cores=groups["gemm_cores"].median(),
        load=groups["load_average"].max(),
        slowest_ghz=groups["ghz"].min(),
        fastest_ghz=groups["ghz"].max(),
        others=_others(ranks, cases),
        **groups[["steal", "switches_per_s"]].max(),
    )
    found["clock_spread"] = (found["fastest_ghz"] - found["slowest_ghz"]) / groups["ghz"].median()
    seen: dict[str, Any] = {str(case): row for case, row in found.to_dict("index").items()}
    places, threads, governors = (
        _distinct(ranks, cases, columns) for columns in (["host", "cpus"], ["threads"], ["governor"])
    )
    for case, row in seen.items():
        row["cpus"] = {(host, cpu) for host, text in places[case] for cpu in _cpus_in(text)}
        row["threads"] = {int(count) for (count,) in threads[case]}
        row["governors"] = ", ".join(sorted(str(name) for (name,) in governors[case])) or "unknown"
    return seen


def _cpus_in(affinity: object) -> frozenset[int]:
    """Return the numbers in a list of CPUs such as "0-3,8"; none where it is unknown, or no such list."""
    if not isinstance(affinity, str) or len(affinity) > _LONGEST or not _LIST.fullmatch(affinity):
        return frozenset()
    return numbers_in(affinity)


def _distinct(ranks: pd.DataFrame, cases: pd.Series[str], columns: list[str]) -> dict[str, list[Any]]:
    """Return the distinct rows of every case, without those that end in a null."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    rows = pd.concat([cases, ranks[columns].astype(object)], axis=1).drop_duplicates()
    for case, *row in rows[rows[columns[-1]].notna()].itertuples(index=False):
        found[case].append(row)
    return found


def _others(ranks: pd.DataFrame, cases: pd.Series[str]) -> pd.Series[float]:
    """Return, by case, how many cores other processes kept busy on the CPUs of its ranks, over its launches.

    Ranks that may run on the same CPUs have the same reading of them, which counts once.
    """
    keys = [cases, *(ranks[name] for name in _ON_HOST)]
    sets = ranks.groupby([*keys, ranks["cpus"]], observed=True)[["busy_s", "wall_s"]].max()
    hosts = ranks.groupby(keys, observed=True).agg(own_s=("cpu_s", "sum"), wall_s=("wall_s", "max"))
    levels = ["case", *_ON_HOST]
    busy_s = sets["busy_s"].groupby(level=levels, observed=True).sum(min_count=1)
    spent = hosts.assign(busy_s=busy_s).dropna().groupby(level="case").sum()
    found: pd.Series[float] = (spent["busy_s"] - spent["own_s"]) / spent["wall_s"]
    return found


# The threads of a rank
#
# A rank with M threads has M cores. While it communicates, only its main thread has work; while NumPy
# computes outside of BLAS, too. The busiest of the other threads tells how long BLAS was at work on several
# threads, and what the others lack of it is imbalance inside BLAS.

Numbers = NDArray[np.float64]

_LAUNCH = ["case", "repeat"]
_TOLD = 0.01  # of the time of a rank's cores: less is not worth a word
_SLEEPS_AT_ONCE = 10  # OPENBLAS_THREAD_TIMEOUT is a power of two of clock ticks: up to this, well below 1 us


def thread_times(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the thread times of every measured case whose threads were observed."""
    table = _of_ranks(run)
    by_launch = table.groupby(["case", "repeat"])[["efficiency", *_SHARES]].mean()
    medians = by_launch.groupby(level="case").median()
    for case, median in zip(medians.index, records(medians), strict=True):
        cpu_s = np.mean([*table.loc[table["case"] == case, "cpu_s"]], axis=0)
        total = sum(median[name] for name in _SHARES)
        yield dict(
            case=str(case),
            threads=len(cpu_s),
            cpu_s=tuple(cpu_s.tolist()),
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


# Memory of a rank by kind

_BYTES = [f"{kind}_bytes" for kind in KINDS]
_PREDICTED, _COUNTED = ([f"{source}_{name}" for name in _BYTES] for source in ("predicted", "counted"))


def memory(run: Run) -> pd.DataFrame:
    """Return the memory of the rank of every case that is predicted to hold most, else counts most.

    Of several launches that which counted, then measured most; kinds are known together or not at all.
    """
    cases = run.cases.drop_duplicates("case").astype({"case": str}).set_index("case")
    predicted = cases[_PREDICTED].dropna()
    ranks = run.ranks.dropna(subset=_BYTES).astype({"case": str})
    fullest = ranks["case"].map(cases["peak_memory_rank"])
    ranks = ranks[fullest.isna() | (ranks["rank"] == fullest)]
    ranks = ranks.rename(columns=dict(zip(_BYTES, _COUNTED, strict=True))).assign(
        counted_bytes=ranks[_BYTES].sum(axis=1),
        counted_offloaded_bytes=ranks["offloaded_bytes"],
        measured_bytes=ranks["peak_rss_bytes"] - ranks["baseline_rss_bytes"],
        empty_bytes=ranks["baseline_rss_bytes"],
        of_steps=ranks["peak_rss_of_steps"].fillna(False).astype(bool),
    )
    ranks = ranks.sort_values(["counted_bytes", "measured_bytes"], kind="stable")
    counted = ranks.drop_duplicates("case", keep="last").set_index("case")
    names = ["rank", *_COUNTED, "counted_bytes", "counted_offloaded_bytes", "measured_bytes", "empty_bytes"]
    table = cases[["peak_memory_rank", "predicted_offloaded_bytes"]].join(predicted)
    table = table.join(counted[[*names, "of_steps"]])
    beyond = (table["measured_bytes"] - table["counted_bytes"]).clip(lower=0)
    table = table.assign(
        rank=table["rank"].fillna(table["peak_memory_rank"]),
        predicted_bytes=table[_PREDICTED].sum(axis=1, skipna=False),
        library_bytes=beyond,
        of_steps=table["of_steps"].fillna(False).astype(bool),
    )
    known = table["predicted_bytes"].notna() | table["counted_bytes"].notna()
    return table[known].reset_index()


def by_kind(row: Row) -> dict[str, int]:
    """Return the bytes of each kind: counted, else predicted; empty where neither is known."""
    source = "counted" if row.counted_bytes is not None else "predicted"
    return {kind: size for kind in KINDS if (size := getattr(row, f"{source}_{kind}_bytes")) is not None}
