"""The fastest of all plans, without predicting all: best first, by estimates that only grow.

A plan is first estimated by one micro-batch of a replica, which many plans share; then by its calls among
replicas, and plans that only shard otherwise; then by what a rank of its last stage does, without its waits;
then by a walk of all ranks where everything takes its mean: a step is a maximum of sums of times, so by
Jensen's inequality one of means is no longer than the mean step. The plan whose estimate is least goes on.
Those that come first out of that walk are predicted, with chance, and ordered by that.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from time import monotonic
from typing import Any

from pscale.config import Case, Plan
from pscale.config.axes import GRID_AXES
from pscale.mesh.dry import AxisCall, Event
from pscale.mesh.grid import rank_at
from pscale.predict.costs import Costs
from pscale.predict.engine import Prediction, predict, usual_step_s
from pscale.predict.plans import leaner, plans
from pscale.predict.profile import Profile
from pscale.predict.step_program import (
    Segment,
    Step,
    StepProgram,
    axes_of_calls,
    step_of,
    step_program,
)
from pscale.runs.schema import BETWEEN_TWO
from pscale.training.dry_run import Call, rank_program, state_use

DRAWS = 40
PREDICTED = 2  # times as many as are asked for, at most
_MARGIN = 0.95  # of work in the segments of another plan: parts take other times among others
_TELLING_S = 0.5
_MANY, _LEANEST = 200, 10  # plans of which none fits, before those are tried that need least
_WORK = ("forward", "backward")  # phases that every micro-batch has
_OUTSIDE = {  # of what one stage of a replica does
    name: getattr(Plan(), name)
    for name in ("pp", "schedule", "virtual_stages", "zero", "shard", "compression", "offload")
}
_WITHIN = ("tp", "cp", "ulysses", "ep", *GRID_AXES)  # axes of one replica and stage


@dataclass(frozen=True, kw_only=True)
class Search:
    """The fastest plans that fit in memory, in order, and how many were looked at.

    `too_large` are those that would be among them. `stopped`: many were too large, and so were those that
    need least at least; others were not tried.
    """

    found: tuple[Prediction, ...]
    ended: bool  # by an interrupt: others may be faster
    stopped: bool
    too_large: tuple[Case, ...]
    plans: int
    predicted: int


@dataclass(order=True)
class _Entry:
    """A plan in the queue; `stage` tells what its bound comes from."""

    bound_s: float
    number: int
    stage: int = field(compare=False)
    case: Case = field(compare=False)
    by_rank: Mapping[int, Step] | None = field(default=None, compare=False)
    program: StepProgram | None = field(default=None, compare=False)


_SHARE, _REPLICA, _CALLS, _RANK, _PROGRAM = range(5)


Tell = Callable[[int, int], None]  # how many are predicted, and how many may still be faster


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Which plans fit: `least_bytes` of one are quickly known, and none with more than `limit_bytes` does."""

    fits: Callable[[Case], bool]
    least_bytes: Callable[[Case], float] = lambda _: 0.0
    limit_bytes: float = math.inf

    def may_fit(self, case: Case) -> bool:
        """Tell whether a plan needs no more at least."""
        return self.least_bytes(case) <= self.limit_bytes


def search(
    case: Case,
    profile: Profile,
    memory: Memory,
    most: int,
    tell: Tell = lambda *_: None,
) -> Search:
    """Find the `most` fastest plans for the work of a case on its ranks that fit in memory.

    `tell` is called as it goes on; an interrupt ends it with the best of those that were predicted by then.
    """
    return _Queue(profile, memory).run(list(plans(case)), most, tell)


