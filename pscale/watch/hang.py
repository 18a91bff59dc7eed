"""Whether a program under the recorder still makes progress, and in which calls its ranks are otherwise."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from pscale.errors import ResultsError
from pscale.runs.host import as_ranges
from pscale.runs.launch_folder import LaunchFolder
from pscale.watch.notes import ANYBODY, FRUITLESS, PART, THREAD_SHIFT, NotesFile, calls, program_events, read
from pscale.watch.settle import SettledCalls, partners

_BLOCK = 1 << 18
_LEAST_SHARE = 0.1  # of a loop of tests that is spent in them: one that computes between them spends less
_MANY, _LONG_NS = 10, 1_000_000  # tests in vain that are a loop, and how long those last that are not counted


def last_calls(settled: SettledCalls) -> str:
    """Say in which call every rank was that had not returned, and which ranks were in none."""
    rows = settled.rows
    places: defaultdict[str, list[int]] = defaultdict(list)
    for row in np.flatnonzero(rows.open & (rows.thread == 0)).tolist():
        places[f"in {_call(settled, row)}"].append(int(rows.rank[row]))
    for rank in sorted(set(range(len(rows.places) - 1)) - {rank for of in places.values() for rank in of}):
        places[_loop(settled, rank) or "in no call"].append(rank)
    others: defaultdict[str, list[int]] = defaultdict(list)
    for row in np.flatnonzero(rows.open & (rows.thread > 0)).tolist():
        others[f"also in {_call(settled, row)}, in another thread"].append(int(rows.rank[row]))
    texts = [f"{_ranks(sorted({*ranks}))} {place}" for place, ranks in [*places.items(), *others.items()]]
    return "; ".join(texts) + "."


def _call(settled: SettledCalls, row: int) -> str:
    rows = settled.rows
    return f"MPI_{calls()[rows.call[row]].name}{'_c' * int(rows.large[row])}{_of(settled, row)}"


def _loop(settled: SettledCalls, rank: int) -> str:
    """Name the test that the main thread of a rank made last, again and again and in vain; empty: none."""
    rows = settled.rows
    main_calls = np.arange(rows.places[rank], rows.places[rank + 1])
    main_calls = main_calls[(rows.thread[main_calls] == 0) & (rows.main[main_calls] == main_calls)]
    if not len(main_calls) or not rows.fruitless[main_calls[-1]]:
        return ""
    row = int(main_calls[-1])
    probes = rows.is_kind("PROBE", "RECEIVE")[row]  # their tag is that of a message
    if (rows.leave[row] - rows.enter[row] < _LONG_NS) if probes else (rows.tag[row] + 2 < _MANY):
        return ""
    about = int(settled.start[row])
    return f"in a loop of {_call(settled, row)}" + (f" for {_call(settled, about)}" if about >= 0 else "")


def _of(settled: SettledCalls, row: int) -> str:
    """Name the communicator of a call, and the other end of a message."""
    rows = settled.rows
    if rows.group[row] < 0:
        return ""
    group = settled.groups[rows.group[row]]
    over = f" over {group.name}"
    if not rows.is_kind("SEND", "RECEIVE", "BOTH", "PROBE")[row]:
        return over
    if rows.peer[row] == ANYBODY:
        return f" from any rank{over}"
    if rows.peer[row] < 0:
        return over
    (other,) = partners(rows, settled.groups, np.array([row]))
    return f" {'to' if rows.is_kind('SEND', 'BOTH')[row] else 'from'} rank {other}{over}"


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {as_ranges(numbers, ', ')}"


class Progress:
    """The record in `folder` of a program that hangs when every rank is in MPI for `hang_after_s` seconds."""

    def __init__(self, folder: Path, hang_after_s: float):
        self.folder, self._hang_after_s = LaunchFolder(folder), hang_after_s
        self._counts: list[int] = []
        self._since = time.monotonic()
        self._polled: dict[tuple[int, int], int] = {}  # when threads that test again and again did so last

    def is_stuck(self) -> bool:
        """Return whether no rank has made a call for so long, and none of them computes."""
        counts = [*self._counted()]
        if counts != self._counts or not counts:
            self._counts, self._since = counts, time.monotonic()
            return False
        return time.monotonic() - self._since > self._hang_after_s and not self._computes()

    def is_joining(self) -> bool:
        """Return whether a rank is in MPI_Init, where it has a mark; it returns when all have called it."""
        return bool(self.folder.names("joining.*"))

    def ending(self, rank: int) -> str:
        """Say how a rank ended, as far as the last of its processes had the time to tell."""
        codes = [
            each.code for each in program_events(self.folder) if each.what == "ended" and each.rank == rank
        ]
        return f"ended with exit code {codes[-1]}" if codes else "ended"

    def _counted(self) -> Iterator[int]:
        """Yield how many notes each rank has written: the number in its first."""
        for name in self.folder.names("notes.*"):
            with suppress(OSError), self.folder.open(name) as file:
                yield int.from_bytes(file.read(8), "little")

    def _computes(self) -> bool:
        """Return whether some rank may do something else than wait in MPI, or has not reached MPI_Init yet.

        A rank waits when all its threads that have called MPI are in calls, or test again and again. After
        MPI_Finalize it is in none, until its process ends.
        """
        before, self._polled = self._polled, {}
        try:
            recorded = read(self.folder)
            computes, alive = bool(recorded.warnings), False
            for rank, notes in enumerate(recorded.notes):
                assert isinstance(notes, NotesFile)
                if notes.has_ended:
                    continue
                inside, polls = _waiting(notes)
                self._polled |= {(rank, thread): at for thread, at in polls.items()}
                inside |= {thread for thread, at in polls.items() if at > before.get((rank, thread), at)}
                computes |= len(inside) < notes.threads
                alive = True
        except ResultsError:
            return True
        return computes or not alive


def _waiting(notes: NotesFile) -> tuple[set[int], dict[int, int]]:
    """Return which threads are in a call, and when those last tested that do so in a loop."""
    inside: set[int] = set()
    last: dict[int, np.void] = {}
    for begin in range(0, len(notes), _BLOCK):
        block = notes[begin : begin + _BLOCK]
        calls = block[(block["enter"] > 0) & ((block["flags"] & PART) == 0)]
        thread = calls["flags"] >> THREAD_SHIFT
        inside |= set(thread[calls["leave"] == 0].tolist())
        for number in np.unique(thread[thread > 0]).tolist():
            last[number] = calls[np.flatnonzero(thread == number)[-1]]
    polls = {number: int(call["leave"]) for number, call in last.items() if _is_loop(call)}
    return inside, polls


def _is_loop(call: np.void) -> bool:
    inside_ns, all_ns = int(call["bytes"]), int(call["leave"]) - int(call["enter"])
    return bool(call["flags"] & FRUITLESS) and inside_ns > _LEAST_SHARE * all_ns
