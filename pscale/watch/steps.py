"""The steps and phases of a program: as it marks them, else a period of its calls, else all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pscale.watch.notes import Facts, Recorded, groups
from pscale.watch.rows import Numbers, Rows

PROGRAM = "program"  # the phase of what is in no other
_STEP, _PAUSE, _NO_PHASE = 1, 0, -1  # levels of MPI_Pcontrol; from 2 on they are phases
_LEAST_STEPS, _LEAST_SHARE = 5, 0.5  # of a period, and of all calls that lie in it
_SEARCHED = 16_384  # calls of rank 0 in which a period is looked for
_FEWEST, _SEED = 1000, 1  # of steps that are drawn
_NOTHING = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps:
    """When the steps to report began and ended (ranks, steps), in ns, and the phases in them."""

    starts: Numbers
    ends: Numbers
    phases: Sequence[str]
    changes: Sequence[tuple[Numbers, Numbers]]  # by rank: when the phase changed, and to which
    skipped: Numbers  # by step: how long those lasted before it that are not reported
    over: Numbers  # when each rank called MPI_Finalize, or made its last record
    how: str  # where they come from, in words

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.starts.shape[1])


def steps(
    recorded: Recorded,
    blocks: Callable[[], Iterable[Rows]],
    most: int | None = None,
    *,
    is_part: bool = False,
) -> Steps:
    """Return the steps of a job, whose calls `blocks` yields in windows, as often as it is called.

    Of more steps than have `most` phases on all ranks, that many are drawn, but a thousand at least. The last
    step of a record that is part of a longer one may end later, and is left out.
    """
    size = len(recorded.facts)
    made: list[list[Marks]] = [[] for _ in range(size)]
    last, words = np.zeros(size, np.int64), _Words(recorded)
    for rows in blocks():
        marks = rows.is_kind("MARK")
        for rank, so_far in enumerate(made):
            mine = slice(rows.places[rank], rows.places[rank + 1])
            last[rank] = max(last[rank], rows.leave[mine].max(initial=0))
            chosen = np.flatnonzero(marks[mine]) + mine.start
            so_far.append((rows.enter[chosen], rows.peer[chosen]))
        words.add(rows)
    told = [_in_order(own) for own in made]
    over = _ends(recorded, last)
    names = {level: name for facts in recorded.facts for level, name in facts.phases.items()}
    levels = np.unique(np.concatenate([own[own > _STEP] for _, own in told])).tolist()
    changes = []
    for times, own in told:
        of_phase = (own > _STEP) | (own == _NO_PHASE)
        number = np.where(own > _STEP, np.searchsorted(levels, own) + 1, 0)
        changes.append((times[of_phase], number[of_phase]))
    phases = [PROGRAM, *(names.get(level, f"phase {level}") for level in levels)]
    starts, ends, how = _marked(told, over) or words.period(blocks) or _whole(recorded.facts, over)
    drawn = np.arange(max(1, starts.shape[1] - is_part))
    if most and len(drawn) > (fewer := max(_FEWEST, most // (size * len(phases)))):
        how += f"; of its {len(drawn):,}, {fewer:,} drawn at random are reported"
        drawn = _drawn(len(drawn), fewer)
    return Steps(
        starts=starts[:, drawn],
        ends=ends[:, drawn],
        skipped=_skipped(starts, ends, drawn),
        phases=phases,
        changes=changes,
        over=over,
        how=how,
    )


def _drawn(count: int, fewer: int) -> Numbers:
    """Return one step of each of `fewer` equal parts: nothing periodic is always or never among them."""
    edges = np.arange(fewer + 1) * count // fewer
    return np.asarray(np.random.default_rng(_SEED).integers(edges[:-1], edges[1:]))


def _skipped(starts: Numbers, ends: Numbers, drawn: Numbers) -> Numbers:
    """Return how long the steps that are not drawn lasted on the slowest rank, before each that is."""
    slowest = np.append(starts[:, 0].min(), ends.max(axis=0))  # each step begins where the one before ended
    return np.asarray(
        np.cumsum(slowest[drawn] - np.append(starts[:, drawn[0]].min(), slowest[drawn[:-1] + 1]))
    )


def _in_order(made: Sequence[Marks]) -> Marks:
    times, levels = (np.concatenate(each) for each in zip(*made, strict=True))
    order = np.argsort(times, kind="stable")
    return times[order], levels[order]


def _ends(recorded: Recorded, last: Numbers) -> Numbers:
    """Return when each rank called MPI_Finalize, or made its last record."""
    clocks = [(facts.clock(), facts.end_ns) for facts in recorded.facts]
    ends = [own if end is None else clock.at(end) for own, (clock, end) in zip(last, clocks, strict=True)]
    return np.array(ends, np.int64)


Marks = tuple[Numbers, Numbers]  # when, and which
Found = tuple[Numbers, Numbers, str]


def _marked(marks: Sequence[Marks], over: Numbers) -> Found | None:
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


class _Words:
    """The calls of rank 0 in their order, as numbers: the same for calls that only differ in a sender."""

    def __init__(self, recorded: Recorded):
        found, _ = groups(recorded.facts)
        self._size = len(recorded.facts)
        self._full = np.array([*(len(group.members) == self._size for group in found), False])
        self._codes: list[NDArray[np.uint64]] = []
        self._meets: list[Numbers] = []  # the communicator of collectives of all ranks; -1: it is none
        self._turns: list[Numbers] = []  # how many of the same communicator were before
        self._counts = np.zeros(len(found), np.int64)

    def add(self, rows: Rows) -> None:
        """Take up the calls of a window."""
        own = slice(0, rows.places[1])
        made = ~rows.fruitless & ~rows.is_kind("COMPLETE", "MARK", "BEGIN", "END") & (rows.thread == 0)
        meets = self._meetings(rows)[own]
        turns = np.zeros(len(meets), np.int64)
        for group in np.unique(meets[meets >= 0]).tolist():
            same = np.flatnonzero(meets == group)
            turns[same] = self._counts[group] + np.arange(len(same))
            self._counts[group] += len(same)
        chosen = made[own]
        to = np.where(rows.is_kind("RECEIVE", "PROBE"), _NOTHING, rows.peer)  # who came first is chance
        words = [each[own][chosen] for each in (rows.call, rows.group, to, rows.bytes)]
        self._codes.append(_codes(words))
        self._meets.append(meets[chosen])
        self._turns.append(turns[chosen])

    def _meetings(self, rows: Rows) -> Numbers:
        meets = rows.is_kind("ALL", "FROM_ROOT", "TO_ROOT") & rows.is_mode("BLOCKS") & self._full[rows.group]
        return np.where(meets, rows.group, _NOTHING)

    def period(self, blocks: Callable[[], Iterable[Rows]]) -> Found | None:
        """Return the steps between calls of all ranks that come back with all that lies between them."""
        found = _repeated(np.concatenate(self._codes))
        if found is None:
            return None
        begin, period, length = found
        meets, turns = np.concatenate(self._meets), np.concatenate(self._turns)
        anchors = np.flatnonzero(meets[begin : begin + period] >= 0)
        if not len(anchors):
            return None
        chosen = slice(begin + anchors[-1], begin + length, period)
        edges = self._everywhere(blocks, int(meets[chosen][0]), turns[chosen])
        if edges is None:
            return None
        calls = f"{period} call{'s' if period > 1 else ''}"
        return edges[:, :-1], edges[:, 1:], f"a period of {calls} of rank 0, found in their order"

    def _everywhere(self, blocks: Callable[[], Iterable[Rows]], group: int, turns: Numbers) -> Numbers | None:
        """Return when each rank left these collectives of a communicator; None where a rank lacks some."""
        left: list[list[Numbers]] = [[] for _ in range(self._size)]
        for rows in blocks():
            same = self._meetings(rows) == group
            for rank, own in enumerate(left):
                mine = slice(rows.places[rank], rows.places[rank + 1])
                own.append(rows.leave[mine][same[mine]])
        every = [np.concatenate(own) for own in left]
        if turns[-1] >= min(map(len, every)):
            return None
        return np.array([own[turns] for own in every])


def _codes(columns: Sequence[Numbers]) -> NDArray[np.uint64]:
    """Return a number for each line of values; that of other values is another, as good as always."""
    codes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        codes = (codes ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        codes ^= codes >> np.uint64(29)
    return codes


def _repeated(codes: NDArray[np.uint64]) -> tuple[int, int, int] | None:
    """Return where the longest part begins that repeats itself, its period, and its length."""
    count = len(codes)
    middle = max(0, count // 2 - _SEARCHED // 2)
    window = codes[middle : middle + _SEARCHED]
    for period in range(1, len(window) // _LEAST_STEPS + 1):
        equal = window[period:] == window[:-period]
        if _longest(equal)[1] < _LEAST_SHARE * len(window) - period - 2:
            continue  # what covers that share of all calls covers it of those in their middle
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
