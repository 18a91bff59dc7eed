"""Whether a program under the recorder still makes progress, from the notes that it writes meanwhile."""

from __future__ import annotations

import time
from pathlib import Path

from pscale.errors import ResultsError
from pscale.watch.notes import read
from pscale.watch.rows import rows_of


class Progress:
    """The record in `folder` of a program that hangs when every rank is in MPI for `hang_after_s` seconds."""

    def __init__(self, folder: Path, hang_after_s: float):
        self._folder, self._hang_after_s = folder, hang_after_s
        self._counts: list[int] = []
        self._since = time.monotonic()

    def is_stuck(self) -> bool:
        """Return whether no rank has made a call for so long, and none of them computes."""
        counts = [_count(path) for path in sorted(self._folder.glob("notes.*")) if path.is_file()]
        if counts != self._counts or not counts:
            self._counts, self._since = counts, time.monotonic()
            return False
        return time.monotonic() - self._since > self._hang_after_s and not self._computes()

    def _computes(self) -> bool:
        """Return whether some rank is in no call, or has not reached MPI_Init yet."""
        try:
            recorded = read(self._folder)
            rows, _ = rows_of(recorded)
        except ResultsError:
            return True
        over = {facts.rank for facts in recorded.facts if facts.end_ns is not None}
        return len(over | set(rows.rank[rows.open].tolist())) < len(recorded.facts)


def _count(path: Path) -> int:
    """Return how many notes a rank has written: the number in its first."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(8), "little")
