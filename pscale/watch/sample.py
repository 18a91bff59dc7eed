"""Pieces of a record that is too long to be analysed whole, drawn over all of it.

A piece begins and ends at a rest: a collective in which all ranks wait for the last, and which no message and
no request crosses. What was received before it was sent before it; so where no request is open and as many
messages are received as sent, none is under way. What lies between two rests is settled like a program.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pscale.watch.notes import (
    CANCELLED,
    FRUITLESS,
    NOBODY,
    NOTE,
    PART,
    THREAD_SHIFT,
    Notes,
    NotesFile,
    Piece,
    Recorded,
    calls,
)
from pscale.watch.rows import Mask, Numbers

PIECES = 20
MOST_COUNTED = 400_000_000  # notes, over which pieces are drawn: to read more takes too long
_MOST_TEMPLATES = 100_000  # persistent requests of a rank
_SEED = 1
_CHUNK = 1 << 18  # notes that are read at once
FINEST, _COARSEST = 1 << 12, 1 << 16  # notes between two states that are kept
_MEETINGS = ("Barrier", "Allreduce", "Allgather", "Alltoall")  # nobody leaves them before all have come
_SENT = {"SEND": 1, "BOTH": 1, "RECEIVE": -1}


class _Changes(NamedTuple):
    """What a call changes, by its number."""

    meets: Mask
    sent: NDArray[np.int8]  # messages sent less those received
    opened: NDArray[np.int8]  # requests opened less those closed
    templates: Mask
    starts: Mask
    marks: Mask


@cache
def _changes() -> _Changes:
    every = calls()
    opened = {"START": 1, "COMPLETE": -1}
    return _Changes(
        meets=np.array([call.name in _MEETINGS for call in every]),
        sent=np.array([call.mode != "PERSISTENT" and _SENT.get(call.kind, 0) for call in every], np.int8),
        opened=np.array([opened.get(call.kind, call.mode == "STARTS") for call in every], np.int8),
        templates=np.array([call.mode == "PERSISTENT" for call in every]),
        starts=np.array([call.kind == "START" for call in every]),
        marks=np.array([call.kind == "MARK" for call in every]),
    )


@dataclass(kw_only=True)
class _Rank:
    """What a rank has done before every `step`-th note: meetings, messages, requests; and its phase."""

    notes: Notes | NotesFile
    length: int
    step: int
    is_whole: Mask  # by the number of a communicator: it has all ranks
    states: Numbers = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    templates: dict[int, list[tuple[int, np.void]]] = field(default_factory=lambda: defaultdict(list))

    def count(self) -> bool:
        """Read all notes; return whether they are those of one thread, and of few persistent requests."""
        state, kept, made = np.array([0, 0, 0, NOBODY]), [], 0
        for begin in range(0, self.length, _CHUNK):
            notes = self.notes[begin : min(begin + _CHUNK, self.length)]
            for row in np.flatnonzero(_changes().templates[notes["call"]]).tolist():
                self.templates[int(notes["request"][row])].append((begin + row, notes[row].copy()))
                made += 1
            if made > _MOST_TEMPLATES or (notes["flags"] >> THREAD_SHIFT > 1).any():
                return False
            edges = np.arange(0, len(notes), self.step)
            sums = np.add.reduceat(self.changes(notes, begin), edges, axis=0)
            before = np.cumsum(np.vstack([state[:3], sums]), axis=0)
            phases = _phases(notes, np.append(edges, len(notes)), int(state[3]))
            kept.append(np.column_stack([before[:-1], phases[:-1]]))
            state = np.append(before[-1], phases[-1])
        self.states = np.concatenate(kept)
        return True

    def changes(self, notes: Notes, begin: int) -> Numbers:
        """Return by note whether all ranks meet in it, the messages it sends, and the requests it opens."""
        of = _changes()
        call, flags, peer = (np.ascontiguousarray(notes[name]) for name in ("call", "flags", "peer"))
        # A part that is not read together with its call looks torn.
        done = ((notes["enter"] > 0) | ((flags & PART) > 0)) & ((flags & FRUITLESS) == 0)
        sent = of.sent[call] * (done & (peer != NOBODY) & ((flags & CANCELLED) == 0)).astype(np.int64)
        opened = of.opened[call] * done.astype(np.int64)
        part = np.flatnonzero(flags & PART)
        sent[part] = -np.abs(sent[part])  # of a call that sends and receives
        opened[part[(opened[part] > 0) & ~of.starts[call[part]]]] = 0
        over = np.flatnonzero(opened < 0)
        opened[over[notes["request"][over] == 0]] = 0
        self._start(notes, begin, sent)
        meets = np.flatnonzero(of.meets[call])
        few = notes[meets]
        synchronises = (few["leave"] > 0) & ((few["bytes"] > 0) | (few["call"] == _barrier()))
        met = np.zeros(len(notes), np.int64)
        met[meets] = synchronises & self.is_whole[np.clip(few["comm"], 0, len(self.is_whole) - 1)]
        return np.column_stack([met, sent, opened])

    def _start(self, notes: Notes, begin: int, sent: Numbers) -> None:
        """Fill in what persistent requests send or receive where they are started."""
        rows = np.flatnonzero(_changes().starts[notes["call"]])
        for request in np.unique(notes["request"][rows]).tolist():
            same = rows[notes["request"][rows] == request]
            for place, made in self.templates.get(request, ()):
                is_message = made["peer"] != NOBODY
                sent[same[same + begin > place]] = is_message * _SENT.get(calls()[made["call"]].kind, 0)

    def rests(self, meeting: int, most: int) -> tuple[Numbers, Numbers, Numbers]:
        """Return the meetings after this one with no request open, their notes, and messages sent."""
        first = max(0, int(np.searchsorted(self.states[:, 0], meeting, side="right")) - 1)
        begin = first * self.step
        notes = self.notes[begin : min(begin + self.step + most, self.length)]
        changes = self.changes(notes, begin)
        sums = np.cumsum(changes, axis=0) + self.states[first, :3]
        rests = np.flatnonzero((changes[:, 0] > 0) & (sums[:, 2] == 0) & (sums[:, 0] > meeting))
        return sums[rests, 0], begin + rests, sums[rests, 1]

    def phase(self, place: int) -> int:
        """Return the level of the phase that a rank is in before a note."""
        first = place // self.step
        notes = self.notes[first * self.step : place]
        return int(_phases(notes, np.array([len(notes)]), int(self.states[first, 3]))[0])

    def templates_before(self, place: int) -> Notes:
        """Return what made the persistent requests that a rank has before a note."""
        every = [[note for at, note in made if at < place][-1:] for made in self.templates.values()]
        return np.array([note for last in every for note in last], NOTE)


@cache
def _barrier() -> int:
    return next(number for number, call in enumerate(calls()) if call.name == "Barrier")


def _phases(notes: Notes, edges: Numbers, before: int) -> Numbers:
    """Return the level of the phase before each of these notes: the last that began, or that none does."""
    marks = np.flatnonzero(_changes().marks[notes["call"]] & (notes["enter"] > 0))
    levels = notes["peer"][marks]
    moves = (levels > 1) | (levels == NOBODY)
    return np.append(before, levels[moves])[np.searchsorted(marks[moves], edges)]


def draw(recorded: Recorded, most: int) -> list[Piece]:
    """Return pieces with at most so many notes; none where ranks cancel, use threads or never rest."""
    quota, pieces = most // PIECES // len(recorded.facts), list[Piece]()  # notes of a rank in a piece
    ranks = _ranks(recorded, quota)
    if any(facts.cancels for facts in recorded.facts) or not all(rank.count() for rank in ranks):
        return []
    if any(rank.states[:, 2].min() < 0 for rank in ranks):
        return []  # more requests are completed than were started: which are open is not known
    meetings = _drawn(ranks[0], quota)
    for meeting, following in zip(meetings, [*meetings[1:], np.iinfo(np.int64).max], strict=True):
        piece = _between_rests(ranks, meeting, following, quota)
        pieces += [piece] if piece else []
    return pieces


def _ranks(recorded: Recorded, quota: int) -> list[_Rank]:
    every, means = recorded.groups
    size, count = len(recorded.facts), sum(map(len, recorded.notes))
    full = np.array([*(len(group.members) == size for group in every), False])
    step = min(max(FINEST, quota // 2), _COARSEST)
    return [
        _Rank(
            notes=notes,
            length=min(len(notes), len(notes) * MOST_COUNTED // count),
            step=step,
            is_whole=full[table],
        )
        for notes, table in zip(recorded.notes, means, strict=True)
    ]


def _drawn(rank: _Rank, quota: int) -> list[int]:
    """Return after which meeting each piece begins: one is drawn of each of as many equal parts."""
    count = len(rank.states)
    edges = np.arange(PIECES + 1) * count // PIECES
    last = np.maximum(edges[1:] - max(1, quota // rank.step), edges[:-1])
    states = np.random.default_rng(_SEED).integers(edges[:-1], last, endpoint=True).clip(0, count - 1)
    return [int(meeting) for meeting in np.unique(rank.states[states, 0])]


def _between_rests(ranks: Sequence[_Rank], meeting: int, following: int, quota: int) -> Piece | None:
    """Return the piece from the first rest after a meeting to the last with which it is not too long."""
    rests = [rank.rests(meeting, quota) for rank in ranks]
    common = rests[0][0]
    for of_rank, _, _ in rests[1:]:
        common = np.intersect1d(common, of_rank, assume_unique=True)
    common = common[common <= following + 1]
    at = [np.searchsorted(of_rank, common) for of_rank, _, _ in rests]
    sent = sum(balance[of_rank] for of_rank, (_, _, balance) in zip(at, rests, strict=True))
    places = np.array([notes[of_rank] for of_rank, (_, notes, _) in zip(at, rests, strict=True)])[
        :, sent == 0
    ]
    if places.shape[1] < 2:
        return None
    lengths = (places - places[:, :1]).sum(axis=0)
    last = int(np.searchsorted(lengths, quota * len(ranks), side="right")) - 1
    if last < 1:
        return None
    begins = (places[:, 0] + 1).tolist()
    return Piece(
        begins=begins,
        ends=(places[:, last] + 1).tolist(),
        phases=[rank.phase(begin) for rank, begin in zip(ranks, begins, strict=True)],
        templates=[rank.templates_before(begin) for rank, begin in zip(ranks, begins, strict=True)],
    )
