"""The steps and phases of a program: as it marks them, else a period of its calls, else all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pscale.watch.notes import Facts, Recorded
from pscale.watch.settle import Numbers, Rows, Settled

PROGRAM = "program"  # the phase of what is in no other
_STEP, _PAUSE, _NO_PHASE = 1, 0, -1  # levels of MPI_Pcontrol; from 2 on they are phases
_LEAST_STEPS, _LEAST_SHARE = 5, 0.5  # of a period, and of all calls that lie in it
_SEARCHED = 16_384  # calls of rank 0 in which a period is looked for
_NOTHING = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps:
    """When steps began and ended (ranks, steps), in ns, and the phases in them."""

    starts: Numbers
    ends: Numbers
    phases: Sequence[str]
    changes: Sequence[tuple[Numbers, Numbers]]  # by rank: when the phase changed, and to which
    how: str  # where they come from, in words

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.starts.shape[1])


def steps(recorded: Recorded, settled: Settled) -> Steps:
    """Return the steps of a job."""
    rows = settled.rows
    marks = [_marks(rows, rank) for rank in range(len(recorded.facts))]
    over = _ends(recorded, rows)
    names = {level: name for facts in recorded.facts for level, name in facts.phases.items()}
    levels = sorted({int(level) for _, own in marks for level in own if level > _STEP})
    number = {level: place for place, level in enumerate(levels, start=1)}
    changes = []
    for times, own in marks:
        of_phase = (own > _STEP) | (own == _NO_PHASE)
        changes.append(
            (times[of_phase], np.array([number.get(int(level), 0) for level in own[of_phase]], np.int64))
        )
    phases = [PROGRAM, *(names.get(level, f"phase {level}") for level in levels)]
    starts, ends, how = _marked(marks, over) or _period(settled) or _whole(recorded.facts, over)
    return Steps(starts=starts, ends=ends, phases=phases, changes=changes, how=how)


def _marks(rows: Rows, rank: int) -> tuple[Numbers, Numbers]:
    own = slice(rows.places[rank], rows.places[rank + 1])
    marks = np.flatnonzero(rows.is_kind("MARK")[own]) + rows.places[rank]
    order = marks[np.argsort(rows.enter[marks], kind="stable")]
    return rows.enter[order], rows.peer[order]


def _ends(recorded: Recorded, rows: Rows) -> Numbers:
    """Return when each rank called MPI_Finalize, or made its last record."""
    last = np.zeros(len(recorded.facts), np.int64)
    np.maximum.at(last, rows.rank, rows.leave)
    for rank, facts in enumerate(recorded.facts):
        if facts.end_ns is not None:
            last[rank] = facts.clock().at(facts.end_ns)
    return last


Found = tuple[Numbers, Numbers, str]


def _marked(marks: Sequence[tuple[Numbers, Numbers]], over: Numbers) -> Found | None:
    """Return the steps that all ranks have marked."""
    starts, ends = [], []
    for (times, levels), last in zip(marks, over, strict=True):
        about = np.flatnonzero((levels == _STEP) | (levels == _PAUSE))
        following = np.append(times[about][1:], last)
        begins = levels[about] == _STEP
        starts.append(times[about][begins])
        ends.append(following[begins])
    count = min(map(len, starts))
    if not count:
        return None
    return (
        np.array([own[:count] for own in starts]),
        np.array([own[:count] for own in ends]),
        "as the program marks them",
    )


def _whole(facts: Sequence[Facts], over: Numbers) -> Found:
    """Return one step, from MPI_Init to MPI_Finalize."""
    starts = np.array([[own.clock().at(own.begin[1])] for own in facts])
    return starts, over[:, None], "the whole program is one step: it marks none, and its calls have no period"


def _period(settled: Settled) -> Found | None:
    """Return the steps between calls of all ranks that come back with everything that lies between them."""
    rows = settled.rows
    made = ~rows.fruitless & ~rows.is_kind("COMPLETE", "MARK", "BEGIN", "END") & (rows.thread == 0)
    first = np.flatnonzero(made & (rows.rank == 0))
    found = _repeated(np.stack([rows.call, rows.group, rows.peer, rows.bytes])[:, first])
    if found is None:
        return None
    begin, period, length = found
    size = len(rows.places) - 1
    full = np.array([len(group.members) == size for group in settled.groups])
    meets = rows.is_kind("ALL", "FROM_ROOT", "TO_ROOT") & rows.is_mode("BLOCKS") & full[rows.group]
    meets &= rows.group >= 0
    anchors = np.flatnonzero(meets[first[begin : begin + period]])
    if not len(anchors):
        return None
    chosen = first[begin + anchors[-1] : begin + length : period]
    edges = _everywhere(rows, meets, chosen)
    if edges is None:
        return None
    return edges[:, :-1], edges[:, 1:], f"a period of {period} calls of rank 0, found in their order"


def _everywhere(rows: Rows, meets: NDArray[np.bool_], chosen: Numbers) -> Numbers | None:
    """Return when each rank left the collectives `chosen` on rank 0; None where a rank lacks some."""
    same = meets & (rows.group == rows.group[chosen[0]])
    turns = np.searchsorted(np.flatnonzero(same & (rows.rank == 0)), chosen)
    found = []
    for rank in range(len(rows.places) - 1):
        own = np.flatnonzero(same & (rows.rank == rank))
        if turns[-1] >= len(own):
            return None
        found.append(rows.leave[own[turns]])
    return np.array(found)


def _repeated(words: Numbers) -> tuple[int, int, int] | None:
    """Return where the longest part begins that repeats itself, its period, and its length."""
    codes = np.zeros(words.shape[1], np.int64)
    for column in words:
        values, inverse = np.unique(column, return_inverse=True)
        codes = np.unique(codes * len(values) + inverse, return_inverse=True)[1]
    count = len(codes)
    middle = max(0, count // 2 - _SEARCHED // 2)
    window = codes[middle : middle + _SEARCHED]
    for period in range(1, len(window) // _LEAST_STEPS + 1):
        equal = window[period:] == window[:-period]
        if equal.mean() < _LEAST_SHARE:
            continue
        begin, length = _longest(codes[period:] == codes[:-period])
        if length + period >= max(_LEAST_STEPS * period, _LEAST_SHARE * count):
            return begin, period, length + period
    return None


def _longest(equal: NDArray[np.bool_]) -> tuple[int, int]:
    """Return where the longest run begins, and its length."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], equal, [False]]).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    if not len(begins):
        return 0, 0
    longest = int(np.argmax(ends - begins))
    return int(begins[longest]), int(ends[longest] - begins[longest])
