"""The clocks of all ranks through consecutive steps, for many launches at once.

Clocks are arrays of launches x the mesh, those of a block of ranks in one array. Computing adds a draw; a
call over an axis is the maximum along it and its price; a message comes from the neighbours' clocks.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from pscale.analysis.columns import Row, row
from pscale.config import Case
from pscale.errors import PlanError
from pscale.mesh.dry import AxisCall
from pscale.mesh.grid import coordinates
from pscale.predict.costs import CallCost, Costs, SegmentCost
from pscale.predict.profile import QUANTILES
from pscale.predict.step_program import Block, PhaseEnd, Segment, StepProgram
from pscale.runs.schema import FROM_ROOT, TO_ROOT
from pscale.runs.step_time import Vector
from pscale.worker.delay_injection import draw

Clocks = NDArray[np.float64]
Draws = Clocks | float
_NUMBERS = 1 << 20  # that are drawn once: every use is a window of them, somewhere
_STAGES = "pp"


@dataclass(frozen=True, kw_only=True, eq=False)
class StepPaces:
    """By how much longer computing takes in a step than usual: for each block, launches x its places.

    And calls: for each launch.
    """

    computing: Sequence[Clocks]
    calls: Clocks


class Chance:
    """Places in distributions, drawn once; without `random` everything takes its mean.

    Every use has a window of the numbers, in which a rank has its place however many others there are: plans
    that differ in a size alone have the same luck.
    """

    def __init__(self, random: np.random.Generator | None, largest: int):
        self.random = random
        if random is not None:
            (self._starts,) = random.spawn(1)
            numbers = random.integers(QUANTILES, size=_NUMBERS, dtype=np.intp)
            self._numbers = np.resize(numbers, 2 * _NUMBERS + largest)

    def of(self, values: Vector, mean: float, shape: tuple[int, ...]) -> Draws:
        """Draw from a distribution for every place of an array."""
        if self.random is None or len(values) == 1:
            return mean
        return values[self._window(shape)]

    def pair(self, cost: CallCost, shape: tuple[int, ...]) -> tuple[Draws, Draws]:
        """Draw both times of a call for every place of an array: both low, or both high."""
        if self.random is None or len(cost.last) == len(cost.late) == 1:
            return cost.last_s, cost.late_s
        places = self._window(shape)
        last, late = (
            values[places] if len(values) > 1 else float(values[0]) for values in (cost.last, cost.late)
        )
        return last, late

    def below(self, share: float, shape: tuple[int, ...]) -> NDArray[np.bool_] | bool:
        """Draw what is so in a share of all cases."""
        return self.random is None or self._window(shape) < share * QUANTILES

    def _window(self, shape: tuple[int, ...]) -> NDArray[np.intp]:
        launches, *places = shape
        start, apart = int(self._starts.integers(_NUMBERS)), _NUMBERS // launches
        windows = sliding_window_view(self._numbers[start:], math.prod(places))
        return windows[: launches * apart : apart].reshape(shape)


@dataclass(eq=False)
class _Meeting:
    """A call of all ranks of some blocks along an axis: when the last of each group entered.

    Once all have, it begins when the links of all are free: at `ready`.
    """

    expected: int
    arrived: int = 0
    left: int = 0
    latest: Clocks | None = None
    ready: Clocks | None = None
    links: list[tuple[int, str]] = field(default_factory=list)  # of a call that a network prices


class Walk:
    """All blocks on their way through some steps, of which the first brings the ranks into their places.

    What it finds: `ends` of the steps by launch, and over those that count, as means over ranks and launches,
    seconds `spent` by kind and the `waits` of the ranks of a block, by its first rank and phase. `spans` are
    of the last step of the first launch, if `traced`.
    """

    def __init__(
        self,
        case: Case,
        program: StepProgram,
        costs: Costs,
        paces: Sequence[StepPaces],
        random: np.random.Generator | None,
        *,
        traced: bool = False,
    ):
        self.case, self.program, self.costs, self.paces = case, program, costs, paces
        self.dims = {axis: 1 + place for place, axis in enumerate(program.sizes)}
        self.launches = len(paces[0].calls)
        # Without chance and delays all ranks of a block do the same at the same time.
        alike = random is None and not case.inject.delay_s
        self.shapes = [(self.launches, *([1] * len(b.shape) if alike else b.shape)) for b in program.blocks]
        self.chance = Chance(random, max(map(math.prod, self.shapes)))
        self.traced = traced
        self.meetings: dict[Hashable, _Meeting] = {}
        self.messages: dict[Hashable, tuple[Clocks, Clocks]] = {}
        self.free: dict[tuple[int, str], Clocks] = {}  # when the link of the ranks of a block is
        self.ends: list[list[Clocks]] = [[] for _ in paces]
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.transfers: defaultdict[str, float] = defaultdict(float)  # by verb and axis
        self.waits: defaultdict[tuple[int, str], float] = defaultdict(float)
        self.certain_s = 0.0  # of it, for computing that was, and bytes of blocking calls on a priced network
        self.spans: list[Row] = []

    def run(self) -> Walk:
        """Walk to the end; raises PlanError where ranks wait for each other for ever."""
        waiting = deque(_BlockWalk(self, number).steps() for number in range(len(self.program.blocks)))
        stuck = 0
        while waiting:
            walk = waiting.popleft()
            moved = next(walk, None)
            stuck = 0 if moved or moved is None else stuck + 1
            if stuck > len(waiting):
                message = f"{self.case.label}: the ranks of this plan would deadlock"
                raise PlanError(message)
            if moved is not None:
                waiting.append(walk)
        for found in (self.spent, self.transfers, self.waits):
            for key in found:
                found[key] /= len(self.paces) - 1  # type: ignore[index]
        self.certain_s /= len(self.paces) - 1
        return self

    @property
    def lengths(self) -> Clocks:
        """How long the steps that count took, launches x steps."""
        return np.diff(np.stack([np.max(step, axis=0) for step in self.ends], axis=1), axis=1)

    def meeting(self, where: Hashable, block: Block, span: Sequence[str]) -> _Meeting:
        """Return a call of an axis, made when the first enters it."""
        if where not in self.meetings:
            expected = sum(
                all(other.places[axis] == own for axis, own in block.places.items() if axis not in span)
                for other in self.program.blocks
            )
            self.meetings[where] = _Meeting(expected=expected)
        return self.meetings[where]

    def sent(self, block: Block, call: AxisCall, count: int) -> tuple[Clocks, Clocks] | None:
        """Return when the next message to each rank of a block was posted, and when its link was free."""
        (axis,) = self.program.spans[call.axis]
        source, offset = self.program.source(block, call), call.partner or 0
        pair = self.messages.pop((id(source), call.axis, -offset % self.program.sizes[axis], count), None)
        if pair is None or source is not block:
            return pair
        return np.roll(pair[0], -offset, self.dims[axis]), np.roll(pair[1], -offset, self.dims[axis])


class _BlockWalk:
    """One block on its way."""

    def __init__(self, walk: Walk, number: int):
        self.walk, self.number = walk, number
        self.block = walk.program.blocks[number]
        self.clock: Clocks = np.zeros(walk.shapes[number])
        self.share = math.prod(self.block.shape) / walk.program.ranks
        self.ranks = _corners(walk.program, self.block)
        self.made: defaultdict[Hashable, int] = defaultdict(int)
        self.started: dict[int | None, Hashable] = {}
        self.phase = ""
        self.began = self.clock  # when the phase before ended
        self.step = 0

    def steps(self) -> Generator[bool]:
        """Take all steps; yields where it has to wait for other blocks: whether it got on since then."""
        for step, paces in enumerate(self.walk.paces):
            self.step = step
            delays = delays_of(
                self.walk.case, self.walk.program, self.block, self.walk.chance.random, self.clock.shape
            )
            self.phase = ""
            self.began = self.clock.copy()
            for each in self.block.step:
                if isinstance(each, Segment):
                    self._begin(each.phase, delays)
                    self._compute(each, paces.computing[self.number])
                elif isinstance(each, AxisCall):
                    yield from self._call(each, paces.calls)
                else:
                    self._end(each)
            self.walk.ends[self.step].append(self.clock.reshape(self.walk.launches, -1).max(axis=1))
        yield True

    def _begin(self, phase: str, delays: dict[str, Draws]) -> None:
        """Delay the ranks that are to be where a phase begins."""
        if phase == self.phase:
            return
        self.phase = phase
        if phase in delays:
            before = self.clock.copy()
            self.clock += delays.pop(phase)
            self._spend("injected", _mean(self.clock - before))

    def _end(self, end: PhaseEnd) -> None:
        """Draw what was done since the phase before ended."""
        if self._is_drawn:
            kind, micro, part = end.action or (end.phase, None, 0)
            self._draw(kind, self.began, self.clock, micro, part)
            self.began = self.clock.copy()

    def _compute(self, segment: Segment, pace: Clocks) -> None:
        cost = self.walk.costs.segment(segment)
        took = self.walk.chance.of(cost.values, cost.mean_s, self.clock.shape) * pace
        self.clock += took
        if self.step:
            self._spend_computing(cost, _mean(took))
            self.walk.certain_s += 0.0 if cost.unsure_s else self.share * _mean(took)

    def _spend_computing(self, cost: SegmentCost, seconds: float) -> None:
        inside = {"transfer": cost.polled, "copy": cost.copied, "offload": cost.stalled}
        for kind, share in inside.items():
            self._spend(kind, share * seconds)
        self._spend("compute", (1 - sum(inside.values())) * seconds)

    def _call(self, call: AxisCall, pace: Clocks) -> Generator[bool]:
        """Make a call, or rely on one that was started: in the end the clock is when the rank goes on."""
        cost = self.walk.costs.call(call, self.walk.program.size(call.axis))
        if call.event == "call" and not _gives_only(call):
            self.walk.certain_s += self.share * cost.busy_s * (self.step > 0)
        pace = pace.reshape(-1, *[1] * (self.clock.ndim - 1))
        if call.event == "start" or _gives_only(call):
            where = self._start(call)
            if call.event == "start":
                self.started[call.request] = where
            else:
                self._leave(where)
            took = self.walk.chance.of(cost.late, cost.late_s, self.clock.shape) * pace
            self._go_on(call, self.clock, self.clock + took)
            return
        where = self.started.pop(call.request) if call.event == "wait" else self._start(call)
        moved = True
        while (known := self._known(call, where)) is None:
            yield moved
            moved = False
        last, ready = known
        after, late = self._drawn(call, cost)
        until = np.maximum(last, self.clock)
        if cost.priced:
            self._go_on(call, until, np.maximum(ready + after, self.clock + late * pace))
        else:
            self._go_on(call, until, until + np.where(last > self.clock, after, late) * pace)

    def _start(self, call: AxisCall) -> Hashable:
        """Enter a call, or post one; returns where it is found again."""
        if call.verb in ("send", "receive"):
            count = self.made[call.verb, call.axis, call.partner]
            self.made[call.verb, call.axis, call.partner] += 1
            if call.verb == "send":
                self._send(call, count)
            return count
        span = self.walk.program.spans[call.axis]
        elsewhere = tuple(own.start for axis, own in self.block.places.items() if axis not in span)
        where = (call.axis, elsewhere, self.made[call.axis])
        self.made[call.axis] += 1
        meeting = self.walk.meeting(where, self.block, span)
        meeting.arrived += 1
        if call.verb not in FROM_ROOT or call.root:
            mine = self._last(self.clock, span)
            meeting.latest = mine if meeting.latest is None else np.maximum(meeting.latest, mine)
        if self.walk.costs.priced:
            self._reserve(call, meeting, span)
        return where

    def _last(self, clocks: Clocks, span: Sequence[str]) -> Clocks:
        last: Clocks = clocks.max(axis=tuple(self.walk.dims[axis] for axis in span), keepdims=True)
        return last

    def _reserve(self, call: AxisCall, meeting: _Meeting, span: Sequence[str]) -> None:
        """Take the links of all ranks of a call for as long as it sends, once the last has entered it."""
        cost = self.walk.costs.completion(call, self.walk.program.size(call.axis))
        if not cost.busy_s:
            return
        free, link = self.walk.free, (self.number, cost.link)
        meeting.links.append(link)
        if link in free:
            mine = self._last(free[link], span)
            meeting.ready = mine if meeting.ready is None else np.maximum(meeting.ready, mine)
        if meeting.arrived == meeting.expected:
            assert meeting.latest is not None, "a call from a root has one"
            ready = meeting.latest if meeting.ready is None else np.maximum(meeting.ready, meeting.latest)
            meeting.ready = ready
            free.update(dict.fromkeys(meeting.links, ready + cost.busy_s))

    def _send(self, call: AxisCall, count: int) -> None:
        ready = posted = self.clock.copy()
        cost = self.walk.costs.completion(call, self.walk.program.size(call.axis))
        if cost.busy_s:
            link = self.number, cost.link
            ready = np.maximum(posted, self.walk.free.get(link, posted))
            self.walk.free[link] = ready + cost.busy_s
        self.walk.messages[id(self.block), call.axis, call.partner, count] = posted, ready

    def _known(self, call: AxisCall, where: Hashable) -> tuple[Clocks, Clocks] | None:
        """Return when the last rank came on which each depends, and when its part began; None: not yet."""
        if call.verb == "receive":
            assert isinstance(where, int)
            return self.walk.sent(self.block, call, where)
        meeting = self.walk.meetings[where]
        if meeting.arrived < meeting.expected:
            return None
        assert meeting.latest is not None, "a call from a root has one"
        self._leave(where)
        return meeting.latest, meeting.latest if meeting.ready is None else meeting.ready

    def _leave(self, where: Hashable) -> None:
        """Forget a call that all blocks have left."""
        meeting = self.walk.meetings[where]
        meeting.left += 1
        if meeting.left == meeting.expected:
            del self.walk.meetings[where]

    def _drawn(self, call: AxisCall, cost: CallCost) -> tuple[Draws, Draws]:
        """Draw the time of a call for ranks that waited for the last, and for those that came later."""
        chance, shape = self.walk.chance, self.clock.shape
        after, late = chance.pair(cost, shape)
        if not cost.together or call.verb == "receive":
            return after, late
        along = {self.walk.dims[axis] for axis in self.walk.program.spans[call.axis]}
        shape = tuple(1 if place in along else n for place, n in enumerate(shape))
        both, alike = chance.pair(cost, shape), chance.below(cost.together, shape)
        return np.where(alike, both[0], after), np.where(alike, both[1], late)

    def _go_on(self, call: AxisCall, until: Clocks, after: Clocks) -> None:
        before = self.clock
        self.clock = after if after.shape == before.shape else np.broadcast_to(after, before.shape).copy()
        if not self.step:
            return
        entered, waited, left = (_mean(clocks) for clocks in (before, until, self.clock))
        bubble = call.verb == "receive" and call.axis == _STAGES
        self._spend(f"wait {'bubble' if bubble else 'imbalance'}", waited - entered)
        self._spend("transfer", left - waited)
        self.walk.transfers[f"{call.verb} {call.axis}"] += self.share * (left - waited)
        self.walk.waits[self.ranks[0][0], self.phase] += waited - entered
        self._draw("wait", before, until)
        self._draw("exchange", until, self.clock)

    def _spend(self, kind: str, seconds: float) -> None:
        if self.step:
            self.walk.spent[kind] += self.share * seconds

    @property
    def _is_drawn(self) -> bool:
        return self.walk.traced and self.step == len(self.walk.paces) - 1

    def _draw(self, kind: str, start: Clocks, stop: Clocks, micro: int | None = None, part: int = 0) -> None:
        for rank, place in self.ranks if self._is_drawn else ():
            began, ended = float(start[0][place]), float(stop[0][place])
            if ended > began:
                what = {"rank": rank, "kind": kind, "micro": micro, "part": part}
                self.walk.spans.append(row("timeline", **what, start_s=began, stop_s=ended))


def _mean(clocks: Clocks) -> float:
    """Return the mean; that of one number at once."""
    return float(clocks.mean()) if clocks.size > 1 else clocks.item()


def _gives_only(call: AxisCall) -> bool:
    """Tell whether others depend on this rank's part of a call, and it on nobody."""
    return (call.verb in FROM_ROOT and call.root) or (call.verb in TO_ROOT and not call.root)


