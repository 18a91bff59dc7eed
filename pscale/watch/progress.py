"""Whether a program under the recorder still makes progress, from the notes that it writes meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from pscale.errors import ResultsError
from pscale.launch_folder import LaunchFolder
from pscale.watch.notes import FRUITLESS, PART, THREAD_SHIFT, Kept, logged, read

_BLOCK = 1 << 18
_LEAST_SHARE = 0.1  # of a loop of tests that is spent in them: one that computes between them spends less


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
        codes = [each.code for each in logged(self.folder) if each.what == "ended" and each.rank == rank]
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
                assert isinstance(notes, Kept)
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


def _waiting(notes: Kept) -> tuple[set[int], dict[int, int]]:
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
