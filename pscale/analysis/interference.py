"""Interference with the ranks of a case: other work, the hypervisor, heat, limits."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from pscale.analysis.columns import Row
from pscale.runs.host import numbers_in

NOTICED = 0.01  # of the cores' time
GRAVE = 0.05  # of the cores' time: figures are then not the program's
BUSY = 0.75  # of the cores that the threads of a rank are to use
_LAUNCH = ["repeat", "host"]
_LIST = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*")  # of CPUs
_LONGEST = 5_000  # characters of one


def cause_and_share(row: Mapping[str, float]) -> tuple[str, float]:
    """Return the main interference and its share: the largest, but of an effect its known cause."""
    causes = {name: row[name] for name in ("others", "steal", "limit") if not math.isnan(row[name])}
    cause = max(causes, key=causes.__getitem__, default="off_core")
    effect = row["off_core"]
    is_told = math.isnan(effect) or causes.get(cause, 0.0) >= max(NOTICED, effect / 2)
    return (cause, row[cause]) if is_told else ("off_core", effect)


def explains(row: Row, loss: float) -> bool:
    """Tell whether interference may be what a loss of a step comes from, or spoils all figures."""
    return bool(row.share >= GRAVE or row.share >= max(NOTICED, loss / 2))


def interferences(
    observed: Mapping[str, Mapping[str, Any]], points: Iterable[Row], threads: Iterable[Row]
) -> Iterator[dict[str, Any]]:
    """Yield what was taken from the cores of each case, if anything tells; `observed`: `observations`."""
    off_core = {time.case: time.off_core for time in threads}
    for point in points:
        if point.case in observed and point.launches:
            shares = _shares(observed[point.case], point, off_core.get(point.case, math.nan))
            cause, share = cause_and_share(shares)
            if not math.isnan(share):
                yield dict(case=point.case, cause=cause, share=share, **shares)


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
    cpus = {text: max(1, len(cpus_in(text))) for text in ranks["cpus"].dropna().unique()}
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
        row["cpus"] = {(host, cpu) for host, text in places[case] for cpu in cpus_in(text)}
        row["threads"] = {int(count) for (count,) in threads[case]}
        row["governors"] = ", ".join(sorted(str(name) for (name,) in governors[case])) or "unknown"
    return seen


def cpus_in(affinity: object) -> frozenset[int]:
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
    keys = [cases, *(ranks[name] for name in _LAUNCH)]
    sets = ranks.groupby([*keys, ranks["cpus"]], observed=True)[["busy_s", "wall_s"]].max()
    hosts = ranks.groupby(keys, observed=True).agg(own_s=("cpu_s", "sum"), wall_s=("wall_s", "max"))
    levels = ["case", *_LAUNCH]
    busy_s = sets["busy_s"].groupby(level=levels, observed=True).sum(min_count=1)
    spent = hosts.assign(busy_s=busy_s).dropna().groupby(level="case").sum()
    found: pd.Series[float] = (spent["busy_s"] - spent["own_s"]) / spent["wall_s"]
    return found
