"""Recorded launches beside the program of their ranks: how long each segment and each call took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pscale.analysis.frames import Run
from pscale.analysis.timeline import Traced, how_to_trace, launch_events
from pscale.config import Case
from pscale.errors import ResultsError
from pscale.mesh.axis import Array
from pscale.mesh.dry import AxisCall
from pscale.mesh.grid import rank_at
from pscale.predict.step_program import Block, PhaseEnd, Point, StepProgram

Seconds = NDArray[np.float64]
_POINTS = ("call", "root", "posted", "completed", "phase")
_INSIDE = {  # kinds of events that lie in segments
    "polls": ("polled", "polled_complete"),
    "copies": ("copied",),
    "stalls": ("io_waited",),
    "injected": ("injected",),
}
_EVENTS = {"call": ("call", "root"), "start": ("posted",), "wait": ("completed",)}


@dataclass(frozen=True, kw_only=True, eq=False)
class RankTimes:
    """What a rank recorded of a launch: arrays of steps x points of its program, in seconds.

    `segments` ended where the points began; of that, `polls` was spent looking at what was under way,
    `copies` packing for exchanges, `stalls` waiting for a file. `calls` is the time inside a point beyond
    waiting, `waits` that until the last rank on which it depends had entered. `between` is the time since the
    step before; NaN for the first.
    """

    rank: int
    block: Block
    segments: Seconds
    polls: Seconds
    copies: Seconds
    stalls: Seconds
    calls: Seconds
    waits: Seconds
    between: Seconds

    def since(self, step: int) -> RankTimes:
        """Return the times from a step on."""
        arrays = ("segments", "polls", "copies", "stalls", "calls", "waits", "between")
        return replace(self, **{name: getattr(self, name)[step:] for name in arrays})


@dataclass(frozen=True, kw_only=True)
class LaunchTimes:
    """The recorded steps of all ranks of a launch."""

    case: Case
    repeat: int
    program: StepProgram
    ranks: tuple[RankTimes, ...]

    @property
    def points(self) -> Mapping[int, Sequence[Point]]:
        """The points of the program of every rank."""
        return {times.rank: times.block.step[2::2] for times in self.ranks}  # type: ignore[misc]


def observe(run: Run, launch: Traced, case: Case, program: StepProgram) -> LaunchTimes:
    """Return the times of a traced launch; raises ResultsError where it did not do what the program says."""
    table = launch_events(run, launch)
    blocks = dict(_blocks(case, program))
    ranks = [of_rank(int(str(rank)), rows, blocks[int(str(rank))]) for rank, rows in table.groupby("rank")]
    if len(ranks) != program.ranks:
        raise ResultsError(
            f"{run.path}: {launch.label}, launch {launch.repeat + 1}: events of {len(ranks)} of its "
            f"{program.ranks} ranks; {how_to_trace(run)}"
        )
    return LaunchTimes(case=case, repeat=launch.repeat, program=program, ranks=tuple(ranks))


def _blocks(case: Case, program: StepProgram) -> Iterator[tuple[int, Block]]:
    """Yield every rank with its block."""
    for block in program.blocks:
        for places in product(*block.places.values()):
            at = dict.fromkeys(case.plan.sizes, 0) | dict(zip(block.places, places, strict=True))
            yield rank_at(case.plan.sizes, at), block


def of_rank(rank: int, rows: pd.DataFrame, block: Block) -> RankTimes:
    """Return the times of a rank by its events, times in whole ns.

    Raises ResultsError where it did not do what the program of its block says.
    """
    points: Sequence[Any] = block.step[2::2]
    kind, verb = rows["kind"].to_numpy(str), rows["verb"].to_numpy(str)
    chosen = np.isin(kind, _POINTS) & ~((kind == "completed") & (verb == "send"))
    steps = np.flatnonzero(kind == "step")
    count = len(steps)
    _check(rank, points, kind[chosen], verb[chosen], count)

    def table(values: Array) -> Seconds:
        return np.asarray(values[chosen].reshape(count, len(points)) * 1e-9)

    enter, leave, wait = (rows[name].to_numpy(np.int64) for name in ("enter", "leave", "wait"))
    is_phase = kind == "phase"
    began = np.where(is_phase, leave, enter)
    length = leave - enter
    passed = {name: np.cumsum(np.where(np.isin(kind, kinds), length, 0)) for name, kinds in _INSIDE.items()}
    first = enter[steps][:, None] * 1e-9
    before = np.concatenate([first, table(leave)[:, :-1]], axis=1)
    spent = {name: _since(table(sums)) for name, sums in passed.items()}
    ends = np.concatenate([[np.nan], table(leave)[:-1, -1]])
    return RankTimes(
        rank=rank,
        block=block,
        segments=np.maximum(table(began) - before - spent["injected"], 0.0),
        **{name: spent[name] for name in ("polls", "copies", "stalls")},
        calls=np.maximum(table(np.where(is_phase, 0, length - wait)), 0.0),
        waits=table(np.where(is_phase, 0, wait)),
        between=first[:, 0] - ends,
    )


def _since(sums: Seconds) -> Seconds:
    """Return how much a running sum grew since the point before."""
    return np.diff(sums.ravel(), prepend=0.0).reshape(sums.shape)


def _check(rank: int, points: Sequence[Point], kind: NDArray[Any], verb: NDArray[Any], steps: int) -> None:
    """Raise ResultsError unless the rank recorded the points of its program in every step."""
    expected = [("phase",) if isinstance(each, PhaseEnd) else _EVENTS[each.event] for each in points]
    verbs = ["" if isinstance(each, PhaseEnd) else each.verb for each in points]
    same = len(kind) == steps * len(points)
    if same:
        first = slice(0, len(points))
        same = all(k in names for k, names in zip(kind[first], expected, strict=True)) and all(
            v == name for v, name in zip(verb[first], verbs, strict=True) if name
        )
    if not same:
        raise ResultsError(
            f"rank {rank} recorded other calls than a step of its plan makes: {len(kind)} in {steps} steps "
            f"of {len(points)} each"
        )


def numbers_of_calls(points: Sequence[Point]) -> list[int]:
    """Return for each point which call of its axis it is, of those that all of the axis make."""
    made: Counter[str] = Counter()
    found = []
    for each in points:
        found.append(made[each.axis] if isinstance(each, AxisCall) else -1)
        if isinstance(each, AxisCall) and each.event in ("call", "start"):
            made[each.axis] += 1
    return found
