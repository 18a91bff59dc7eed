"""Where the step of every case went: shares of its wall that add up to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pscale.analysis.efficiency import Tree
from pscale.analysis.frames import KINDS, records
from pscale.analysis.threads import ThreadTime, idle


@dataclass(frozen=True, kw_only=True)
class Losses:
    """The step of one case as shares of its wall that add up to one."""

    case: str
    useful: float  # compute that the base case needed as well; without one, the mean over ranks
    threads: float  # cores of a rank that idle while it computes, more than in the base case
    scaling: float  # other compute beyond the base case's: caches, memory bandwidth, clock
    imbalance: float  # compute of the slowest rank beyond a typical one's: the lower median, mean at most
    serialisation: (
        float  # other wait for ranks that are late by their own work: by turns, or one after another
    )
    transfer: float  # what the network adds
    together: float  # the last two, where the clocks of several nodes do not tell them apart
    copy: float
    offload: float  # waiting for what lies in a file
    unaccounted: float


def losses(
    table: pd.DataFrame, tree: Mapping[str, Tree], bases: Mapping[str, str], threads: Sequence[ThreadTime]
) -> dict[str, Losses]:
    """Return where the wall of each case went, by case; `table` is that of `efficiency.launches`."""
    columns = ["wall_s", "t_ideal_s", "max_compute_s", "typical_compute_s"]
    columns += [f"mean_{kind}" for kind in (*KINDS, "unaccounted_s", "injected_s")]
    means = table.groupby("case")[columns].mean()
    idle_of = {time.case: idle(time) for time in threads}
    found = {}
    for row in records(means.div(means["wall_s"], axis=0).reset_index()):
        case, computation = row["case"], tree[row["case"]].computation
        of_base = idle_of.get(bases.get(case, ""), 0.0) if computation else 0.0
        idle_more = max(0.0, idle_of.get(case, 0.0) - of_base)
        found[case] = _shares(case, row, computation.value if computation else None, idle_more)
    return found


def _shares(case: str, of_wall: Mapping[str, Any], computation: float | None, idle_more: float) -> Losses:
    """Split the wall, given its parts: the slowest rank's compute from the bottom up, then the rest.

    Base work, then what every typical rank spends beyond it, then what the slowest spends beyond a typical
    one, which costs the others wait; the wait that is left has no lasting culprit. Ranks with less to do than
    a typical one are imbalance, and no work beyond the base case's. Without a base case all work is useful
    but what is injected, and what threads idle.
    """
    mean, largest = of_wall["mean_compute_s"], of_wall["max_compute_s"]
    if computation is None:
        typical = mean - (of_wall["mean_injected_s"] or 0.0)
        useful = max(0.0, typical - idle_more)
    else:
        useful = mean * min(1.0, computation)
        typical = max(min(of_wall["typical_compute_s"], mean), useful)
    idled = min(idle_more, typical - useful)
    parts = {
        "useful": useful,
        "threads": idled,
        "scaling": typical - useful - idled,
        "imbalance": largest - typical,
        "copy": of_wall["mean_copy_s"],
        "offload": of_wall["mean_offload_s"],
        **(_measured(of_wall) if of_wall["t_ideal_s"] is None else _ideal(of_wall)),
    }
    short = min(0.0, parts["serialisation"])  # the slowest rank was not waited for all the time
    parts |= {"imbalance": parts["imbalance"] + short, "serialisation": parts["serialisation"] - short}
    return Losses(case=case, **parts, unaccounted=1 - sum(parts.values()))


def _ideal(of_wall: Mapping[str, Any]) -> dict[str, float]:
    """Return what an ideal network leaves beyond the slowest rank's own time, and what it would save."""
    beside = of_wall["mean_copy_s"] + of_wall["mean_offload_s"]
    own = of_wall["max_compute_s"] + beside + (of_wall["mean_unaccounted_s"] or 0.0)
    ideal = of_wall["t_ideal_s"]
    return {"serialisation": ideal - own, "transfer": 1 - ideal, "together": 0.0}


def _measured(of_wall: Mapping[str, Any]) -> dict[str, float]:
    """Return the same as the clocks saw it: wait beyond that for the slowest rank, and transfer."""
    together = of_wall["mean_together_s"]
    explained = of_wall["max_compute_s"] - of_wall["mean_compute_s"]
    beyond = of_wall["mean_wait_s"] + together - explained
    return {
        "serialisation": min(beyond, max(0.0, beyond - together)),
        "transfer": of_wall["mean_transfer_s"],
        "together": min(max(0.0, beyond), together),
    }
