"""Traced launches: their events, which of them belong together, and one step of them to be drawn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pscale.analysis.columns import Row, row
from pscale.analysis.frames import Run, is_program, no_training, records
from pscale.config.case import RECORDED
from pscale.config.workload import IMPORTED
from pscale.errors import ResultsError
from pscale.runs import store
from pscale.runs.schema import BETWEEN_TWO, FROM_ROOT, TO_ROOT

_ACTION = re.compile(r"(\S+) ([0-9]{1,9})(?:\.([0-9]{1,9}))?")
PARTS = ("data", "forward", "backward", "input", "weight", "sync", "update")
INSIDE = ("wait", "exchange", "copy", "offload", "injected")
MOST_CASES, MOST_RANKS = 4, 32
_VISIBLE = 1 / 2000  # of the step: what is shorter and lies inside a part cannot be seen


class Flight(NamedTuple):
    """A call from start to completion, or a read or write of a file, in seconds since the step began."""

    rank: int
    kind: str  # exchange or offload
    name: str
    start_s: float
    stop_s: float


def timeline(run: Run) -> Iterator[Row]:
    """Yield the spans of a step of the first traced launch of each case to be shown.

    These are cases on most ranks whose plans differ, pipelines if there are any, at most MOST_CASES.
    """
    for launch in shown(run, traced(run)):
        ranks = range(0, launch.ranks, -(-launch.ranks // MOST_RANKS))
        with suppress(ResultsError):  # a file that is cut; `pscale trace` says so
            step = typical_step(run, launch)
            table = launch_events(run, launch, ranks=ranks, steps=range(step, step + 1))
            yield from spans(run, launch, *since_start(table))


def shown(run: Run, launches: Sequence[Traced]) -> list[Traced]:
    """Return the launches that the report draws."""
    known = [launch for launch in launches if launch.case in run.planned]
    piped = [launch for launch in known if stages(run, launch.case) > 1] or known
    most = max((launch.ranks for launch in piped), default=0)
    by_plan: dict[str, Traced] = {}
    for launch in piped:
        if launch.ranks == most:
            by_plan.setdefault(repr(run.planned[launch.case].get("plan", {})), launch)
    return list(by_plan.values())[:MOST_CASES]


def stages(run: Run, case: str) -> int:
    """Return how many stages the pipeline of a case has."""
    return int(run.planned[case].get("plan", {}).get("pp", 1))


def since_start(table: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the events of a step, in ns since the first rank began it, and how long it took."""
    own = table[table["kind"] == "step"]
    began = int(own["enter"].min())
    moved = table.assign(**{name: table[name] - began for name in ("enter", "leave")})
    return moved, int(own["leave"].max()) - began


def shortest_step(run: Run, launch: Traced, steps: range | None) -> tuple[pd.DataFrame, int]:
    """Return what `since_start` does of the first of `steps`, else of the step that is disturbed least."""
    events = launch_events(run, launch, steps=steps and steps[:1])
    both = events[events["kind"] == "step"].groupby("step").agg({"enter": "min", "leave": "max"})
    return since_start(events[events["step"] == (both["leave"] - both["enter"]).idxmin()])


def spans(
    run: Run, launch: Traced, moved: pd.DataFrame, length: int, *, whole: bool = False
) -> Iterator[Row]:
    """Yield what ranks did in a step, of which these are `since_start`; copies and stalls too if `whole`.

    Unless it is `whole`, what is too short to be seen in a report is left out.
    """
    same = {
        "case": launch.case,
        "repeat": launch.repeat,
        "step": int(moved["step"].iloc[0]),
        "stages": stages(run, launch.case),
        "length_s": length * 1e-9,
    }
    visible, alone = (0.0, _ALONE) if whole else (length * _VISIBLE, _DELAYS)
    for rank, rows in moved.groupby("rank"):
        for kind, micro, part, start, stop in _of_rank(rows, visible, alone):
            times = {"start_s": start * 1e-9, "stop_s": stop * 1e-9}
            yield row("timeline", **same, rank=rank, kind=kind, micro=micro, part=part, **times)


