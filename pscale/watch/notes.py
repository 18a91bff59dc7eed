"""What the recorder has left: the notes of every rank's calls, and the facts beside them.

`calls.h` is the table of calls from which the recorder is made; its kinds and modes are read from there.
"""

from __future__ import annotations

import heapq
import os
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pscale.config.choices import MOST_RANKS
from pscale.errors import ResultsError, clean
from pscale.runs.host import as_ranges
from pscale.runs.launch_folder import LaunchFolder
from pscale.worker.clock import Clock, ClockError, Offset, tightest

PART, FRUITLESS, CANCELLED, LARGE, THREAD_SHIFT = 1, 2, 4, 8, 4  # flags, as in notes.h; cancelled: or failed
NOBODY, ANYBODY = -1, -2
FACTS = "facts.*"  # the files of a record that say what it is of, one a rank
_PROGRAMS, _LONGEST_LOG, _MOST_NAMES = "programs", 1 << 17, 3
_LOGGED = re.compile(r"(\w+) (\d) (-?\d{1,9}) (\d{1,9}) (.*)", re.ASCII)
_BLOCK = 1 << 18
_LOOKS, _LOOK = 4096, 64  # at the notes of all ranks, to learn when they were written, and how many at once
_LARGEST = 1 << 62  # of a number: times in ns, and differences of two, fit in 64 bits
_LONGEST_BYTES, _MOST_BYTES = 1 << 28, 1 << 50  # of facts; of a call
_MOST_DRIFT = 0.01  # of two clocks: ten times of what they can
_MOST_COMMS, _MOST_NOTES = 1 << 20, 1 << 26  # of a rank, as in notes.h
_FULL = {-1: "the record has as many calls as it can", -2: "it has made too many communicators"}
_COUNTS = {
    "rank": 2,
    "begin": 2,
    "end": 1,
    "used": 4,
    "trip": 3,
    "free": 1,
    "cancels": 0,
}  # of numbers behind a word
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
    fields_ = dict(re.findall(r"\.(\w+) = (\w+)", fields))
    kind, mode = fields_["kind"], fields_.get("mode", "BLOCKS")
    verb = _MESSAGES.get(kind) or next((ours for mpi, ours in _VERBS.items() if name.startswith(mpi)), "")
    if "made" in fields_ or kind == "FREE":
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

    world: str = ""  # the same for all ranks that can exchange messages
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
    totals: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by function: calls, ns, bytes given
    comms: dict[int, Communicator] = field(default_factory=dict)
    frees: list[tuple[int, int]] = field(default_factory=list)  # how many there were, and which was freed
    cancels: bool = False  # it calls MPI_Cancel
    phases: dict[int, str] = field(default_factory=dict)
    trips: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = field(default_factory=lambda: ([], []))

    def clock(self) -> Clock:
        """Return the way to rank 0's clock, from the round trips of the first rank of this one's node."""
        exact = Offset(at_ns=0, ahead_ns=0, bound_ns=0)
        before, after = (tightest(*np.array(trips, np.int64).T) if trips else None for trips in self.trips)
        before = before or exact
        later = Offset(at_ns=before.at_ns + 1, ahead_ns=before.ahead_ns, bound_ns=before.bound_ns)
        return Clock(before=before, after=after or later)


