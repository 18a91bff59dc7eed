"""Which cases are worth a closer look: those whose ranks may give evidence against their times.

Looking closely takes milliseconds a case, so that all cases are screened at once first. What is let through
here is judged in `evidence` and `disturbance`; the thresholds are theirs, or lower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from pscale.analysis import disturbance
from pscale.analysis.scaling import Point

_UNACCOUNTED = 0.01
_BUSY = 0.75
_CASE = "case"


def suspicious(ranks: pd.DataFrame, points: Mapping[str, Point]) -> dict[str, pd.DataFrame]:
    """Return the ranks of every case that may have to be warned of."""
    if ranks.empty:
        return {}
    names = ranks[_CASE].astype(str)
    odd = _of_one_rank(ranks, names, points).groupby(names).any()
    cases = _of_all_ranks(ranks, names, points)
    wanted = set(odd.index[odd]) | set(cases.index[cases])
    chosen = ranks[names.isin(wanted)]
    return {str(case): rows for case, rows in chosen.groupby(_CASE, observed=True)}


def _of_one_rank(ranks: pd.DataFrame, names: pd.Series[str], points: Mapping[str, Point]) -> pd.Series[bool]:
    """Tell which ranks give evidence by themselves."""
    wall_s = ranks["wall_s"].where(ranks["wall_s"] > 0)
    threads = names.map({case: point.threads for case, point in points.items()})
    cores = max((point.cores for point in points.values()), default=1)
    odd = ranks["threads"].notna() & (ranks["threads"] != threads)
    odd |= ranks["steal_s"] / wall_s > disturbance.STEAL
    odd |= ranks["involuntary_switches"] / wall_s > disturbance.SWITCHES_PER_S
    odd |= ranks["throttled"].fillna(0) > 0
    odd |= ranks["quota_s"].fillna(0) > 0
    odd |= ranks["load_average"] > disturbance.LOAD * cores + 1
    odd |= (threads > 1) & (ranks["gemm_cores"] < _BUSY * threads)
    return odd


def _of_all_ranks(ranks: pd.DataFrame, names: pd.Series[str], points: Mapping[str, Point]) -> pd.Series[bool]:
    """Tell which cases give evidence by all of their ranks."""
    groups = ranks.groupby(names)
    sums = groups[["unaccounted_s", "wall_s"]].sum()
    odd = ~(sums["unaccounted_s"] <= _UNACCOUNTED * sums["wall_s"])
    clocks = groups["clock_mhz"].agg(["min", "max"])
    odd |= clocks["max"] > clocks["min"]
    crowded = set(_crowded(ranks, names, points))
    return odd | odd.index.isin(crowded) | (disturbance.others(ranks, names) > disturbance.OTHERS)


def _crowded(ranks: pd.DataFrame, names: pd.Series[str], points: Mapping[str, Point]) -> Iterator[str]:
    """Yield the cases whose ranks have fewer CPUs than cores were to be used."""
    sets = pd.DataFrame({_CASE: names, "host": ranks["host"], "cpus": ranks["cpus"]}).drop_duplicates()
    places: dict[str, set[tuple[str, int]]] = {}
    for case, host, cpus in zip(*(sets[name].astype(object) for name in sets.columns), strict=True):
        places.setdefault(case, set()).update((host, cpu) for cpu in disturbance.cpus_in(cpus))
    for case, found in places.items():
        if found and len(found) < points[case].cores:
            yield case
