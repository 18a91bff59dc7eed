"""The steps and phases of a program: as it marks them, else a period of its calls, else all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pscale.watch.notes import Piece, Recorded
from pscale.watch.rows import NOTHING, Numbers, Rows

PROGRAM = "program"  # the phase of what is in no other
_STEP, _PAUSE, _NO_PHASE = 1, 0, -1  # levels of MPI_Pcontrol; from 2 on they are phases
_LEAST_STEPS, _LEAST_SHARE = 5, 0.5  # of a period, and of all calls that lie in it
_SEARCHED = 16_384  # calls of rank 0 in which a period is looked for
_FEWEST, _SEED = 1000, 1  # of steps that are drawn


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


def find_steps(
    recorded: Recorded,
    blocks: Callable[[], Iterable[tuple[Rows, bool]]],
    most: int | None = None,
    *,
    is_part: bool = False,
) -> Steps:
    """Return the steps of a job, whose calls `blocks` yields in windows, as often as it is called.

    Of more steps than have `most` phases on all ranks, that many are drawn, but a thousand at least. The last
    step that is marked in a part of a record may end later, and is left out.
    """
    size = len(recorded.facts)
    words, made, last = _Words(recorded), [_PieceMarks(size)], np.zeros(size, np.int64)
    for rows, ends in blocks():
        made[-1].add(rows)
        words.add(rows, ends=ends)
        last = np.maximum(last, made[-1].over)
        if ends:
            made.append(_PieceMarks(size))
    pieces, over = made[:-1], _ends(recorded, last)
    for marks, piece in zip(pieces, recorded.drawn, strict=bool(recorded.drawn)):
        marks.begin(piece)
    if not recorded.drawn:
        pieces[0].over = over
    phases, changes = _phases(recorded, pieces)
    parts, how = _marked_steps(pieces, is_part=is_part) or words.period(blocks) or _whole(recorded, pieces)
    starts, ends_, drawn = _joined_edges(parts)
    if most and len(drawn) > (fewer := max(_FEWEST, most // (size * len(phases)))):
        how += f"; of its {len(drawn):,}, {fewer:,} drawn at random are reported"
        drawn = drawn[_draw_steps(len(drawn), fewer)]
    return Steps(
        starts=starts[:, drawn],
        ends=ends_[:, drawn],
        skipped=_skipped_ns(starts, ends_, drawn),
        phases=phases,
        changes=changes,
        over=over,
        how=how,
    )


class _PieceMarks:
    """The marks in a piece of a record, by rank, and when its first and its last call were."""

    def __init__(self, size: int):
        self.start, self.over = np.full(size, NOTHING), np.zeros(size, np.int64)
        self._made: list[list[Marks]] = [[] for _ in range(size)]

    def add(self, rows: Rows) -> None:
        """Take up the calls of a window."""
        marks = rows.is_kind("MARK")
        for rank, so_far in enumerate(self._made):
            mine = slice(rows.places[rank], rows.places[rank + 1])
            self.over[rank] = max(self.over[rank], rows.leave[mine].max(initial=0))
            if self.start[rank] < 0 and len(rows.enter[mine]):
                self.start[rank] = rows.enter[mine][0]
            chosen = np.flatnonzero(marks[mine]) + mine.start
            so_far.append((rows.enter[chosen], rows.peer[chosen]))

    def begin(self, piece: Piece) -> None:
        """Begin with the phases that ranks are in."""
        for so_far, start, level in zip(self._made, self.start, piece.phases, strict=True):
            so_far.append((np.array([start]), np.array([level])))

    @cached_property
    def marks(self) -> Sequence[Marks]:
        """The marks of each rank in their order."""
        return [_ordered_marks(made) for made in self._made]


def _phases(recorded: Recorded, pieces: Sequence[_PieceMarks]) -> tuple[Sequence[str], Sequence[Marks]]:
    """Return the phases, and by rank when they changed, and to which."""
    names = {level: name for facts in recorded.facts for level, name in facts.phases.items()}
    marks = [_ordered_marks(of_rank) for of_rank in zip(*(piece.marks for piece in pieces), strict=True)]
    levels = np.unique(np.concatenate([levels_[levels_ > _STEP] for _, levels_ in marks])).tolist()
    changes = []
    for times, levels_ in marks:
        of_phase = (levels_ > _STEP) | (levels_ == _NO_PHASE)
        number = np.where(levels_ > _STEP, np.searchsorted(levels, levels_) + 1, 0)
        changes.append((times[of_phase], number[of_phase]))
    return [PROGRAM, *(names.get(level, f"phase {level}") for level in levels)], changes


def _joined_edges(parts: Sequence[Edges]) -> tuple[Numbers, Numbers, Numbers]:
    """Return the steps of all pieces, with one for each gap between two, and which of them are no gaps."""
    starts, ends = [parts[0][0]], [parts[0][1]]
    real = [np.ones(starts[0].shape[1], np.bool_)]
    for begin, end in parts[1:]:
        starts += [ends[-1][:, -1:], begin]
        ends += [begin[:, :1], end]
        real += [np.zeros(1, np.bool_), np.ones(begin.shape[1], np.bool_)]
    return np.hstack(starts), np.hstack(ends), np.flatnonzero(np.concatenate(real))


def _draw_steps(count: int, fewer: int) -> Numbers:
    """Return one step of each of `fewer` equal parts: nothing periodic is always or never among them."""
    edges = np.arange(fewer + 1) * count // fewer
    return np.asarray(np.random.default_rng(_SEED).integers(edges[:-1], edges[1:]))


def _skipped_ns(starts: Numbers, ends: Numbers, drawn: Numbers) -> Numbers:
    """Return how long the steps that are not drawn lasted on the slowest rank, before each that is."""
    slowest = np.append(starts[:, 0].min(), ends.max(axis=0))  # each step begins where the one before ended
    return np.asarray(
        np.cumsum(slowest[drawn] - np.append(starts[:, drawn[0]].min(), slowest[drawn[:-1] + 1]))
    )


def _ordered_marks(made: Sequence[Marks]) -> Marks:
    times, levels = (np.concatenate(each) for each in zip(*made, strict=True))
    order = np.argsort(times, kind="stable")
    return times[order], levels[order]


def _ends(recorded: Recorded, last: Numbers) -> Numbers:
    """Return when each rank called MPI_Finalize, or made its last record."""
    clocks = [(facts.clock(), facts.end_ns) for facts in recorded.facts]
    ends = [row if end is None else clock.at(end) for row, (clock, end) in zip(last, clocks, strict=True)]
    return np.array(ends, np.int64)


Marks = tuple[Numbers, Numbers]  # when, and which
Edges = tuple[Numbers, Numbers]  # when steps began and ended, by rank
StepEdges = tuple[Sequence[Edges], str]  # by piece


def _marked_steps(pieces: Sequence[_PieceMarks], *, is_part: bool) -> StepEdges | None:
    """Return the steps that all ranks have marked."""
    parts = [_marked_edges(piece.marks, piece.over) for piece in pieces]
    if is_part:
        parts = [(starts[:, :-1], ends[:, :-1]) for starts, ends in parts]
    parts = [(starts, ends) for starts, ends in parts if starts.size]
    return (parts, "as the program marks them") if parts else None


def _marked_edges(marks: Sequence[Marks], over: Numbers) -> Edges:
    """Return the steps that all ranks have marked in a piece."""
    starts, ends = [], []
    for (times, levels), last in zip(marks, over, strict=True):
        about = np.flatnonzero((levels == _STEP) | (levels == _PAUSE))
        following = np.append(times[about][1:], last)
        begins = levels[about] == _STEP
        starts.append(times[about][begins])
        ends.append(following[begins])
    count = min(map(len, starts))
    return np.array([of_rank[:count] for of_rank in starts]), np.array([of_rank[:count] for of_rank in ends])


def _whole(recorded: Recorded, pieces: Sequence[_PieceMarks]) -> StepEdges:
    """Return one step, from MPI_Init to MPI_Finalize, or for each piece."""
    no_other = "it marks none, and its calls have no period"
    if recorded.drawn:
        parts = [(piece.start[:, None], piece.over[:, None]) for piece in pieces]
        return parts, f"each window of the program is one step: {no_other}"
    starts = np.array([[facts.clock().at(facts.begin[1])] for facts in recorded.facts])
    return [(starts, pieces[0].over[:, None])], f"the whole program is one step: {no_other}"


class _Words:
    """The calls of rank 0 in their order, as numbers: the same for calls that only differ in a sender."""

    def __init__(self, recorded: Recorded):
        groups, _ = recorded.groups
        self._size = len(recorded.facts)
        self._full = np.array([*(len(group.members) == self._size for group in groups), False])
        self._pieces: list[list[Words]] = [[]]
        self._counts = np.zeros(len(groups), np.int64)

    def add(self, rows: Rows, *, ends: bool) -> None:
        """Take up the calls of a window, with which a piece `ends`: what they are, and where all meet.

        That is the communicator of collectives of all ranks, -1: it is none, and how many were before.
        """
        first_rank = slice(0, rows.places[1])
        made = ~rows.fruitless & ~rows.is_kind("COMPLETE", "MARK", "BEGIN", "END") & (rows.thread == 0)
        meets = self._meetings(rows)[first_rank]
        turns = np.zeros(len(meets), np.int64)
        for group in np.unique(meets[meets >= 0]).tolist():
            same = np.flatnonzero(meets == group)
            turns[same] = self._counts[group] + np.arange(len(same))
            self._counts[group] += len(same)
        chosen = made[first_rank]
        to = np.where(rows.is_kind("RECEIVE", "PROBE"), NOTHING, rows.peer)  # who came first is chance
        words = [each[first_rank][chosen] for each in (rows.call, rows.group, to, rows.bytes)]
        self._pieces[-1].append((_codes(words), meets[chosen], turns[chosen]))
        if ends:
            self._pieces.append([])

    def _meetings(self, rows: Rows) -> Numbers:
        meets = rows.is_kind("ALL", "FROM_ROOT", "TO_ROOT") & rows.is_mode("BLOCKS") & self._full[rows.group]
        return np.where(meets, rows.group, NOTHING)

    def period(self, blocks: Callable[[], Iterable[tuple[Rows, bool]]]) -> StepEdges | None:
        """Return the steps between calls of all ranks that come back with all that lies between them."""
        pieces = [_join_words(words) for words in self._pieces[:-1]]
        repeated = [(words, run) for words in pieces if (run := _find_period(words[0]))]
        anchor = next((_anchor(*each) for each in repeated), None)
        if anchor is None:
            return None
        period, group, code = anchor
        turns = [_turns(*each, period, code) for each in repeated]
        turns = [each for each in turns if len(each) > 1]
        edges = self._everywhere(blocks, group, np.concatenate(turns))
        if edges is None:
            return None
        parts = np.split(edges, np.cumsum([len(each) for each in turns])[:-1], axis=1)
        calls = f"{period} call{'s' if period > 1 else ''}"
        return [
            (part[:, :-1], part[:, 1:]) for part in parts
        ], f"a period of {calls} of rank 0, found in their order"

    def _everywhere(
        self, blocks: Callable[[], Iterable[tuple[Rows, bool]]], group: int, turns: Numbers
    ) -> Numbers | None:
        """Return when each rank left these collectives of a communicator; None where a rank lacks some."""
        left: list[list[Numbers]] = [[] for _ in range(self._size)]
        for rows, _ in blocks():
            same = self._meetings(rows) == group
            for rank, times in enumerate(left):
                mine = slice(rows.places[rank], rows.places[rank + 1])
                times.append(rows.leave[mine][same[mine]])
        every = [np.concatenate(times) for times in left]
        if turns[-1] >= min(map(len, every)):
            return None
        return np.array([times[turns] for times in every])


Words = tuple[NDArray[np.uint64], Numbers, Numbers]  # of a piece: codes, meetings, turns


def _join_words(words: Sequence[Words]) -> Words:
    codes, meets, turns = zip(*words, strict=True)
    return np.concatenate(codes), np.concatenate(meets), np.concatenate(turns)


def _anchor(words: Words, repeated: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """Return a period, and the communicator and the code of the last call in it in which all meet."""
    (codes, meets, _), (begin, period, _) = words, repeated
    anchors = begin + np.flatnonzero(meets[begin : begin + period] >= 0)
    return (period, int(meets[anchors[-1]]), int(codes[anchors[-1]])) if len(anchors) else None


def _turns(words: Words, repeated: tuple[int, int, int], period: int, code: int) -> Numbers:
    """Return the turns of the calls with this code, one in each period; none where the period is another."""
    (codes, _, turns), (begin, piece_period, length) = words, repeated
    same = np.flatnonzero(codes[begin : begin + piece_period] == np.uint64(code))
    return (
        turns[begin + same[-1] : begin + length : period]
        if piece_period == period and len(same)
        else turns[:0]
    )


def _codes(columns: Sequence[Numbers]) -> NDArray[np.uint64]:
    """Return a number for each line of values; that of other values is another, as good as always."""
    codes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        codes = (codes ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        codes ^= codes >> np.uint64(29)
    return codes


def _find_period(codes: NDArray[np.uint64]) -> tuple[int, int, int] | None:
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
