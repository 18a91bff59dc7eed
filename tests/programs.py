"""Random programs of collectives, started calls and messages, as notes of what each rank did.

Their wall on an ideal network is found here as the longest path through a graph of events, which knows
nothing of how a replay works.
"""

from dataclasses import dataclass, field

import numpy as np

from pscale.mesh import grid
from pscale.runs.schema import AMONG_ALL, FROM_ROOT, TO_ROOT, VERBS, Kind
from pscale.worker.recorder import FIELDS

STEPS, CALLS = 3, 30


@dataclass
class Group:
    """The ranks of one axis that exchange with each other."""

    axis: int
    ranks: list[int]


@dataclass
class Program:
    """What every rank did; when each step ended, by rank: as it was, and on an ideal network, in ns."""

    sizes: dict[str, int]
    spans: list[tuple[str, ...]]
    rows: list[dict[str, np.ndarray]]
    wait: list[np.ndarray]
    ends: np.ndarray
    ideal: np.ndarray


@dataclass
class Writer:
    """Simulates a program: everything takes a random time, and a network that takes time as well.

    A vertex of the graph is the moment at which a rank comes to an event, or that at which it goes on.
    """

    random: np.random.Generator
    ranks: int
    rows: list[list[tuple[int, ...]]] = field(default_factory=list)
    waits: list[list[int]] = field(default_factory=list)
    edges: list[tuple[int, int, int]] = field(default_factory=list)  # from, to, ns
    vertices: int = 0

    def __post_init__(self):
        self.rows = [[] for _ in range(self.ranks)]
        self.waits = [[] for _ in range(self.ranks)]
        self.clock = [0] * self.ranks
        self.at = [self.vertex() for _ in range(self.ranks)]
        self.work = [0] * self.ranks  # since the last event
        self.requests = [0] * self.ranks
        self.step = 0

    def vertex(self):
        self.vertices += 1
        return self.vertices - 1

    def some(self, most=1000):
        return int(self.random.integers(0, most))

    def compute(self, rank):
        """Compute; or copy, or ask for something that is not complete: the latter is no work."""
        work = self.some()
        self.clock[rank] += work
        self.work[rank] += work
        match self.random.integers(3):
            case 0:
                copied = self.some()
                self.note(rank, Kind.COPIED, 0, "copy", copied)
                self.work[rank] += copied
            case 1 if self.requests[rank]:
                self.note(rank, Kind.POLLED, 0, "all_reduce", self.some(), request=0)

    def note(self, rank, kind, axis, verb, length, *, wait=0, **more):
        row = dict.fromkeys(FIELDS, -1) | {"kind": kind, "step": self.step, "phase": 1, "bytes": 8}
        row |= {"axis": axis, "verb": VERBS.index(verb), "enter": self.clock[rank]} | more
        self.clock[rank] += length
        self.rows[rank].append((*(int(row[name]) for name in FIELDS[:-1]), self.clock[rank]))
        self.waits[rank].append(wait)

    def come(self, rank):
        """Return the vertex at which a rank comes to an event after all its work."""
        here = self.vertex()
        self.edges.append((self.at[rank], here, self.work[rank]))
        self.at[rank], self.work[rank] = here, 0
        return here

    def go_on(self, rank, after):
        here = self.vertex()
        self.edges += [(self.at[rank], here, 0), *((vertex, here, 0) for vertex in after)]
        self.at[rank] = here

    def meet(self, group):
        verb = str(self.random.choice([*AMONG_ALL, *FROM_ROOT, *TO_ROOT]))
        root = group.ranks[self.random.integers(len(group.ranks))]
        came = {rank: (self.clock[rank], self.come(rank)) for rank in group.ranks}
        for rank in group.ranks:
            if verb in AMONG_ALL or (verb in TO_ROOT and rank == root):
                needed = list(came.values())
            else:
                needed = [came[root]] if verb in FROM_ROOT else []
            wait = max([0, *(time - came[rank][0] for time, _ in needed)])
            kind = Kind.ROOT if rank == root and verb not in AMONG_ALL else Kind.CALL
            self.note(rank, kind, group.axis, verb, wait + self.some(), wait=wait)
            self.go_on(rank, [vertex for _, vertex in needed])

    def start(self, rank, group, verb, partner=-1):
        number = self.requests[rank]
        self.requests[rank] += 1
        started = self.clock[rank], self.come(rank)
        self.note(rank, Kind.POSTED, group.axis, verb, self.some(50), request=number, partner=partner)
        return number, started

    def complete(self, rank, group, verb, number, needed):
        """Find a started call complete and have it later, or wait for it."""
        after = max([0, *(time for time, _ in needed)])
        told = {"request": number}
        if self.clock[rank] > after and self.random.integers(2):
            self.note(rank, Kind.POLLED_COMPLETE, group.axis, verb, self.some(50), **told)
            self.compute(rank)
            length = wait = 0
        else:
            wait = max(0, after - self.clock[rank])
            length = wait + self.some()
        self.come(rank)
        self.note(rank, Kind.COMPLETED, group.axis, verb, length, wait=wait, **told)
        self.go_on(rank, [vertex for _, vertex in needed])
        if self.random.integers(5) == 0:
            self.note(rank, Kind.COMPLETED, group.axis, verb, 0, **told)

    def longest(self):
        """Return the latest time at which each vertex can be reached, its predecessors before it."""
        source, target, length = np.array(self.edges).T
        reached = np.zeros(self.vertices, np.int64)
        while True:
            further = reached.copy()
            np.maximum.at(further, target, reached[source] + length)
            if np.array_equal(further, reached):
                return reached
            reached = further