def kinds_of(drawn: Iterable[Row]) -> Sequence[str]:
    """Return all kinds of spans in the order in which they are drawn; a program has phases of its own."""
    own = sorted({span.kind for span in drawn} - {*PARTS, *INSIDE})
    return (*PARTS, *own, *INSIDE)


def flights(moved: pd.DataFrame) -> Iterator[Flight]:
    """Yield the calls of a step from start to completion, and what is read from and written to files."""
    for _, rows in moved.groupby("rank"):
        inside = rows[rows["kind"].isin(("call", "root", "io_done"))]
        for event in (*rows_of_events(under_way(rows)), *rows_of_events(inside)):
            kind = "offload" if event.kind == "io_done" else "exchange"
            name = f"{event.verb} {event.axis}".strip()
            yield Flight(int(rows["rank"].iloc[0]), kind, name, event.enter * 1e-9, event.leave * 1e-9)


def kept_steps(run: Run, launch: Traced) -> int:
    """Return of how many steps, from the first, the events were kept."""
    return 1 + store.largest(run.path / "data", "events", launch.case, launch.repeat, "step")


def typical_step(run: Run, launch: Traced) -> int:
    """Return the step of those that were kept whose length, on the slowest rank, is nearest to the median."""
    steps = run.ends[(run.ends["case"] == launch.case) & (run.ends["repeat"] == launch.repeat)]
    ends = steps.set_index("step")["end_s"].head(kept_steps(run, launch))
    lengths = ends.diff().fillna(ends)
    return int((lengths - lengths.median()).abs().to_numpy().argmin())


_DELAYS = {"injected": "injected"}  # kinds of events that are pieces of their own, and those of the pieces
_ALONE = {**_DELAYS, "copied": "copy", "io_waited": "offload"}


_Span = tuple[str, int | None, int, int, int]  # kind, micro-batch, part of the model, start and stop in ns


def _of_rank(rows: pd.DataFrame, visible: float, alone: Mapping[str, str]) -> Iterator[_Span]:
    """Yield what is long enough to be seen; a part that lies in another rank's too."""
    for event in rows_of_events(rows):
        if event.kind == "phase":
            kind, micro, part = action(event.label)
            if kind not in PARTS:
                kind, micro, part = event.phase, None, 0
            yield kind, micro, part, event.enter, event.leave
        elif event.kind in alone:
            yield alone[event.kind], None, 0, event.enter, event.leave
        elif event.kind in ("call", "root", "completed"):
            over = event.enter + event.wait
            if event.wait > visible:
                yield "wait", None, 0, event.enter, over
            if event.leave - over > visible:
                yield "exchange", None, 0, over, event.leave


def action(label: str) -> tuple[str, int | None, int]:
    """Return what a phase does, and for which micro-batch and part of the model, if its label names them."""
    found = _ACTION.fullmatch(label)
    return (found[1], int(found[2]), int(found[3] or 0)) if found else (label, None, 0)


