"""One clock for all ranks, and its error bound.

Ranks of a node read the same clock. Across nodes the first rank of each asks another for the time, many
times: the answer was given between question and receipt, so every round trip bounds from both sides how far
the other clock is ahead, and the tightest two bounds count (SKaMPI). The asking forms a tree (HCA3): its
depth, and with it the error, grows as the logarithm of the number of nodes. It is done before and after the
measured steps; in between clocks are taken to drift steadily.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pscale.errors import PscaleError
from pscale.mesh.axis import Axis, Mesh, Tag
from pscale.runs.schema import Kind

Times = NDArray[np.int64]
Now = Callable[[], int]

DRIFT_LIMIT = 1e-3  # of two clocks against each other: NTP slews each by 500 ppm at most
_ROUND_TRIPS, _LEAST, _LIMIT_NS = 200, 20, 50_000_000
_ROUNDING_NS = 1


class ClockError(PscaleError):
    """Clocks that say what clocks cannot."""


@dataclass(frozen=True, kw_only=True)
class Offset:
    """Another clock was `ahead_ns` ± `bound_ns` ahead when this one said `at_ns`."""

    at_ns: int
    ahead_ns: int
    bound_ns: int


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How to turn the times of this rank into those of rank 0: by a line through two offsets."""

    before: Offset
    after: Offset

    @property
    def drift(self) -> float:
        """By how much faster the clock of rank 0 runs, as a fraction."""
        return (self.after.ahead_ns - self.before.ahead_ns) / (self.after.at_ns - self.before.at_ns)

    @property
    def bound_ns(self) -> int:
        """How far a time between the two offsets may be off."""
        exact = self.before.bound_ns == self.after.bound_ns == 0
        return 0 if exact else max(self.before.bound_ns, self.after.bound_ns) + _ROUNDING_NS

    def __call__(self, times: Times) -> Times:
        """Return what rank 0's clock said at these `times` of this rank's."""
        drifted: Times = np.rint((times - self.before.at_ns) * self.drift).astype(np.int64)
        return times + (self.before.ahead_ns + drifted)

    def at(self, time_ns: int) -> int:
        """Return what rank 0's clock said at one time of this rank's."""
        return int(self(np.array([time_ns]))[0])


_OWN = Clock(before=Offset(at_ns=0, ahead_ns=0, bound_ns=0), after=Offset(at_ns=1, ahead_ns=0, bound_ns=0))


def compare(mesh: Mesh, now: Now, *, last: bool = False) -> Offset | None:
    """Compare the clocks of the first ranks of all nodes; collective.

    Returns how far the clock of the node's parent in the tree is ahead; None on ranks that did not ask. The
    `last` comparison goes from the leaves to the root, so that the offsets of a parent enclose in time those
    of its children.
    """
    leaders = [mesh.nodes.index(node) for node in range(1 + max(mesh.nodes))]
    if mesh.world.rank not in leaders:
        return None
    found = None
    links = list(_links(len(leaders)))
    for parent, child in reversed(links) if last else links:
        if leaders[child] == mesh.world.rank:
            found = _ask(mesh.world, leaders[parent], now)
        elif leaders[parent] == mesh.world.rank:
            _answer(mesh.world, leaders[child], now)
    return found


def agree(mesh: Mesh, before: Offset | None, after: Offset | None) -> Clock:
    """Return this rank's way to the clock of rank 0, from what the two comparisons found; collective."""
    count = 1 + max(mesh.nodes)
    if count == 1:
        return _OWN
    everyone = mesh.world.gather_objects((before, after))
    table = np.zeros((count, 2, 3), np.int64)
    if everyone:
        asked = [everyone[mesh.nodes.index(node)] for node in range(1, count)]
        clocks = composed([Clock(before=first, after=second) for first, second in asked if first and second])
        for row, clock in zip(table, clocks, strict=True):
            row[:] = [
                (offset.at_ns, offset.ahead_ns, offset.bound_ns) for offset in (clock.before, clock.after)
            ]
    mesh.world.broadcast(table)
    before, after = (
        Offset(at_ns=at, ahead_ns=ahead, bound_ns=bound)
        for at, ahead, bound in table[mesh.nodes[mesh.world.rank]].tolist()
    )
    return Clock(before=before, after=after)


def composed(to_parents: Sequence[Clock]) -> list[Clock]:
    """Return every node's way to the first node's clock, given those of nodes 1, 2, … to their parents'."""
    clocks = [_OWN]
    for (parent, _), clock in zip(_links(1 + len(to_parents)), to_parents, strict=True):
        onward = clocks[parent]
        clocks.append(Clock(before=_through(clock.before, onward), after=_through(clock.after, onward)))
    return clocks