class _Queue:
    """Plans by their bounds."""

    def __init__(self, profile: Profile, memory: Memory):
        self._profile, self._memory = profile, memory
        self._costs = Costs(profile, None)
        self._numbers = count()
        self._entries: list[_Entry] = []
        self._micro_batches: dict[tuple[Plan, int], tuple[float, float]] = {}
        self._sharding: dict[tuple[Plan, int], tuple[float, float]] = {}
        self._divisions: dict[tuple[Plan, int], float] = {}  # least seconds of plans, without their sharding
        self._seen: set[str] = set()
        self._predictions: list[Prediction] = []
        self.too_large: list[Case] = []
        self._fitting = self._tried = 0  # plans of which the memory was predicted

    def run(self, cases: Sequence[Case], most: int, tell: Tell) -> Search:
        """Take plans out until so many are known, or an interrupt leaves those that were predicted."""
        ended, stopped, told = False, False, -math.inf
        try:
            for case in cases:
                self._enter(case)
            while self._entries and self._entries[0].bound_s < self._worst_s(most) and not stopped:
                self._go_on(heapq.heappop(self._entries))
                if monotonic() > told + _TELLING_S:
                    worst_s = self._worst_s(most)
                    left = sum(each.bound_s < worst_s for each in self._entries)
                    tell(len(self._predictions), left)
                    told = monotonic()
                stopped = self._tried == _MANY and not self._fitting and not self._leanest_fits()
        except KeyboardInterrupt:
            ended = True
        return Search(
            found=tuple(self._predictions[:most]),
            ended=ended,
            stopped=stopped,
            too_large=tuple(self.too_large),
            plans=len(cases),
            predicted=len(self._predictions),
        )

    def _worst_s(self, most: int) -> float:
        """Return which step is too long to be among the best, any where enough plans are predicted."""
        if len(self._predictions) < most:
            return math.inf
        return self._predictions[most - 1].step_s.value if len(self._predictions) < PREDICTED * most else 0.0

    def _enter(self, case: Case, bound_s: float = 0.0) -> None:
        """Put a plan into the queue, or leaner forms of it where it cannot fit."""
        if self._memory.may_fit(case):
            self._put(_Entry(max(bound_s, self._replica_s(case, roughly=True)), 0, _SHARE, case))
        else:
            self._leave_out(case, bound_s)

    def _fits(self, case: Case) -> bool:
        fits = self._memory.fits(case)
        self._tried, self._fitting = self._tried + 1, self._fitting + fits
        return fits

    def _leanest_fits(self) -> bool:
        """Tell whether any of those plans fits that need least at least."""
        leanest = [[each.case, *_leaner_forms(each.case)][-1] for each in self._entries]
        return any(map(self._fits, sorted(leanest, key=self._memory.least_bytes)[:_LEANEST]))

    def _put(self, entry: _Entry, **changed: Any) -> None:
        heapq.heappush(self._entries, replace(entry, number=next(self._numbers), **changed))

    def _go_on(self, entry: _Entry) -> None:
        """Estimate a plan once more, or predict it."""
        case = entry.case
        if entry.stage == _SHARE:
            self._put(entry, stage=_REPLICA, bound_s=max(entry.bound_s, self._replica_s(case)))
        elif entry.stage == _REPLICA:
            self._put(entry, stage=_CALLS, bound_s=entry.bound_s + self._sharding_s(case)[0])
        elif entry.stage == _CALLS:
            alike_s = self._divisions.get(_division(case), 0.0) + self._sharding_s(case)[0]
            if alike_s > entry.bound_s:
                self._put(entry, bound_s=alike_s)
                return
            rank = rank_at(case.plan.sizes, dict.fromkeys(case.plan.sizes, 0) | {"pp": case.plan.pp - 1})
            step = step_of(rank_program(case, rank))
            rank_s = sum(seconds for _, seconds in self._seconds(case, step)) / _busy(case)
            self._learn(case, rank_s)
            self._put(entry, stage=_RANK, bound_s=max(entry.bound_s, rank_s), by_rank={rank: step})
        elif entry.stage == _RANK and not self._fits(case):
            self._leave_out(case, entry.bound_s)
        elif entry.stage == _RANK:
            program = step_program(case, entry.by_rank)
            bound_s = usual_step_s(case, program, self._costs)
            self._learn(case, bound_s)
            self._put(entry, stage=_PROGRAM, bound_s=bound_s, program=program, by_rank=None)
        else:
            prediction = predict(case, self._profile, draws=DRAWS, program=entry.program)
            insort(self._predictions, prediction, key=lambda each: each.step_s.value)

    def _leave_out(self, case: Case, bound_s: float) -> None:
        """Leave out a plan that needs too much memory, and try a leaner form of it."""
        self.too_large.append(case)
        for other in leaner(case):
            if other.id not in self._seen:
                self._seen.add(other.id)
                self._enter(other, bound_s)

    def _learn(self, case: Case, step_s: float) -> None:
        """Keep what a step takes at least by other plans that only shard otherwise."""
        division, (_, sharding_s) = _division(case), self._sharding_s(case)
        least_s = _MARGIN * (step_s - sharding_s)
        self._divisions[division] = max(least_s, self._divisions.get(division, 0.0))

    def _replica_s(self, case: Case, *, roughly: bool = False) -> float:
        """Return what ranks compute and exchange in a replica at least, by a micro-batch of it.

        Roughly by one as large as where there are no stages, which takes no less for each of its sequences.
        """
        sequences = _sequences(case)
        most = case.train.batch // case.plan.batch_parts // case.plan.pp
        other = max(most, sequences) if roughly else sequences
        seconds = self._micro_batch_s(case, other)[0] * sequences / other
        return _MARGIN * case.train.micro_batches * seconds / case.plan.pp / _busy(case)

    def _micro_batch_s(self, case: Case, sequences: int) -> tuple[float, float]:
        """Return how long a replica of one stage takes for so many sequences, and to update all it has."""
        replica = replace(case.plan, dp=min(case.plan.dp, 2), **_OUTSIDE)
        if (replica, sequences) not in self._micro_batches:
            self._micro_batches[replica, sequences] = self._of_micro_batch(case, replica, sequences)
        return self._micro_batches[replica, sequences]

    def _of_micro_batch(self, case: Case, replica: Plan, sequences: int) -> tuple[float, float]:
        """Return how long a replica takes for so many sequences, and to compute in other phases."""
        train = replace(case.train, batch=sequences * replica.batch_parts, micro_batches=1)
        alone = replace(case, plan=replica, ranks=replica.ranks, train=train)
        phase, sums = "", {True: 0.0, False: 0.0}
        for each, seconds in self._seconds(alone, step_of(rank_program(alone, 0))):
            phase = each.phase if isinstance(each, Segment) else phase
            if isinstance(each, Segment) or (phase in _WORK and _within(each)):
                sums[phase in _WORK] += seconds
        return sums[True], sums[False]

    def _sharding_s(self, case: Case) -> tuple[float, float]:
        """Return what updates and calls among replicas take at least, and if nothing of it is hidden."""
        plan = case.plan
        key = plan, case.train.micro_batches
        if key not in self._sharding:
            sizes, least_s, most_s = _sizes(case), 0.0, 0.0
            for call in state_use(case, 0).calls:
                if (size := sizes.get(call.axis, 1)) > 1:
                    started_s = self._least_s(call, size, "start") + self._least_s(call, size, "wait")
                    pair = self._least_s(call, size, "call"), started_s
                    least_s, most_s = least_s + call.count * min(pair), most_s + call.count * max(pair)
            owners = (plan.shard or plan.dp) if plan.zero else 1
            update_s = self._micro_batch_s(case, _sequences(case))[1] / owners / plan.pp
            self._sharding[key] = _MARGIN * (least_s + update_s), most_s + update_s
        return self._sharding[key]

    def _least_s(self, call: Call, size: int, event: Event) -> float:
        cost = self._costs.call(AxisCall(event, call.axis, call.verb, call.sent_bytes), size)
        return cost.late_s if event == "start" else min(cost.last_s, cost.late_s)

    def _seconds(self, case: Case, step: Step) -> Iterator[tuple[Segment | AxisCall, float]]:
        """Yield what a rank that waits for nobody does, and its seconds; as much arrives as it sent last."""
        sizes, sent = _sizes(case), Counter[str]()
        for each in step:
            if isinstance(each, Segment):
                yield each, self._costs.segment(each).mean_s
            elif isinstance(each, AxisCall):
                if each.verb == "send":
                    sent[each.axis] = each.bytes
                call = replace(each, bytes=sent[each.axis]) if each.verb == "receive" else each
                cost = self._costs.call(call, sizes[each.axis])
                yield each, cost.late_s if each.event == "start" else min(cost.last_s, cost.late_s)


