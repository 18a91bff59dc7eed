"""The step of every rank as the engine walks through it: segments of computing between points of exchange.

Ranks that do the same are one block, a box of the mesh, so that a plan on a million ranks is a few programs.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pscale.config import Case
from pscale.mesh.dry import AxisCall
from pscale.mesh.grid import axis_name, rank_at, spanned
from pscale.parallel.ranks import GROUPS
from pscale.parallel.schedule import Action
from pscale.training.dry_run import Operation, PhaseWork, places, rank_program
from pscale.training.meta_arrays import Compute

BETWEEN_STEPS = "between steps"
_NEAR_BYTES = 1 << 20  # what a kernel moves beyond it, a core's caches do not hold
_NEVER_TOGETHER = "pp"  # a stage waits for what the one before does later in its own program


@dataclass(frozen=True)
class Segment:
    """What a rank does on its own between two points of its program, `before` and `after`.

    `overlapped`: an exchange that it started is under way.
    """

    phase: str
    operations: tuple[Operation, ...]  # copies of an exchange among them, no calls
    overlapped: bool
    before: str
    after: str

    @cached_property
    def work(self) -> str:
        """Twelve hexadecimal digits of what is computed: the same for the same operations in order."""
        return hashlib.sha256(repr(self.operations).encode()).hexdigest()[:12] if self.operations else ""

    @cached_property
    def key(self) -> str:
        """What segments of the same distribution have in common."""
        under = "overlapped" if self.overlapped else "alone"
        return f"{self.phase} {self.before}>{self.after} {under} {self.work}"

    @cached_property
    def amounts(self) -> dict[str, float]:
        """How much of each kind of work it is: by class kernels, FLOPs, bytes; FLOPs by their least side."""
        found: defaultdict[str, float] = defaultdict(float, segments=1.0)
        for each in self.operations:
            if isinstance(each, Compute):
                found[f"{each.kernel} kernels"] += 1
                found[f"{each.kernel} flops"] += each.flops
                found[f"{each.kernel} bytes"] += each.bytes
                found["far bytes"] += max(each.bytes - _NEAR_BYTES, 0)
                if each.kernel == "product" and each.flops:
                    found["product edge"] += each.flops / min(each.sizes[-3:])
            elif isinstance(each, AxisCall):
                found["copies"] += 1
                found["copied bytes"] += each.bytes
            elif each.event == "start":
                found[f"file {each.verb} bytes"] += each.bytes
        return {name: amount for name, amount in found.items() if amount}


@dataclass(frozen=True, slots=True)
class PhaseEnd:
    """The end of a block of a phase; `action` is that of the pipeline, if any."""

    phase: str
    action: Action | None


Point = AxisCall | PhaseEnd
Step = tuple[Segment | Point, ...]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Ranks that do the same: a box of the mesh, the places along each axis of more than one rank."""

    places: Mapping[str, range]
    step: Step

    @property
    def shape(self) -> tuple[int, ...]:
        """How many places there are along each axis."""
        return tuple(map(len, self.places.values()))


@dataclass(frozen=True, kw_only=True)
class StepProgram:
    """The steady step of all ranks of a case; `sizes` are those of the axes of more than one rank."""

    sizes: Mapping[str, int]
    spans: Mapping[str, tuple[str, ...]]  # which axes the axis of a call stands for
    blocks: tuple[Block, ...]

    @property
    def ranks(self) -> int:
        """How many there are."""
        return math.prod(self.sizes.values())

    def source(self, block: Block, call: AxisCall) -> Block:
        """Return the block of the ranks that `partner` of a message stands for, for those of a block."""
        (axis,) = self.spans[call.axis]
        place, size = block.places[axis], self.sizes[axis]
        if len(place) == size:
            return block
        there = (place.start + (call.partner or 0)) % size
        return next(
            each
            for each in self.blocks
            if there in each.places[axis]
            and all(each.places[a] == p for a, p in block.places.items() if a != axis)
        )

    def size(self, axis: str) -> int:
        """Return how many ranks an axis of calls has."""
        return math.prod(self.sizes[each] for each in self.spans[axis])

    def members(self, axis: str) -> NDArray[np.int64]:
        """Return the ranks that exchange with rank 0 by calls of an axis."""
        ranks = np.arange(self.ranks, dtype=np.int64).reshape(tuple(self.sizes.values()))
        return ranks[tuple(slice(None) if each in self.spans[axis] else 0 for each in self.sizes)].ravel()


def axes_of_calls(case: Case) -> dict[str, tuple[str, ...]]:
    """Return which axes of the plan each axis of calls stands for."""
    sizes = case.plan.sizes
    return {axis_name(span): span for span in (spanned(sizes, group) for group in GROUPS) if span}