def _through(offset: Offset, onward: Clock) -> Offset:
    """Return how far rank 0's clock is ahead, given how far the parent's is, and the parent's own way."""
    parent_ns = offset.at_ns + offset.ahead_ns
    return Offset(
        at_ns=offset.at_ns,
        ahead_ns=onward.at(parent_ns) - offset.at_ns,
        bound_ns=math.ceil(offset.bound_ns * (1 + DRIFT_LIMIT)) + onward.bound_ns,
    )


def tightest(asked: Times, told: Times, received: Times) -> Offset:
    """Return the offset that all round trips allow, at the middle of the shortest; times in ns.

    `told` is what the other clock said between `asked` and `received`. Raises ClockError if there is no such
    offset.
    """
    lengths = received - asked
    shortest = int(np.argmin(lengths))
    at_ns = int(asked[shortest] + lengths[shortest] // 2)
    distance = np.maximum(np.abs(asked - at_ns), np.abs(received - at_ns))
    drifted = np.ceil(distance * DRIFT_LIMIT).astype(np.int64)
    least, most = int((told - received - drifted).max()), int((told - asked + drifted).min())
    if least > most:
        raise ClockError(
            f"the clocks of two nodes contradict themselves by {(least - most) * 1e-6:.3g} ms: one of them "
            f"jumped, or they drift apart by more than {DRIFT_LIMIT:.1%}"
        )
    return Offset(at_ns=at_ns, ahead_ns=(least + most) // 2, bound_ns=(most - least) // 2 + _ROUNDING_NS)


def axis_bounds_ns(mesh: Mesh, clock: Clock, axes: Sequence[Axis]) -> dict[str, int]:
    """Return by axis how far a wait may be off: two clocks' bounds, or 0 on one node; collective."""
    node = mesh.nodes[mesh.world.rank]
    bounds = {}
    for axis in axes:
        largest = np.array([node, -node, clock.bound_ns])
        axis.all_reduce(largest, "max")
        one_node = largest[0] == -largest[1]
        bounds[axis.name] = 0 if one_node else clock.bound_ns + int(largest[2])
    return bounds


def backwards_ns(rows: Mapping[str, Times]) -> int:
    """Return by how much a clock went backwards, at most, between two readings in `rows`; 0: never.

    A row is written when what it tells of has ended, so those of calls lie before that of their phase, and
    those of phases before that of their step: its `enter` was read before all of them. A phase begins where
    the one before it ended, the first with its step. What a thread of its own did has no place among them.
    """
    own = rows["kind"] != Kind.IO_DONE
    rows = {name: rows[name][own] for name in ("kind", "enter", "leave")}
    kind, place = rows["kind"], np.arange(len(rows["kind"]))
    is_step, is_phase = kind == Kind.STEP, kind == Kind.PHASE
    begin = place.copy()
    begin[is_phase] = _after_last(is_phase | is_step)[is_phase]
    begin[is_step] = _after_last(is_step)[is_step]
    level = np.where(is_step, 0, np.where(is_phase, 1, 2))
    order = np.lexsort((np.append(level, np.full_like(level, 3)), np.append(begin, place)))
    readings = np.append(rows["enter"], rows["leave"])[order]
    return -int(np.diff(readings).min(initial=0))


def _after_last(marked: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return for every place the one after the last that is marked before it; 0 if none is."""
    after = np.maximum.accumulate(np.where(marked, np.arange(len(marked)) + 1, 0))
    return np.append(0, after)[:-1]


def _links(count: int) -> Iterator[tuple[int, int]]:
    """Yield parent and child of a binomial tree: in every round whoever knows the time tells one more."""
    for child in range(1, count):
        yield child - (1 << (child.bit_length() - 1)), child


def _ask(axis: Axis, parent: int, now: Now) -> Offset:
    """Ask for the time until it is well known."""
    more, answer = np.ones(1, np.int64), np.zeros(1, np.int64)
    trips: list[tuple[int, int, int]] = []
    while more[0]:
        arrives = axis.start_receive(answer, parent, Tag.CLOCK)
        overdue = bool(trips) and trips[-1][2] - trips[0][2] > _LIMIT_NS
        more[0] = len(trips) + 1 < (_LEAST if overdue else _ROUND_TRIPS)
        asked = now()
        leaves = axis.start_send(more, parent, Tag.CLOCK)
        arrives.wait()
        trips.append((asked, int(answer[0]), now()))
        leaves.wait()
    return tightest(*np.array(trips, np.int64).T)


def _answer(axis: Axis, child: int, now: Now) -> None:
    """Tell the time as long as the child asks."""
    more, told = np.ones(1, np.int64), np.zeros(1, np.int64)
    while more[0]:
        axis.start_receive(more, child, Tag.CLOCK).wait()
        told[0] = now()
        axis.start_send(told, child, Tag.CLOCK).wait()
