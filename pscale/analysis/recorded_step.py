"""One step of a traced launch as its ranks recorded it: what a page draws again, also on another network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pandas as pd

from pscale.analysis.frames import Run
from pscale.analysis.timeline import Traced, launch_events, shown, since_start, stages, traced, typical_step
from pscale.analysis.what_if import Launch, launch_of
from pscale.errors import ResultsError
from pscale.results.events import BETWEEN_TWO, FROM_ROOT, TO_ROOT, VERBS, Kind

CODES = {  # what the numbers in the rows of a step mean, for those who have no Python
    "kinds": {kind.name: int(kind) for kind in Kind},
    "verbs": [verb.replace("_", "-") for verb in VERBS],
    "sides": {
        name: [VERBS.index(verb) for verb in verbs]
        for name, verbs in (("to", TO_ROOT), ("from", FROM_ROOT), ("pair", BETWEEN_TWO))
    },
}
_TIMES = ("enter", "leave", "wait")


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordedStep:
    """The step of typical length of a launch, in whole ns since it began.

    `recorded` are the events of `ranks`, `labels` theirs, such as `forward 3`. It can be simulated if these
    are all ranks, and every call that is completed in the step was started in it.
    """

    case: str
    repeat: int
    step: int
    length_ns: int
    of_ranks: int
    stages: int  # of the pipeline
    ranks: tuple[int, ...]
    simulated: bool
    recorded: Launch
    labels: tuple[tuple[str, ...], ...]


def recorded_steps(run: Run, most_events: int) -> Iterator[RecordedStep]:
    """Yield a step of the first traced launch of each case, those that the report draws first.

    A step has at most `most_events` events: of more ranks than that has room for, some, evenly spread.
    """
    launches = traced(run)
    first = {launch.case: launch for launch in reversed(launches)}
    drawn = {launch.case: launch for launch in shown(run, launches)}
    others = sorted(first.values(), key=lambda launch: -launch.ranks)
    for launch in {**drawn, **{launch.case: launch for launch in others}}.values():
        with suppress(ResultsError):  # a file that is cut; `pscale trace` says so
            yield _recorded(run, launch, most_events)


def _recorded(run: Run, launch: Traced, most_events: int) -> RecordedStep:
    step = typical_step(run, launch)
    table = launch_events(run, launch, steps=range(step, step + 1))
    moved, length_ns = since_start(table)
    every = -(-len(table) // most_events)
    ranks = tuple(range(0, launch.ranks, every))
    moved = moved[moved["rank"].isin(ranks)] if every > 1 else moved
    moved = moved.assign(**{f"{name}_s": moved[name] * 1e-9 for name in _TIMES})
    by_rank = [rows for _, rows in moved.groupby("rank")]
    return RecordedStep(
        case=launch.case,
        repeat=launch.repeat,
        step=step,
        length_ns=length_ns,
        of_ranks=launch.ranks,
        stages=stages(run, launch.case),
        ranks=ranks,
        simulated=every == 1 and all(map(_closed, by_rank)),
        recorded=launch_of(moved),
        labels=tuple(tuple(rows["label"]) for rows in by_rank),
    )


def _closed(rows: pd.DataFrame) -> bool:
    """Tell whether every call that a rank completes was started before, in these rows."""
    of_kind = (rows.loc[rows["kind"] == kind, "request"] for kind in ("completed", "posted"))
    completed, posted = (set(requests) for requests in of_kind)
    return completed <= posted