class NotesFile:
    """The whole notes in the file of a rank, of which only what is asked for comes into memory."""

    def __init__(self, folder: LaunchFolder, name: str):
        self._folder, self._name, self._path = folder, name, folder.path / name
        with self._open() as file:
            length = min(_size(file) // NOTE.itemsize, _MOST_NOTES)
            if not length:
                raise ResultsError(f"{self._path}: is empty")
            header = np.frombuffer(file.read(NOTE.itemsize), NOTE)[0]  # in the place of the first
        self.header = {field_: int(header[field_]) for field_ in NOTE.names or ()}
        if not 0 <= self.header["leave"] <= _LARGEST:
            raise ResultsError(f"{self._path}: its first line is damaged")
        self._count = length if self.stopped_ns else min(max(1, self.header["enter"]), length)

    @property
    def stopped_ns(self) -> int:
        """When recording stopped before the program did; 0: it did not."""
        return self.header["leave"]

    @property
    def threads(self) -> int:
        """How many threads that have called MPI are alive."""
        return max(1, self.header["comm"])

    @property
    def has_ended(self) -> bool:
        """Tell whether the process is over."""
        return self.header["peer"] != 0

    @property
    def reason(self) -> str:
        """Why recording stopped."""
        number = self.header["bytes"]
        return _FULL.get(number) or (os.strerror(number) if 0 < number < 1 << 12 else "not known")

    def cut(self, until_ns: int) -> None:
        """Leave out the calls that began later."""
        blocks = range(0, self._count, _BLOCK)
        past = bisect_right(blocks, until_ns, key=self._begins)  # threads may write theirs in another order
        for begin in reversed(blocks[: past + 1]):
            enter = self[begin : begin + _BLOCK]["enter"]
            if len(early := np.flatnonzero((enter > 0) & (enter <= until_ns))):
                self._count = begin + int(early[-1]) + 1
                return
        self._count = 1

    def _begins(self, block: int) -> int:
        """Return when the first call of a block began."""
        return _first(self[block : block + _BLOCK]) or _LARGEST

    def _open(self) -> BinaryIO:
        return _open_file(self._folder, self._name)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, part: slice) -> Notes:
        begin, end, _ = part.indices(self._count)
        with self._open() as file:
            notes = np.fromfile(file, NOTE, max(0, end - begin), offset=begin * NOTE.itemsize)
        if begin == 0:
            notes[:1] = 0
        made = notes["enter"] > 0
        wrong = _is_wrong(notes) & made
        if wrong.any():
            raise ResultsError(f"{self._path}: note {begin + int(wrong.argmax())} is of no call of MPI")
        return _without_torn(notes, made, begin)