def _corners(program: StepProgram, block: Block) -> list[tuple[int, tuple[int, ...]]]:
    """Return the first and the last rank of a block, each with its place there."""
    found = {}
    for place in (tuple(0 for _ in block.shape), tuple(size - 1 for size in block.shape)):
        rank = 0
        for at, (axis, size) in zip(place, program.sizes.items(), strict=True):
            rank = rank * size + block.places[axis].start + at
        found[rank] = place
    return list(found.items())


def delays_of(
    case: Case,
    program: StepProgram,
    block: Block,
    random: np.random.Generator | None,
    shape: tuple[int, ...],
) -> dict[str, Draws]:
    """Return by phase what delays the ranks of a block in a step; their mean without chance."""
    inject, jitter, found = case.inject, case.jitter, dict[str, Draws]()
    if jitter.mean_s:
        if random is None:
            found[jitter.phase] = jitter.mean_s
        else:
            drawn = draw(jitter, math.prod(shape), random).reshape(shape)
            found[jitter.phase] = drawn * _chosen(program, block, jitter.ranks)
    if inject.delay_s:
        delayed = inject.delay_s / inject.every * _chosen(program, block, (inject.rank,))
        found[inject.phase] = found.get(inject.phase, 0.0) + delayed
    return found


def _chosen(program: StepProgram, block: Block, ranks: Sequence[int]) -> Draws:
    """Return 1 for those ranks of a block that are among `ranks`, else 0; no ranks are all of them."""
    if not ranks:
        return 1.0
    found = np.zeros((1, *block.shape))
    for rank in ranks:
        place: Mapping[str, int] = coordinates(program.sizes, rank)
        if all(at in block.places[axis] for axis, at in place.items()):
            found[(0, *(at - block.places[axis].start for axis, at in place.items()))] = 1.0
    return found
