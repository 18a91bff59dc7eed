"""Where the ranks of a program were when its record ends: in which call, waiting for whom."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from pscale.ranges import as_ranges
from pscale.watch.matching import partners
from pscale.watch.notes import ANYBODY, calls
from pscale.watch.settle import Settled


def last_calls(settled: Settled) -> str:
    """Say in which call every rank was that had not returned, and which ranks were in none."""
    rows, functions = settled.rows, calls()
    inside: defaultdict[str, list[int]] = defaultdict(list)
    for row in np.flatnonzero(rows.open & (rows.thread == 0)).tolist():
        inside[f"in MPI_{functions[rows.call[row]].name}{_of(settled, row)}"].append(int(rows.rank[row]))
    busy = {rank for found in inside.values() for rank in found}
    if outside := sorted(set(range(len(rows.places) - 1)) - busy):
        inside["in no call"] = outside
    return "; ".join(f"{_ranks(found)} {place}" for place, found in inside.items()) + "."


def _of(settled: Settled, row: int) -> str:
    """Name the communicator of a call, and the other end of a message."""
    rows = settled.rows
    if rows.group[row] < 0:
        return ""
    group = settled.groups[rows.group[row]]
    said = f" over {group.name}"
    if not rows.is_kind("SEND", "RECEIVE", "BOTH", "PROBE")[row]:
        return said
    if rows.peer[row] == ANYBODY:
        return f" from any rank{said}"
    if rows.peer[row] < 0:
        return said
    (other,) = partners(rows, settled.groups, np.array([row]))
    return f" {'to' if rows.is_kind('SEND', 'BOTH')[row] else 'from'} rank {other}{said}"


def _ranks(numbers: list[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {as_ranges(numbers, ', ')}"
