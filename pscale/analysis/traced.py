"""The notes of a traced launch, and which of them belong together: both ends of a message, a call's ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from pscale.analysis.frames import Run, records
from pscale.errors import ResultsError
from pscale.results import store
from pscale.results.events import BETWEEN_TWO, FROM_ROOT, TO_ROOT

HOW = "run the suite again with `--set trace=true`, or with `timing: {trace: true}` in it"
_TIMES = ("enter", "leave", "wait")
_ARRIVALS = ("call", "root", "posted")


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A launch whose notes were kept."""

    case: str
    repeat: int
    label: str
    ranks: int
    steps: int  # measured


class Note(NamedTuple):
    """A row of `notes`; `row` is its index."""

    row: int
    step: int
    phase: str
    kind: str
    label: str
    axis: str
    verb: str
    bytes: int
    request: int
    partner: int
    enter: int
    leave: int
    wait: int


def listed(table: pd.DataFrame) -> Iterator[Note]:
    """Yield the notes one by one."""
    columns = (table[name].tolist() for name in Note._fields[1:])
    return map(Note, table.index.tolist(), *columns)


def traced(run: Run) -> list[Traced]:
    """Return the launches that ended well and whose notes were kept, in the order of the suite."""
    kept = {path.name for path in store.part_paths(run.path / "data", "events")}
    if not kept:
        return []
    good = run.cases[run.cases["status"] == "ok"]
    order = {case: place for place, case in enumerate(run.planned)}
    found = [
        Traced(
            case=str(row["case"]),
            repeat=int(row["repeat"]),
            label=str(row["label"]),
            ranks=int(row["ranks"]),
            steps=int(row["steps"]),
        )
        for row in records(good[["case", "repeat", "label", "ranks", "steps"]])
        if store.part_path(Path(), "events", row["case"], row["repeat"]).name in kept
    ]
    return sorted(found, key=lambda launch: (order.get(launch.case, len(order)), launch.repeat))


def notes(
    run: Run, launch: Traced, *, ranks: Sequence[int] | None = None, steps: range | None = None
) -> pd.DataFrame:
    """Return the notes of a launch rank by rank in the order in which they ended, times in whole ns.

    Columns are those of the table `events`, with `enter`, `leave` and `wait` for its times in seconds. With
    `ranks` or `steps`, the notes of those alone; raises ResultsError where the file cannot be read.
    """
    chosen: dict[str, Sequence[int]] = {}
    if ranks is not None:
        chosen["rank"] = ranks
    if steps is not None:
        chosen["step"] = steps
    part = store.read_part(run.path / "data", "events", launch.case, launch.repeat, chosen)
    table: pd.DataFrame = part.to_pandas()
    for name in _TIMES:
        table[name] = np.rint(table[f"{name}_s"].to_numpy(np.float64) * 1e9).astype(np.int64)
    if table.empty:
        raise ResultsError(f"{launch.label}, launch {launch.repeat + 1}: its notes are empty")
    return table.drop(columns=[*(f"{name}_s" for name in _TIMES), "post_s"])


def messages(table: pd.DataFrame) -> pd.DataFrame:
    """Return both ends of every message: indices `start` of the send, `end` of what completed the receive."""
    posted = table[(table["kind"] == "posted") & table["verb"].isin(BETWEEN_TWO)]
    sides = {}
    for verb, ends in (("send", ("rank", "partner")), ("receive", ("partner", "rank"))):
        side = posted[posted["verb"] == verb].reset_index(names=verb)
        side = side.rename(columns=dict(zip(ends, ("from", "to"), strict=True)))
        side["number"] = side.groupby(["axis", "from", "to"]).cumcount()
        sides[verb] = side
    pair = ["axis", "from", "to", "number"]
    both = sides["send"][[*pair, "send"]].merge(sides["receive"][[*pair, "receive", "request"]], on=pair)
    found = both.merge(_completed(table), left_on=["to", "request"], right_on=["rank", "request"])
    return found.rename(columns={"send": "start", "completed": "end"})[["start", "end"]]


def waits(table: pd.DataFrame) -> pd.DataFrame:
    """Return the calls of several ranks in which somebody waited.

    Index `start` is the call of the rank that came last, or of the root that the others depend on; `end` is
    the call of one that waited for it.
    """
    arrived = table[table["kind"].isin(_ARRIVALS) & ~table["verb"].isin(BETWEEN_TWO)].reset_index(names="row")
    arrived["number"] = arrived.groupby(["rank", "axis", "group"]).cumcount()
    call = ["axis", "group", "number"]
    depended_on = np.where(
        arrived["verb"].isin(FROM_ROOT), arrived["kind"] == "root", ~_waits_as_root(arrived)
    )
    causes = arrived[depended_on].sort_values("enter", kind="stable").drop_duplicates(call, keep="last")
    both = arrived[[*call, "row", "rank", "kind", "request"]].merge(
        causes[[*call, "row"]], on=call, suffixes=("", "_last")
    )
    both = both.merge(_completed(table), on=["rank", "request"], how="left")
    started = both["kind"] == "posted"
    both["end"] = both["row"].where(~started, both["completed"])
    both = both[both["end"].notna()].astype({"end": np.int64})
    waited = table["wait"].reindex(both["end"]).to_numpy() > 0
    found = both[waited & (both["row"] != both["row_last"])]
    return found.rename(columns={"row_last": "start"})[["start", "end"]]


def _waits_as_root(arrived: pd.DataFrame) -> pd.Series:
    """Tell which rows depend on others of their call and nobody on them: a root that gathers."""
    return arrived["verb"].isin(TO_ROOT) & (arrived["kind"] == "root")


def _completed(table: pd.DataFrame) -> pd.DataFrame:
    """Return the first row that relied on each started call."""
    rows = table[table["kind"] == "completed"].reset_index(names="completed")
    return rows.drop_duplicates(["rank", "request"])[["rank", "request", "completed"]]


def under_way(table: pd.DataFrame) -> pd.DataFrame:
    """Return the notes that started a call, in that order, with `leave` when it was there.

    That is the end of the call that found it complete or made it so, else of the last note.
    """
    over = table[table["kind"].isin(("found", "completed"))].drop_duplicates(["rank", "request"])
    posted = table[table["kind"] == "posted"].drop(columns="leave")
    both = posted.merge(over[["rank", "request", "leave"]], on=["rank", "request"], how="left")
    both["leave"] = both["leave"].fillna(table["leave"].max()).astype(np.int64)
    return both.sort_values(["rank", "enter"], kind="stable", ignore_index=True)