def step_program(case: Case, by_rank: Mapping[int, Step] | None = None) -> StepProgram:
    """Return the steady step of all ranks of a case, by the dry run of one of each block.

    `by_rank` are steps of ranks that need no dry run.
    """
    sizes = {axis: size for axis, size in case.plan.sizes.items() if size > 1}
    alike = {axis: ranges for axis, ranges in places(case).items() if axis in sizes}
    steps: dict[tuple[int, ...], Step] = {}
    for corner in product(*([each.start for each in ranges] for ranges in alike.values())):
        rank = _rank(case, sizes, corner)
        steps[corner] = (by_rank or {}).get(rank) or step_of(rank_program(case, rank))
    spans = axes_of_calls(case)
    for place, axis in enumerate(alike):
        if axis != _NEVER_TOGETHER and len(alike[axis]) > 1:
            steps, alike = _joined(steps, alike, place, axis)
    boxes = product(*alike.values())
    blocks = tuple(
        Block(places=dict(zip(sizes, box, strict=True)), step=steps[tuple(each.start for each in box)])
        for box in boxes
    )
    program = StepProgram(sizes=sizes, spans=spans, blocks=blocks)
    return replace(program, blocks=tuple(_with_sizes(program, block) for block in blocks))


def _with_sizes(program: StepProgram, block: Block) -> Block:
    """Return a block whose receives say how many bytes come: those that the partner sends."""
    coming: dict[tuple[str, int], Iterator[int]] = {}
    sizes: dict[int | None, int] = {}
    step: list[Segment | Point] = []
    for each in block.step:
        if isinstance(each, AxisCall) and each.verb == "receive":
            if each.event == "start":
                pair = each.axis, each.partner or 0
                if pair not in coming:
                    coming[pair] = _sent(program, program.source(block, each), each)
                sizes[each.request] = next(coming[pair])
            step.append(replace(each, bytes=sizes[each.request]))
        else:
            step.append(each)
    return replace(block, step=tuple(step))


def _sent(program: StepProgram, source: Block, receive: AxisCall) -> Iterator[int]:
    """Yield the sizes of the messages that `source` sends to those who receive, in order."""
    (axis,) = program.spans[receive.axis]
    back = -(receive.partner or 0) % program.sizes[axis]
    for each in source.step:
        if isinstance(each, AxisCall) and (each.event, each.verb) == ("start", "send"):
            yield from [each.bytes] if (each.axis, each.partner) == (receive.axis, back) else ()


def _rank(case: Case, sizes: Mapping[str, int], corner: Sequence[int]) -> int:
    places_ = dict.fromkeys(case.plan.sizes, 0) | dict(zip(sizes, corner, strict=True))
    return rank_at(case.plan.sizes, places_)


def _joined(
    steps: dict[tuple[int, ...], Step], alike: dict[str, tuple[range, ...]], place: int, axis: str
) -> tuple[dict[tuple[int, ...], Step], dict[str, tuple[range, ...]]]:
    """Return steps and places with all of an axis together, if the ranks along it turn out to do the same."""
    first = {corner: step for corner, step in steps.items() if corner[place] == 0}
    same = all(step == first[(*corner[:place], 0, *corner[place + 1 :])] for corner, step in steps.items())
    if not same or not all(map(_sends_first, first.values())):
        return steps, alike
    return first, {**alike, axis: (range(alike[axis][-1].stop),)}


def _sends_first(step: Step) -> bool:
    """Tell whether a rank has started sending whatever its like wait for at the same place."""
    started: Counter[tuple[str, str]] = Counter()
    for each in step:
        if isinstance(each, AxisCall) and each.verb in ("send", "receive"):
            if each.event == "start" and each.verb == "send":
                started[each.axis, "send"] += 1
            elif each.event == "wait" and each.verb == "receive":
                started[each.axis, "receive"] += 1
                if started[each.axis, "receive"] > started[each.axis, "send"]:
                    return False
    return True


def step_of(phases: Sequence[PhaseWork]) -> Step:
    """Return a rank's step as segments and points, in turn; a message that was sent is not waited for.

    A wait says the bytes of the call that it completes.
    """
    return tuple(_walk(phases))


def _walk(phases: Sequence[PhaseWork]) -> Iterator[Segment | Point]:
    started: dict[int, AxisCall] = {}
    under_way: set[int] = set()
    yield Segment("", (), False, "", BETWEEN_STEPS)
    before = BETWEEN_STEPS
    own: list[Operation] = []
    made: dict[tuple[Any, ...], Segment] = {}  # one object for what comes again, as operations are

    def segment(phase: str, after: str) -> Segment:
        same = phase, tuple(map(id, own)), bool(under_way), before, after
        if same not in made:
            made[same] = Segment(phase, tuple(own), bool(under_way), before, after)
        own.clear()
        return made[same]

    for work in phases:
        for each in work.operations:
            if not isinstance(each, AxisCall) or each.event == "copy":
                own.append(each)
            elif (each.event, each.verb) != ("wait", "send"):
                point = each
                if each.request is not None and each.event == "wait":
                    point = replace(each, bytes=started[each.request].bytes)
                yield segment(work.phase, f"{each.event} {each.verb}")
                yield point
                before = f"{each.event} {each.verb}"
                _follow(each, started, under_way)
        yield segment(work.phase, "end")
        yield PhaseEnd(work.phase, work.action)
        before = "end"


def _follow(call: AxisCall, started: dict[int, AxisCall], under_way: set[int]) -> None:
    """Keep what was started, and which of it is under way; messages that leave are not looked at."""
    if call.request is None:
        return
    if call.event == "start":
        started[call.request] = call
        if call.verb != "send":
            under_way.add(call.request)
    else:
        under_way.discard(call.request)