_TIMES = ("enter", "leave", "wait")
_LONGEST_S = 1e9  # of a time of an event: in ns it fits in 64 bits
_ARRIVALS = ("call", "root", "posted")


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A launch whose events were kept."""

    case: str
    repeat: int
    label: str
    ranks: int


class Event(NamedTuple):
    """A row of `events`; `row` is its index."""

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


def rows_of_events(table: pd.DataFrame) -> Iterator[Event]:
    """Yield the events one by one."""
    columns = (table[name].tolist() for name in Event._fields[1:])
    return map(Event, table.index.tolist(), *columns)


def how_to_trace(run: Run) -> str:
    """Say how to keep the events of such a run."""
    if not any(map(no_training, run.planned.values())):
        return "run the suite again with `--set trace=true`"
    programs = [planned["workload"] for planned in run.planned.values() if is_program(planned)]
    if programs and all(each["command"] == IMPORTED for each in programs):
        return "it was imported from a table, which has no calls"
    if len(programs) == len(run.planned) and not any(each.get("watch") for each in programs):
        return "run the suite again with `--set workload.watch=once`"
    return "run it again: calls of a program are kept for its first launch, if that succeeds"


def traced(run: Run) -> list[Traced]:
    """Return the launches that ended well and whose events were kept, in the order of the suite."""
    kept = {path.name for path in store.part_paths(run.path / "data", "events")}
    if not kept:
        return []  # of runs that are laid over each other, whose cases are not those of files
    good = run.cases[run.cases["status"].isin(RECORDED)]
    order = {case: place for place, case in enumerate(run.planned)}
    launches = [
        Traced(**row)
        for row in records(good[["case", "repeat", "label", "ranks"]])
        if store.part_path(Path(), "events", row["case"], row["repeat"]).name in kept
    ]
    return sorted(launches, key=lambda launch: (order.get(launch.case, len(order)), launch.repeat))


def launch_events(
    run: Run, launch: Traced, *, ranks: Sequence[int] | None = None, steps: range | None = None
) -> pd.DataFrame:
    """Return the events of a launch rank by rank in the order in which they ended, times in whole ns.

    Columns are those of the table `events`, with `enter`, `leave` and `wait` for its times in seconds. With
    `ranks` or `steps`, the events of those alone; raises ResultsError where the file cannot be read.
    """
    chosen = {name: values for name, values in (("rank", ranks), ("step", steps)) if values is not None}
    part = store.read_part(run.path / "data", "events", launch.case, launch.repeat, chosen)
    table: pd.DataFrame = part.to_pandas()
    _check_events(part, table, launch)
    for name in _TIMES:
        table[name] = np.rint(table[f"{name}_s"].to_numpy(np.float64) * 1e9).astype(np.int64)
    return table.drop(columns=[*(f"{name}_s" for name in _TIMES), "post_s"])


def _check_events(part: Any, table: pd.DataFrame, launch: Traced) -> None:
    """Raise ResultsError for events that are none of the launch: others may have written them."""
    lengths = table[[f"{name}_s" for name in _TIMES]].abs()
    missing = [name for name in part.column_names if name != "post_s" and part.column(name).null_count]
    ranks, with_steps = (set(rows["rank"].unique()) for rows in (table, table[table["kind"] == "step"]))
    wrong = "are empty" if table.empty else f"lack {missing[0]}" if missing else ""
    if not wrong and not (lengths <= _LONGEST_S).to_numpy().all():
        wrong = "have impossible times"
    elif not wrong and (table["bytes"].min() < 0 or not table["partner"].between(-1, launch.ranks - 1).all()):
        wrong = "have impossible sizes or ranks"
    elif not wrong and not ranks <= set(range(launch.ranks)) & with_steps:
        wrong = f"do not match the steps of its {launch.ranks} ranks"
    if wrong:
        raise ResultsError(f"{launch.label}, launch {launch.repeat + 1}: its events {wrong}")


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
    verb, root = arrived["verb"], arrived["kind"] == "root"  # nobody depends on a root that gathers
    depended_on = np.where(verb.isin(FROM_ROOT), root, ~(verb.isin(TO_ROOT) & root))
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


def _completed(table: pd.DataFrame) -> pd.DataFrame:
    """Return the first row that relied on each started call."""
    rows = table[table["kind"] == "completed"].reset_index(names="completed")
    return rows.drop_duplicates(["rank", "request"])[["rank", "request", "completed"]]


def under_way(table: pd.DataFrame) -> pd.DataFrame:
    """Return the events that started a call, in that order, with `leave` when it was there.

    That is the end of the call that found it complete or made it so, else of the last event.
    """
    over = table[table["kind"].isin(("polled_complete", "completed"))].drop_duplicates(["rank", "request"])
    posted = table[table["kind"] == "posted"].drop(columns="leave")
    both = posted.merge(over[["rank", "request", "leave"]], on=["rank", "request"], how="left")
    both["leave"] = both["leave"].fillna(table["leave"].max()).astype(np.int64)
    return both.sort_values(["rank", "enter"], kind="stable", ignore_index=True)
