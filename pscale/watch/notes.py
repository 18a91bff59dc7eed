"""What the recorder has left: the notes of every rank's calls, and the facts beside them.

`calls.h` is the table of calls from which the recorder is made; its kinds and modes are read from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pscale.config.choices import MOST_RANKS
from pscale.errors import ResultsError, clean
from pscale.worker.clock import Clock, ClockError, Offset, tightest

PART, FRUITLESS, THREAD_SHIFT = 1, 2, 4  # flags, as in watch.c
NOBODY, ANYBODY = -1, -2
_BLOCK = 1 << 18
_LARGEST = 1 << 62  # of a number: times in ns, and differences of two, fit in 64 bits
_LONGEST_BYTES, _MOST_BYTES = 1 << 28, 1 << 50  # of facts; of a call
_MOST_DRIFT = 0.01  # of two clocks: ten times of what they can
_MOST_COMMS, _MOST_NOTES = 1 << 14, 1 << 26  # of a rank, as in watch.c
_COUNTS = {"rank": 2, "begin": 2, "end": 1, "used": 4, "twin": 2, "trip": 3}  # of numbers behind a word
NOTE = np.dtype(
    [
        *((name, np.int64) for name in ("enter", "leave", "bytes", "request")),
        *((name, np.int32) for name in ("comm", "peer", "tag")),
        *((name, np.uint16) for name in ("call", "flags")),
    ]
)
Notes = NDArray[np.void]
_ROW = re.compile(r"^(ONCE|SIZED|FAMILY)\((\w+), (\w+), (.*)\)$", re.MULTILINE)
_VERBS = {  # of the calls that are settled, by the beginning of their names
    "Allreduce": "all_reduce",
    "Reduce_scatter": "reduce_scatter",
    "Allgather": "all_gather",
    "Alltoall": "all_to_all",
    "Barrier": "barrier",
    "Bcast": "broadcast",
    "Scatter": "scatter",
    "Gather": "gather",
    "Reduce": "reduce",
    "Scan": "scan",
    "Exscan": "scan",
    "Neighbor": "neighbours",
}
_MESSAGES = {"SEND": "send", "BOTH": "send", "RECEIVE": "receive", "PROBE": "receive", "MATCHED": "receive"}


class Call(NamedTuple):
    """A function of MPI; `kind` and `mode` are words of calls.h, `verb` is ours, empty if there is none."""

    name: str
    kind: str
    mode: str
    verb: str


@cache
def calls() -> tuple[Call, ...]:
    """Return all functions that are recorded, in the order of their numbers."""
    table = (Path(__file__).parent / "calls.h").read_text(encoding="utf-8")
    return tuple(call for row in _ROW.findall(table) for call in _functions(*row))


def _functions(macro: str, name: str, lower: str, fields: str) -> Iterator[Call]:
    told = dict(re.findall(r"\.(\w+) = (\w+)", fields))
    kind, mode = told["kind"], told.get("mode", "BLOCKS")
    verb = _MESSAGES.get(kind) or next((ours for mpi, ours in _VERBS.items() if name.startswith(mpi)), "")
    if "made" in told or kind == "FREE":
        verb = "communicator"
    yield Call(name, kind, mode, verb)
    if macro == "FAMILY":
        yield Call(f"I{lower}", kind, "STARTS", verb)
        yield Call(f"{name}_init", kind, "PERSISTENT", verb)


@dataclass(frozen=True, kw_only=True)
class Communicator:
    """A communicator as a rank knows it: its ranks in the world, in order."""

    how: str  # the call that made it
    parent: int
    members: tuple[int, ...]
    remote: tuple[int, ...] = ()  # of one between two groups: the other
    near: tuple[int, ...] = ()  # from whose members a neighbourhood collective of this rank gets something


@dataclass(kw_only=True)
class Facts:
    """What a rank wrote beside its notes; times are ns of its own clock."""

    rank: int = 0
    size: int = 0
    host: str = ""
    pid: int = 0
    library: str = ""
    cpus: tuple[int, ...] = ()
    node: int = 0
    begin: tuple[int, int] = (0, 0)  # of MPI_Init
    end_ns: int | None = None  # when MPI_Finalize was called; None: it never was
    used: tuple[int, ...] = ()  # user and system time in us, peak memory in KiB, involuntary switches
    comms: dict[int, Communicator] = field(default_factory=dict)
    phases: dict[int, str] = field(default_factory=dict)
    trips: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = field(default_factory=lambda: ([], []))

    def clock(self) -> Clock:
        """Return the way to rank 0's clock, from the round trips of the first rank of this one's node."""
        exact = Offset(at_ns=0, ahead_ns=0, bound_ns=0)
        before, after = (tightest(*np.array(trips, np.int64).T) if trips else None for trips in self.trips)
        before = before or exact
        later = Offset(at_ns=before.at_ns + 1, ahead_ns=before.ahead_ns, bound_ns=before.bound_ns)
        return Clock(before=before, after=after or later)


class Kept:
    """The whole notes in the file of a rank, of which only what is asked for comes into memory."""

    def __init__(self, path: Path):
        length = min(_size(path) // NOTE.itemsize, _MOST_NOTES)
        if not length:
            raise ResultsError(f"{path}: is empty")
        self._path = path
        held = int(np.fromfile(path, np.int64, 1)[0])  # the place of the first holds their number
        self._count = min(max(1, held), length)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, asked: slice) -> Notes:
        begin, end, _ = asked.indices(self._count)
        notes = np.fromfile(self._path, NOTE, max(0, end - begin), offset=begin * NOTE.itemsize)
        if begin == 0:
            notes[:1] = 0
        made = notes["enter"] > 0
        wrong = _is_wrong(notes) & made
        if wrong.any():
            raise ResultsError(f"{self._path}: note {begin + int(wrong.argmax())} is of no call of MPI")
        return _without_torn(notes, made, begin)


def _is_wrong(notes: Notes) -> NDArray[np.bool_]:
    enter, leave = notes["enter"], notes["leave"]
    wrong = (
        (enter < 0) | (enter > _LARGEST) | (leave < 0) | (leave > _LARGEST) | ((leave > 0) & (leave < enter))
    )
    return np.asarray(wrong | (notes["call"] >= len(calls())) | (np.abs(notes["bytes"]) > _MOST_BYTES))


def _without_torn(notes: Notes, made: NDArray[np.bool_], first: int) -> Notes:
    """Return notes from the `first` on without the parts of a call that is not there itself."""
    part = np.flatnonzero(made & ((notes["flags"] & PART) > 0))
    if len(part):
        of = notes["bytes"][part] - first
        main = np.clip(of, 0, len(notes) - 1)
        is_part = (notes["flags"] & PART) > 0
        notes["enter"][part[(main != of) | ~made[main] | is_part[main]]] = 0
    return notes


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The notes and facts of all ranks, in order."""

    facts: Sequence[Facts]
    notes: Sequence[Notes | Kept]

    def is_threaded(self) -> bool:
        """Tell whether any rank called MPI from several threads."""
        return any(
            (own[begin : begin + _BLOCK]["flags"] >> THREAD_SHIFT > 1).any()
            for own in self.notes
            for begin in range(0, len(own), _BLOCK)
        )