def _leaner_forms(case: Case) -> Iterator[Case]:
    """Yield ever leaner forms of a plan."""
    for each in leaner(case):
        yield from (each, *_leaner_forms(each))


def _sequences(case: Case) -> int:
    """Return how many sequences a micro-batch of a replica has."""
    return case.train.batch // case.plan.batch_parts // case.train.micro_batches


def _division(case: Case) -> tuple[Plan, int]:
    """Return how a plan divides work, whatever its replicas shard."""
    return replace(case.plan, zero=0, shard=0), case.train.micro_batches


def _sizes(case: Case) -> dict[str, int]:
    """Return how many ranks each axis of calls has."""
    sizes = case.plan.sizes
    return {axis: math.prod(sizes[each] for each in span) for axis, span in axes_of_calls(case).items()}


def _within(call: AxisCall) -> bool:
    """Tell whether a call is one of a replica, not one that sums gradients meanwhile."""
    return (call.event == "call" and call.axis in _WITHIN) or call.verb in BETWEEN_TWO


def _busy(case: Case) -> float:
    """Return for which share of a step a mean rank can be busy.

    A stage begins when the ones before have passed on a micro-batch, and they go on when it has ended; where
    weights are left for the end, the first alone is certain, a third of the work.
    """
    plan, zero_bubble = case.plan, case.plan.schedule == "zero-bubble"
    idle = (plan.pp - 1) / (2 * case.train.micro_batches * plan.virtual_stages)
    return 1 / (1 + (idle / 3 if zero_bubble else idle))
