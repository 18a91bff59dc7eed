"""Records of programs that never ran, as `pscale.watch.notes.read` returns them."""

from dataclasses import dataclass

import numpy as np

from pscale.watch.notes import NOTE, PART, Communicator, Facts, Recorded, calls
from pscale.watch.rows import rows_of
from pscale.watch.settle import settle
from pscale.watch.tables import watched

NUMBERS = {call.name: number for number, call in enumerate(calls())}
WORLD = 1  # the number of the communicator, on every rank


@dataclass
class Made:
    """A call, with times in us; `parts` are what else it completed or started."""

    name: str
    enter: int
    leave: int
    comm: int = WORLD
    peer: int = -1
    tag: int = -1
    bytes: int = 0
    request: int = 0
    flags: int = 0
    parts: tuple = ()


def recorded(*ranks, comms=(), over=1000):
    """Return the record of ranks that made these calls; `comms` are by rank those beside the world."""
    size = len(ranks)
    facts = []
    for rank in range(size):
        own = {WORLD: Communicator(how="world", parent=0, members=tuple(range(size)))}
        own |= dict(enumerate(comms[rank] if comms else (), start=2))
        facts.append(Facts(rank=rank, size=size, host="host", begin=(1, 2), end_ns=over * 1000, comms=own))
    return Recorded(facts=facts, notes=[notes(made) for made in ranks])


def notes(made):
    """Return the notes of a rank; the place of the first holds their number."""
    rows = [(0,) * len(NOTE)]
    for call in made:
        main = len(rows)
        for place, part in enumerate((call, *call.parts)):
            held = main if place else call.bytes
            flags = (1 << 4) | part.flags | (PART if place else 0)
            times = call.enter * 1000, call.leave * 1000
            rows.append(
                (*times, held, part.request, part.comm, part.peer, part.tag, NUMBERS[call.name], flags)
            )
    return np.array(rows, NOTE)


def settled(*ranks, comms=()):
    return settle(*rows_of(recorded(*ranks, comms=comms)))


def waits(found):
    """Return by call what it waited, in us, and for which rank; rank by rank, without parts."""
    rows = found.rows
    causes = [int(cause) if cause >= 0 else None for cause in found.cause]
    names = [call.name for call in calls()]
    return [
        (names[rows.call[row]], int(found.wait[row]) // 1000, causes[row])
        for row in range(len(causes))
        if rows.main[row] == row
    ]


def table(found, name):
    """Return a table of `pscale.watch.tables` as rows."""
    columns = watched(found).tables[name]
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*(list(each) for each in columns.values()), strict=True)
    ]