def _first(notes: Notes) -> int:
    """Return when the first call of these began; 0: none is written."""
    enter = notes["enter"]
    return int(enter[np.argmax(enter > 0)])


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
class Piece:
    """A part of a record that is analysed; everything is by rank."""

    begins: Sequence[int]  # the first note
    ends: Sequence[int]
    phases: Sequence[int] = ()  # the level of MPI_Pcontrol in which it begins
    templates: Sequence[Notes] = ()  # of the persistent requests that there are

    def __len__(self) -> int:
        """How many notes all ranks have in it."""
        return sum(self.ends) - sum(self.begins)


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The notes and facts of all ranks, in order."""

    facts: Sequence[Facts]
    notes: Sequence[Notes | NotesFile]
    warnings: Sequence[str] = ()
    drawn: Sequence[Piece] = ()  # the pieces that are analysed; none: all of it

    @cached_property
    def groups(self) -> tuple[list[Group], list[NDArray[np.int64]]]:
        """All communicators, and for each rank which of them its numbers 0, 1, … mean; 0 means none."""
        return groups(self.facts)

    @property
    def pieces(self) -> Sequence[Piece]:
        """What of it is analysed."""
        return self.drawn or [Piece(begins=[0] * len(self.notes), ends=[*map(len, self.notes)])]

    def is_threaded(self) -> bool:
        """Tell whether any rank called MPI from several threads."""
        return any(
            (notes[begin : begin + _BLOCK]["flags"] >> THREAD_SHIFT > 1).any()
            for notes in self.notes
            for begin in range(0, len(notes), _BLOCK)
        )


def read(folder: Path | LaunchFolder) -> Recorded:
    """Read what the ranks of a job left in `folder`; raises ResultsError where something is missing or wrong.

    Whatever is torn because its rank is at work, or was killed, is left out. Of several jobs it is the
    largest, and of several of its size the last. Where a rank stopped recording, the record of all ends.
    """
    folder = _folder(folder)
    worlds = _worlds(folder)
    if not worlds:
        raise ResultsError(f"{folder.path}: nothing was recorded: {_why_nothing(folder)}")
    ranks = max(
        worlds.values(), key=lambda ranks: (len(ranks), max(each.begin for each, _ in ranks.values()))
    )
    size = next(iter(ranks.values()))[0].size
    if missing := sorted(set(range(size)) - set(ranks)):
        raise ResultsError(
            f"{folder.path}: nothing was recorded for {len(missing)} of {size} ranks, such as {missing[0]}"
        )
    every = [ranks[rank] for rank in range(size)]
    notes = [NotesFile(folder, name.replace("facts", "notes", 1)) for _, name in every]
    record = Recorded(
        facts=[facts for facts, _ in every], notes=notes, warnings=_several_worlds(worlds, size)
    )
    return _cut_record(folder.path, record, notes) if any(kept.stopped_ns for kept in notes) else record


def worlds(folder: Path | LaunchFolder) -> tuple[list[list[Facts]], list[str]]:
    """Return the facts of each world that began so far, and the names of all programs that were started."""
    folder = _folder(folder)
    every = [[facts for facts, _ in ranks.values()] for ranks in _worlds(folder).values()]
    return every, [*dict.fromkeys(each.name for each in program_events(folder))]


def _folder(folder: Path | LaunchFolder) -> LaunchFolder:
    try:
        return folder if isinstance(folder, LaunchFolder) else LaunchFolder(folder)
    except OSError:
        raise ResultsError(f"{folder}: there is no such folder") from None


def _worlds(folder: LaunchFolder) -> Mapping[str, dict[int, tuple[Facts, str]]]:
    """Return by world and rank what it said, and the name of its file."""
    by_world: defaultdict[str, dict[int, tuple[Facts, str]]] = defaultdict(dict)
    for name in sorted(folder.names(FACTS)):
        if (facts := _facts(folder, name)).size:
            by_world[facts.world][facts.rank] = facts, name
    return by_world


def _why_nothing(folder: LaunchFolder) -> str:
    """Say what is known of the programs of which nothing was recorded, and what to try."""
    lines = program_events(folder)
    names = ", ".join([*dict.fromkeys(each.name for each in lines)][-_MOST_NAMES:])
    if begun := {each.rank: each for each in lines if each.what.startswith("MPI_Init")}:
        others = [each for rank, each in sorted(_last_of(lines).items()) if rank not in begun]
        endings = [
            f"{each.name} of rank {each.rank} "
            + (f"ended with exit code {each.code}" if each.what == "ended" else "had not called MPI_Init")
            for each in others[:_MOST_NAMES]
        ]
        calls = ", ".join(sorted({f"{each.name} called {each.what}" for each in begun.values()}))
        advice = ". Try the program without `pscale watch`; `pscale doctor` checks /dev/shm and limits"
        why = "" if any(each.what == "ended" for each in others) else advice
        return "; ".join([*endings, f"{calls}, which did not return{why}"])
    if not lines:
        return (
            "no program loaded the recorder, or none could write here. If one was started, a wrapper may "
            "have removed LD_PRELOAD: start it there with `python -m pscale.watch PROGRAM`. Statically "
            "linked programs cannot be recorded"
        )
    if any(each.has_mpi for each in lines):
        return f"{names} loaded an MPI library, but never called MPI_Init or MPI_Init_thread"
    return f"{names} loaded no MPI library (libmpi*.so) and called neither MPI_Init nor MPI_Init_thread"


class ProgramEvent(NamedTuple):
    """What a program did: loaded (it began), MPI_Init…, or ended without that, with an exit code."""

    what: str
    has_mpi: bool
    rank: int  # as the launcher counts, -1: it has none
    code: int
    name: str


def program_events(folder: LaunchFolder) -> list[ProgramEvent]:
    """Return what the programs under a record did, in order."""
    try:
        with folder.open(_PROGRAMS) as file:
            lines = [clean(line) for line in file.read(_LONGEST_LOG).decode(errors="replace").split("\n")]
    except OSError:
        return []
    matches = filter(None, map(_LOGGED.fullmatch, lines))
    return [ProgramEvent(each[1], each[2] == "1", int(each[3]), int(each[4]), each[5]) for each in matches]


def _last_of(lines: Sequence[ProgramEvent]) -> dict[int, ProgramEvent]:
    """Return the last that the processes of each rank did."""
    return {each.rank: each for each in lines if each.rank >= 0}


def _several_worlds(worlds: Mapping[str, Mapping[int, object]], size: int) -> tuple[str, ...]:
    if len(worlds) == 1:
        return ()
    return (
        f"{len(worlds)} MPI jobs were recorded, of {as_ranges(sorted({*map(len, worlds.values())}), ', ')} "
        f"ranks, which cannot reach each other. This is the last one of {size}.",
    )


def _cut_record(folder: Path, record: Recorded, notes: Sequence[NotesFile]) -> Recorded:
    """Return a record up to the time at which the first rank stopped recording."""
    clocks = [facts.clock() for facts in record.facts]
    stops = {rank: clocks[rank].at(kept.stopped_ns) for rank, kept in enumerate(notes) if kept.stopped_ns}
    first = min(stops, key=lambda rank: stops[rank])
    until, began = stops[first], max(c.at(f.begin[1]) for c, f in zip(clocks, record.facts, strict=True))
    if until <= began or not all(facts.begin[1] for facts in record.facts):
        raise ResultsError(f"{folder}: rank {first} could not record anything: {notes[first].reason}")
    _cut_at(record, until)
    stopped = (
        f"The record ends {(until - began) * 1e-9:.3g} s after MPI was initialised: "
        f"rank{'s' if len(stops) > 1 else ''} {as_ranges(sorted(stops), ', ')} stopped recording "
        f"({notes[first].reason}). The program continued."
    )
    return replace(record, warnings=(stopped, *record.warnings))


def _cut_at(recorded: Recorded, until: int) -> None:
    """Leave out what began later than a time of rank 0's clock."""
    for facts, notes in zip(recorded.facts, recorded.notes, strict=True):
        until_ns, clock = until, facts.clock()
        for _ in range(3):  # the clock's own time: its drift is far below 1
            until_ns += until - clock.at(until_ns)
        assert isinstance(notes, NotesFile)
        notes.cut(min(max(until_ns, 0), _LARGEST))
        facts.end_ns, facts.used = until_ns, ()


