"""What the network gives: time and bandwidth of bare collectives, and how much of them hides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from pscale.analysis.frames import Run, calls, records

_TEXTS = {"case": str, "axis": str, "verb": str, "phase": str}


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """One verb on one axis with messages of one size: means over ranks, steps and launches.

    The size is that of the larger array, input or output. `send` is an exchange round a ring.
    """

    case: str
    axis: str
    verb: str
    ranks: int  # of the axis
    message_bytes: int
    call_s: float
    least_s: float  # of the rank that is done soonest
    most_s: float
    algorithm_bytes_per_s: float  # the size over the time
    bus_bytes_per_s: (
        float  # that times 2 (p - 1) / p for an all-reduce, (p - 1) / p for others but one-to-one
    )
    hidden: float | None  # of calls that were started: share that was under way while the rank computed


def bandwidths(run: Run) -> tuple[Bandwidth, ...]:
    """Return all of the cases of kind `collectives`, by axis, verb and size."""
    rows = bare_calls(run)
    if rows.empty:
        return ()
    rows["verb"] = rows["verb"].replace("receive", "send")
    hidden = _hidden(rows[rows["phase"] == "backward"])
    found = [
        _bandwidth(row, run.planned[row["case"]], hidden)
        for row in records(_times(rows[rows["phase"] == "forward"]))
    ]
    return tuple(sorted(found, key=lambda each: (each.axis, each.verb, each.ranks, each.message_bytes)))


def bare_calls(run: Run) -> pd.DataFrame:
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
    by_rank = rows.groupby(["case", "axis", "verb", "rank"])[["inside_s", "calls"]].sum()
    call_s = (by_rank["inside_s"] / by_rank["calls"]).groupby(["case", "axis", "verb"])
    return call_s.agg(call_s="mean", least_s="min", most_s="max").reset_index()


def _hidden(rows: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    sums = rows.groupby(["case", "axis", "verb"])[["hidden_s", "exposed_s"]].sum().reset_index()
    return {
        (row["case"], row["axis"], row["verb"]): row["hidden_s"] / (row["hidden_s"] + row["exposed_s"])
        for row in records(sums)
    }


def _bandwidth(row: Any, planned: Any, hidden: dict[tuple[str, str, str], float]) -> Bandwidth:
    ranks, message = int(planned["plan"][row["axis"]]), int(planned["model"]["message_bytes"])
    algorithm = message / row["call_s"]
    return Bandwidth(
        **row,
        ranks=ranks,
        message_bytes=message,
        algorithm_bytes_per_s=algorithm,
        bus_bytes_per_s=algorithm * _on_the_bus(row["verb"], ranks),
        hidden=hidden.get((row["case"], row["axis"], row["verb"])),
    )


def _on_the_bus(verb: str, ranks: int) -> float:
    """Return how much of a message a link has to carry under the best algorithm, as nccl-tests count it."""
    if verb in ("broadcast", "reduce", "send"):
        return 1.0
    return (2 if verb == "all_reduce" else 1) * (ranks - 1) / ranks
