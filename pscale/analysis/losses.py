"""Where the step of every case went: shares of its wall that add up to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pscale.analysis.efficiency import Tree
from pscale.analysis.frames import KINDS, records


@dataclass(frozen=True, kw_only=True)
class Losses:
    """The step of one case as shares of its wall that add up to one."""

    case: str
    useful: float  # compute that the base case needed as well
    scaling: float  # compute beyond that: caches, memory bandwidth, clock, threads
    imbalance: float  # compute of the slowest rank beyond a typical one's (the lower median)
    serialisation: (
        float  # other wait for ranks that are late by their own work: by turns, or one after another
    )
    transfer: float  # what the network adds
    together: float  # the last two, where the clocks of several nodes do not tell them apart
    copy: float
    offload: float  # waiting for what lies in a file
    unaccounted: float


def losses(table: pd.DataFrame, tree: Mapping[str, Tree]) -> dict[str, Losses]:
    """Return where the wall of each case went, by case; `table` is that of `efficiency.launches`."""
    columns = ["wall_s", "t_ideal_s", "max_compute_s", "typical_compute_s", "mean_unaccounted_s"]
    means = table.groupby("case")[[*columns, *(f"mean_{kind}" for kind in KINDS)]].mean()
    found = {}
    for row in records(means.div(means["wall_s"], axis=0).reset_index()):
        computation = tree[row["case"]].computation
        found[row["case"]] = _shares(row["case"], row, computation.value if computation else None)
    return found


def _shares(case: str, of_wall: Mapping[str, Any], computation: float | None) -> Losses:
    """Split the wall, given its parts: the slowest rank's compute from the bottom up, then the rest.

    Base work, then what every typical rank spends beyond it, then what the slowest spends beyond a typical
    one, which costs the others wait; the wait that is left has no lasting culprit.
    """
    mean, largest = of_wall["mean_compute_s"], of_wall["max_compute_s"]
    useful = mean * min(1.0, 1.0 if computation is None else computation)
    typical = max(of_wall["typical_compute_s"], useful)
    parts = {
        "useful": useful,
        "scaling": typical - useful,
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