def shorten(recorded: Recorded, most: int) -> None:
    """Leave out what began later than about `most` notes of all ranks together."""
    times, weights = [], []
    looks = max(4, _LOOKS // len(recorded.notes))
    for facts, notes in zip(recorded.facts, recorded.notes, strict=True):
        places = np.unique(np.linspace(1, len(notes) - 1, looks).astype(np.int64)) if len(notes) > 1 else ()
        looked = [_first(notes[place : place + _LOOK]) for place in places]
        begun = [facts.clock().at(each) for each in looked if each]
        times += begun
        weights += [len(notes) / max(1, len(begun))] * len(begun)
    if not times:
        return
    order = np.argsort(times)
    before = int(np.searchsorted(np.cumsum(np.array(weights)[order]), most, side="right"))
    _cut_at(recorded, int(times[order[max(0, before - 1)]]))


def _open_file(folder: LaunchFolder, name: str) -> BinaryIO:
    """Open a file of a record; raises ResultsError where it is none."""
    try:
        return folder.open(name)
    except FileNotFoundError:
        raise ResultsError(f"{folder.path / name}: is missing") from None
    except OSError as error:
        raise ResultsError(f"{folder.path / name}: {error.strerror}") from None


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _facts(folder: LaunchFolder, name: str) -> Facts:
    """Return what a rank said so far; a last line without its end is being written."""
    path = folder.path / name
    with _open_file(folder, name) as file:
        if _size(file) > _LONGEST_BYTES:
            raise ResultsError(f"{path}: has more than {_LONGEST_BYTES >> 20} MiB")
        text = file.read(_LONGEST_BYTES).decode("utf-8", errors="replace")
    facts = Facts()
    lines = text.split("\n")[:-1]
    for number, line in enumerate(lines, start=1):
        word, _, rest = line.partition(" ")
        try:
            _parse_line(facts, word, rest)
        except (ValueError, IndexError, KeyError):
            raise ResultsError(
                f"{path}:{number}: '{clean(line)[:60]}' is not a valid line of a record"
            ) from None
    try:
        steady = abs(facts.clock().drift) < _MOST_DRIFT
    except (ClockError, ZeroDivisionError):
        steady = False
    if not steady:
        raise ResultsError(f"{path}: its clock and that of rank 0 contradict each other")
    return facts


def _parse_line(facts: Facts, word: str, rest: str) -> None:
    """Add what a line says; raises ValueError or KeyError where it says nothing that can be."""
    match word:
        case "host" | "library" | "world":
            setattr(facts, word, clean(rest))
        case "pid" | "node":
            setattr(facts, word, _number(rest, MOST_RANKS if word == "node" else _LARGEST))
        case "comm":
            head, _, ranks = rest.partition(":")
            number, how, parent = head.split()
            facts.comms[_number(number, _MOST_COMMS)] = _communicator(clean(how), int(parent), ranks)
        case "twin":
            twin, parent, *made_by = rest.split()
            old = facts.comms[int(parent)]
            made = replace(old, how=clean(made_by[0]), parent=int(parent)) if made_by else old
            facts.comms[_number(twin, _MOST_COMMS)] = made
        case "total":
            name, *values = rest.split()
            facts.totals[_function(name)] = (*(_number(each, _LARGEST) for each in values),)
            _, _, _ = facts.totals[name]
        case "phase":
            level, _, name = rest.partition(" ")
            facts.phases[int(level)] = clean(name)
        case _:
            numbers = tuple(_number(each, _LARGEST) for each in rest.split())
            if len(numbers) != _COUNTS.get(word, len(numbers)):
                raise ValueError
            _parse_numbers(facts, word, numbers)


def _function(name: str) -> str:
    if not any(call.name == name for call in calls()):
        raise ValueError
    return name


def _number(text: str, most: int) -> int:
    number = int(text)
    if not 0 <= number <= most:
        raise ValueError
    return number


def _parse_numbers(facts: Facts, word: str, numbers: tuple[int, ...]) -> None:
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
        case "free":
            facts.frees.append((len(facts.comms), numbers[0]))
        case "cancels":
            facts.cancels = True
        case "trip":
            facts.trips[facts.end_ns is not None].append(numbers)


def _communicator(how: str, parent: int, text: str) -> Communicator:
    text, _, near = text.partition("near")
    members, _, remote = text.partition("remote")
    return Communicator(
        how=how,
        parent=parent,
        members=tuple(_ranks(members)),
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
    every: list[Group] = []
    means: list[NDArray[np.int64]] = []
    for rank_facts in facts:
        seen: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        names = _names(rank_facts)
        table = np.full(2 + max(rank_facts.comms, default=0), -1, np.int64)
        for number, comm in rank_facts.comms.items():
            if not _is_of_world(comm, rank_facts.rank, len(facts)):
                continue
            sides = comm.members, comm.remote
            seen[sides] = seen.get(sides, 0) + 1
            place = numbers.setdefault((*sides, seen[sides]), len(every))
            if place == len(every):
                every.append(Group(name=names[number], members=sides[0], remote=sides[1], near={}))
            if comm.near:
                every[place].near[comm.members.index(rank_facts.rank)] = comm.near
            table[number] = place
        means.append(table)
    return every, means


def _is_of_world(comm: Communicator, rank: int, size: int) -> bool:
    """Tell whether a communicator has ranks of the world alone, each once, and this one."""
    sides = *comm.members, *comm.remote
    return (
        rank in comm.members
        and len({*sides}) == len(sides)
        and 0 <= min(sides) <= max(sides) < size
        and max(comm.near, default=0) < len(comm.members)
    )


def _names(facts: Facts) -> dict[int, str]:
    """Return a name for every communicator: world, split, cart, cart.sub, split 2, ….

    One that is made after another of the same call was freed has its name: it has taken its place.
    """
    names: dict[int, str] = {}
    alive: dict[int, tuple[str, int]] = {}
    unused: defaultdict[str, list[int]] = defaultdict(list)
    counts: defaultdict[str, int] = defaultdict(int)
    frees = iter([*facts.frees, (len(facts.comms) + 1, 0)])
    before, freed = next(frees)
    for place, (number, comm) in enumerate(facts.comms.items()):
        while before <= place:
            if freed in alive:
                name, count = alive.pop(freed)
                heapq.heappush(unused[name], count)
            before, freed = next(frees)
        how = comm.how.lower().removeprefix("comm_").removesuffix("_create").replace("cart_sub", "sub")
        parent = names.get(comm.parent, "world")
        name = how if parent == "world" else f"{parent}.{how}"
        if unused[name]:
            count = heapq.heappop(unused[name])
        else:
            count = counts[name] = counts[name] + 1
        alive[number] = name, count
        names[number] = name if count == 1 else f"{name} {count}"
    return names