def random_program(seed, sizes, *, alike=True):
    """Return a program on a grid; `alike` ranks of a group complete started collectives in one order."""
    random = np.random.default_rng(seed)
    spans = grid.groups(sizes, [(dim,) for dim in sizes] + [tuple(sizes)])
    writer = Writer(random, int(np.prod(list(sizes.values()))))
    groups = list(_groups(sizes, spans, writer.ranks))
    ends, marks = [], []
    for step in range(STEPS):
        writer.step = step
        began = list(writer.clock)
        _step(writer, groups, alike)
        for rank in range(writer.ranks):
            writer.compute(rank)
            writer.note(rank, Kind.STEP, -1, "copy", 0, phase=-1, enter=began[rank])
            writer.come(rank)
        ends.append(list(writer.clock))
        marks.append(list(writer.at))
    reached = writer.longest()
    rows = [np.array(noted, np.int64).reshape(-1, len(FIELDS)) for noted in writer.rows]
    return Program(
        sizes=sizes,
        spans=spans,
        rows=[dict(zip(FIELDS, table.T, strict=True)) for table in rows],
        wait=[np.array(wait, np.int64) for wait in writer.waits],
        ends=np.array(ends).T,
        ideal=np.array([[reached[vertex] for vertex in step] for step in marks]).T,
    )


def _groups(sizes, spans, ranks):
    for axis, span in enumerate(spans):
        by_place = {}
        for rank in range(ranks):
            places = grid.coordinates(sizes, rank)
            by_place.setdefault(tuple(places[dim] for dim in sizes if dim not in span), []).append(rank)
        yield from (Group(axis, members) for members in by_place.values())


def _step(writer, groups, alike):
    """Make calls in one order for all ranks, so that nobody waits for ever."""
    collectives, messages = [], []
    for call in range(CALLS):
        group = groups[writer.random.integers(len(groups))]
        for rank in group.ranks:
            writer.compute(rank)
        match writer.random.integers(4):
            case 0 | 1:
                writer.meet(group)
            case 2:
                started = {rank: writer.start(rank, group, "all_reduce") for rank in group.ranks}
                needed = [moment for _, moment in started.values()]
                collectives.append(
                    [(rank, group, "all_reduce", started[rank][0], needed) for rank in started]
                )
            case 3:
                messages += _message(writer, group)
        if writer.random.integers(3) == 0 or call == CALLS - 1:
            over = [entry for entries in collectives for entry in entries] + messages
            if not alike:
                writer.random.shuffle(over)
            for entry in over:
                writer.compute(entry[0])
                writer.complete(*entry)
            collectives, messages = [], []


def _message(writer, group):
    """Send from one rank to another, which begins to receive at a time of its own."""
    source, to = (int(place) for place in writer.random.choice(len(group.ranks), 2, replace=False))
    sender, receiver = group.ranks[source], group.ranks[to]
    sides = {}
    for rank, verb, partner in ((sender, "send", to), (receiver, "receive", source)):
        sides[verb] = writer.start(rank, group, verb, partner)
    number, moment = sides["send"]
    yield sender, group, "send", number, []
    yield receiver, group, "receive", sides["receive"][0], [moment]
