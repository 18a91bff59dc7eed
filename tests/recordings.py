"""Records of programs that never ran, as `pscale.watch.notes.read` returns them."""

from dataclasses import dataclass

import numpy as np

from pscale.watch.notes import NOTE, PART, Communicator, Facts, Recorded, calls
from pscale.watch.rows import all_rows
from pscale.watch.settle import settle
from pscale.watch.tables import record_tables

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
    return settle(*all_rows(recorded(*ranks, comms=comms)))


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
    columns = record_tables(found).tables[name]
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*(list(each) for each in columns.values()), strict=True)
    ]


RANKS, STEPS = 3, 6
TRIPS = "".join(f"trip {{0}}{at} {{0}}{at + 90} {{0}}{at + 100}\n" for at in range(1_000, 3_000, 500))
FACTS = """rank {rank} 3
host node{rank}
pid 12
library MPICH
cpus 0 1
comm 1 world 0 : 0*3
comm 2 self 0 : {rank}
comm 3 Cart_create 1 : 0*3 near 0 2
twin 4 1
phase 1000 halo
node {node}
begin 500 900
{before}end 99000000
used 7 8 9 10
total Allreduce 6 {rank}000000000 480
total Wait 6 2000000000 0
{after}"""


def _calls_of(rank):
    for at in range(10, 10 + 1000 * STEPS, 1000):
        yield Made("Pcontrol", at, at, comm=0, peer=1)
        yield Made("Pcontrol", at, at, comm=0, peer=1000)
        yield Made("Bcast", at + 100 + rank, at + 200, peer=0, bytes=8)
        yield Made("Isend", at + 210, at + 220, peer=(rank + 1) % RANKS, request=7, bytes=9, tag=1)
        yield Made("Recv", at + 230, at + 300, peer=(rank - 1) % RANKS, tag=1)
        yield Made("Waitall", at + 310, at + 320, parts=(Made("Wait", at + 310, at + 320, request=7),))
        yield Made("Neighbor_alltoall", at + 330, at + 400, comm=3, bytes=8)
        yield Made("Scan", at + 500, at + 501)
        yield Made("Reduce", at + 510, at + 520, peer=2, comm=4)
        yield Made("Allreduce", at + 600 + rank, at + 700, bytes=80)


def record_of(folder):
    """Write a good record of three ranks on two nodes into a folder, and return it."""
    folder.mkdir(exist_ok=True)
    for rank in range(RANKS):
        node = int(rank == 2)
        before, after = (TRIPS.format(about) if node else "" for about in ("", 9900))
        text = FACTS.format(rank=rank, node=node, before=before, after=after)
        (folder / f"facts.{rank}").write_text(text)
        made = notes(list(_calls_of(rank)))
        made["enter"][0] = len(made)
        (folder / f"notes.{rank}").write_bytes(made.tobytes())
    return folder