def read(folder: Path) -> Recorded:
    """Read what the ranks of a job left in `folder`; raises ResultsError where something is missing or wrong.

    Whatever is torn because its rank is at work, or was killed, is left out.
    """
    found = {facts.rank: facts for facts in map(_facts, sorted(folder.glob("facts.*"))) if facts.size}
    if not found:
        if not folder.is_dir():
            raise ResultsError(f"{folder}: there is no such folder")
        raise ResultsError(
            f"{folder}: no rank has recorded anything: the program has not called MPI_Init, or uses an MPI "
            "library that is linked statically"
        )
    size = next(iter(found.values())).size
    if missing := sorted(set(range(size)) - set(found)):
        raise ResultsError(
            f"{folder}: nothing was recorded of {len(missing)} of {size} ranks, as {missing[0]}"
        )
    facts = [found[rank] for rank in range(size)]
    return Recorded(facts=facts, notes=[Kept(folder / f"notes.{rank}") for rank in range(size)])


def _size(path: Path) -> int:
    """Return the size of a file of a record; raises ResultsError where it is none."""
    if not path.is_file():
        raise ResultsError(f"{path}: is {'no file' if path.exists() else 'missing'}")
    return path.stat().st_size


def _facts(path: Path) -> Facts:
    """Return what a rank said so far; a last line without its end is being written."""
    if _size(path) > _LONGEST_BYTES:
        raise ResultsError(f"{path}: has more than {_LONGEST_BYTES >> 20} MiB")
    facts = Facts()
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    for number, line in enumerate(lines, start=1):
        word, _, rest = line.partition(" ")
        try:
            _take(facts, word, rest)
        except (ValueError, IndexError, KeyError):
            raise ResultsError(f"{path}:{number}: '{clean(line)[:60]}' is no fact of a rank") from None
    try:
        steady = abs(facts.clock().drift) < _MOST_DRIFT
    except (ClockError, ZeroDivisionError):
        steady = False
    if not steady:
        raise ResultsError(f"{path}: its clock and that of rank 0 contradict each other")
    return facts


