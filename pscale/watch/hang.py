"""Where the ranks of a program were when its record ends: in which call, waiting for whom."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from pscale.ranges import as_ranges
from pscale.watch.matching import partners
from pscale.watch.notes import ANYBODY, calls
from pscale.watch.settle import Settled

_MANY, _LONG_NS = 10, 1_000_000  # tests in vain that are a loop, and how long those last that are not counted


def last_calls(settled: Settled) -> str:
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
    texts = [f"{_ranks(sorted({*found}))} {place}" for place, found in [*places.items(), *others.items()]]
    return "; ".join(texts) + "."


def _call(settled: Settled, row: int) -> str:
    rows = settled.rows
    return f"MPI_{calls()[rows.call[row]].name}{'_c' * int(rows.large[row])}{_of(settled, row)}"


def _loop(settled: Settled, rank: int) -> str:
    """Name the test that the main thread of a rank made last, again and again and in vain; empty: none."""
    rows = settled.rows
    own = np.arange(rows.places[rank], rows.places[rank + 1])
    own = own[(rows.thread[own] == 0) & (rows.main[own] == own)]
    if not len(own) or not rows.fruitless[own[-1]]:
        return ""
    row = int(own[-1])
    probes = rows.is_kind("PROBE", "RECEIVE")[row]  # their tag is that of a message
    if (rows.leave[row] - rows.enter[row] < _LONG_NS) if probes else (rows.tag[row] + 2 < _MANY):
        return ""
    about = int(settled.started[row])
    return f"in a loop of {_call(settled, row)}" + (f" for {_call(settled, about)}" if about >= 0 else "")


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
