"""One step of traced launches as it really ran: what every rank did when, to be drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pscale.analysis.frames import Run
from pscale.analysis.traced import Note, Traced, listed, notes, traced
from pscale.errors import ResultsError

PARTS = ("data", "forward", "backward", "input", "weight", "sync", "update")
INSIDE = ("wait", "exchange", "injected")
MOST_CASES, MOST_RANKS = 4, 32
_VISIBLE = 1 / 2000  # of the step: what is shorter and lies inside a part cannot be seen


@dataclass(frozen=True, kw_only=True)
class Span:
    """Something that a rank did, in seconds since the step began.

    `kind` is one of PARTS, which follow one another, or of INSIDE, which lie in them. `micro` and `part` are
    the micro-batch and the part of the model, where it is about one.
    """

    rank: int
    kind: str
    micro: int | None
    part: int
    start_s: float
    stop_s: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A step of typical length of a launch; of very many ranks some, evenly spread."""

    case: str
    repeat: int
    step: int
    ranks: tuple[int, ...]
    of_ranks: int  # how many there are
    stages: int  # of the pipeline
    length_s: float
    spans: tuple[Span, ...]

    @property
    def chunks(self) -> int:
        """Into how many parts a stage's share of the model is cut."""
        return 1 + max((span.part // self.stages for span in self.spans), default=0)


def timelines(run: Run) -> tuple[Timeline, ...]:
    """Return a step of the first traced launch of each case to be shown.

    These are cases on most ranks whose plans differ, pipelines if there are any, at most MOST_CASES.
    """
    found = []
    for launch in _shown(run, traced(run)):
        with suppress(ResultsError):  # a file that is cut; `pscale trace` says so
            found.append(_timeline(run, launch))
    return tuple(found)


def _shown(run: Run, launches: Sequence[Traced]) -> list[Traced]:
    known = [launch for launch in launches if launch.case in run.planned]
    piped = [launch for launch in known if _stages(run, launch.case) > 1] or known
    most = max((launch.ranks for launch in piped), default=0)
    by_plan: dict[str, Traced] = {}
    for launch in piped:
        if launch.ranks == most:
            by_plan.setdefault(repr(_plan(run, launch.case)), launch)
    return list(by_plan.values())[:MOST_CASES]


def _plan(run: Run, case: str) -> Any:
    return run.planned[case].get("plan", {})


def _stages(run: Run, case: str) -> int:
    return int(_plan(run, case).get("pp", 1))


def _timeline(run: Run, launch: Traced) -> Timeline:
    step = _typical_step(run, launch)
    ranks = tuple(range(0, launch.ranks, -(-launch.ranks // MOST_RANKS)))
    table = notes(run, launch, ranks=ranks, steps=range(step, step + 1))
    own = table[table["kind"] == "step"]
    began, length = int(own["enter"].min()), int(own["leave"].max() - own["enter"].min())
    table = table.assign(enter=table["enter"] - began, leave=table["leave"] - began)
    return Timeline(
        case=launch.case,
        repeat=launch.repeat,
        step=step,
        ranks=ranks,
        of_ranks=launch.ranks,
        stages=_stages(run, launch.case),
        length_s=length * 1e-9,
        spans=tuple(_spans(table, length * _VISIBLE)),
    )


def _typical_step(run: Run, launch: Traced) -> int:
    """Return the step whose length, on the slowest rank, is nearest to the median."""
    steps = run.ends[(run.ends["case"] == launch.case) & (run.ends["repeat"] == launch.repeat)]
    ends = steps.set_index("step")["end_s"]
    lengths = ends.diff().fillna(ends)
    return int((lengths - lengths.median()).abs().to_numpy().argmin())


def _spans(table: pd.DataFrame, visible: float) -> Iterator[Span]:
    """Yield what is long enough to be seen, rank by rank; a part that lies in another rank's too."""
    for rank, rows in table.groupby("rank"):
        assert isinstance(rank, int)
        for note in listed(rows):
            if note.kind == "phase":
                yield _part(rank, note)
            elif note.kind == "injected":
                yield _inside(rank, "injected", note.enter, note.leave)
            elif note.kind in ("call", "root", "completed"):
                over = note.enter + note.wait
                if note.wait > visible:
                    yield _inside(rank, "wait", note.enter, over)
                if note.leave - over > visible:
                    yield _inside(rank, "exchange", over, note.leave)


def _part(rank: int, note: Note) -> Span:
    kind, _, numbers = note.label.partition(" ")
    micro, _, part = numbers.partition(".")
    return Span(
        rank=rank,
        kind=kind if kind in PARTS else note.phase,
        micro=int(micro) if micro else None,
        part=int(part or 0),
        start_s=note.enter * 1e-9,
        stop_s=note.leave * 1e-9,
    )


def _inside(rank: int, kind: str, enter: int, leave: int) -> Span:
    return Span(rank=rank, kind=kind, micro=None, part=0, start_s=enter * 1e-9, stop_s=leave * 1e-9)