def _take(facts: Facts, word: str, rest: str) -> None:
    """Add what a line says; raises ValueError or KeyError where it says nothing that can be."""
    match word:
        case "host" | "library":
            setattr(facts, word, clean(rest))
        case "pid" | "node":
            setattr(facts, word, _number(rest, MOST_RANKS if word == "node" else _LARGEST))
        case "comm":
            head, _, ranks = rest.partition(":")
            number, how, parent = head.split()
            facts.comms[_number(number, _MOST_COMMS)] = _communicator(clean(how), int(parent), ranks)
        case "phase":
            level, _, name = rest.partition(" ")
            facts.phases[int(level)] = clean(name)
        case _:
            numbers = tuple(_number(each, _LARGEST) for each in rest.split())
            if len(numbers) != _COUNTS.get(word, len(numbers)):
                raise ValueError
            _take_numbers(facts, word, numbers)


def _number(text: str, most: int) -> int:
    number = int(text)
    if not 0 <= number <= most:
        raise ValueError
    return number


def _take_numbers(facts: Facts, word: str, numbers: tuple[int, ...]) -> None:
    match word:
        case "rank":
            facts.rank, facts.size = numbers
            if not facts.rank < facts.size <= MOST_RANKS:
                raise ValueError
        case "cpus":
            facts.cpus = numbers
        case "begin":
            facts.begin = (numbers[0], numbers[1])
        case "end":
            (facts.end_ns,) = numbers
        case "used":
            facts.used = numbers
        case "twin":
            facts.comms[_number(str(numbers[0]), _MOST_COMMS)] = facts.comms[numbers[1]]
        case "trip":
            facts.trips[facts.end_ns is not None].append(numbers)


def _communicator(how: str, parent: int, text: str) -> Communicator:
    text, _, near = text.partition("near")
    own, _, remote = text.partition("remote")
    return Communicator(
        how=how,
        parent=parent,
        members=tuple(_ranks(own)),
        remote=tuple(_ranks(remote)),
        near=tuple(int(rank) for rank in near.split() if int(rank) >= 0),
    )


def _ranks(text: str) -> Iterator[int]:
    left = MOST_RANKS
    for run in text.split():
        first, _, count = run.partition("*")
        left -= (length := _number(count or "1", left))
        yield from range(int(first), int(first) + length)


@dataclass(frozen=True, kw_only=True)
class Group:
    """A communicator as all its members know it."""

    name: str  # the same for those that one call has made, such as the rows of a grid
    members: tuple[int, ...]
    remote: tuple[int, ...]
    near: dict[int, tuple[int, ...]]  # by member: its place among them, as are the values


def groups(facts: Sequence[Facts]) -> tuple[list[Group], list[NDArray[np.int64]]]:
    """Return all communicators, and for each rank which of them its numbers 0, 1, … mean; 0 means none.

    Ranks make the communicators that have the same members in one order, so a rank's k-th of them is
    everybody's. One with processes that are not of this world, as those that a program has spawned, has none.
    """
    numbers: dict[tuple[tuple[int, ...], tuple[int, ...], int], int] = {}
    found: list[Group] = []
    means: list[NDArray[np.int64]] = []
    for own in facts:
        seen: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        names = _names(own.comms)
        table = np.full(2 + max(own.comms, default=0), -1, np.int64)
        for number, comm in own.comms.items():
            if not _is_of_world(comm, own.rank, len(facts)):
                continue
            sides = comm.members, comm.remote
            seen[sides] = seen.get(sides, 0) + 1
            place = numbers.setdefault((*sides, seen[sides]), len(found))
            if place == len(found):
                found.append(Group(name=names[number], members=sides[0], remote=sides[1], near={}))
            if comm.near:
                found[place].near[comm.members.index(own.rank)] = comm.near
            table[number] = place
        means.append(table)
    return found, means


def _is_of_world(comm: Communicator, rank: int, size: int) -> bool:
    """Tell whether a communicator has ranks of the world alone, each once, and this one."""
    sides = *comm.members, *comm.remote
    return (
        rank in comm.members
        and len({*sides}) == len(sides)
        and 0 <= min(sides) <= max(sides) < size
        and max(comm.near, default=0) < len(comm.members)
    )


def _names(comms: Mapping[int, Communicator]) -> dict[int, str]:
    """Return a name for every communicator: world, split, cart, cart.sub, split 2, …."""
    names: dict[int, str] = {}
    counts: dict[str, int] = {}
    for number, comm in comms.items():
        how = comm.how.lower().removeprefix("comm_").removesuffix("_create").replace("cart_sub", "sub")
        parent = names.get(comm.parent, "world")
        name = how if parent == "world" else f"{parent}.{how}"
        counts[name] = counts.get(name, 0) + 1
        names[number] = name if counts[name] == 1 else f"{name} {counts[name]}"
    return names
