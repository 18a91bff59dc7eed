"""The fastest of all plans, without predicting all of them: best first, by estimates from below.

A plan is first estimated by what its ranks multiply and by their calls; then by what others computed whose
arrays have the same shapes, its family; then by what its first rank does, without its waits; then by its
program where everything takes its mean: a step is a maximum of sums of times, so by Jensen's inequality one
of means is no longer than the mean step. Last it is predicted. The plan whose estimate is least goes on; one
that is predicted by then is taken. Estimates are cut by margins, since a prediction is a median, and since
parts take other times among others.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from time import monotonic
from typing import Any

from pscale.config import Case, Plan
from pscale.config.axes import GRID_AXES
from pscale.mesh.dry import AxisCall, Event
from pscale.parallel import strategies
from pscale.parallel.recompute import executed_flops
from pscale.parallel.replicas import Call
from pscale.predict.costs import Costs
from pscale.predict.engine import Prediction, predict, usual_step_s
from pscale.predict.plans import leaner, plans
from pscale.predict.profile import Profile
from pscale.predict.step_program import Segment, Step, StepProgram, axes_of_calls, step_of, step_program
from pscale.results.events import BETWEEN_TWO
from pscale.training.dry_run import rank_program

DRAWS = 40
_MARGIN, _FAMILY_MARGIN = 0.9, 0.8
_TELLING_S = 0.2
_FEW = 2, 4  # micro-batches that tell of more
_WORK = ("forward", "backward")  # phases in which members of a family do the same
_WITHIN = ("tp", "cp", "ulysses", "ep", *GRID_AXES)  # axes of one replica and stage


@dataclass(frozen=True, kw_only=True)
class Search:
    """What was found: the fastest plans that fit in memory, in order, and how many were looked at.

    `too_large` are those that would be among them, with how many bytes they need; `bounded` had programs.
    """

    found: tuple[Prediction, ...]
    ended: bool  # by an interrupt: others may be faster
    too_large: tuple[Case, ...]
    plans: int
    bounded: int
    predicted: int


@dataclass(order=True)
class _Entry:
    """A plan in the queue; `stage` tells what its bound comes from."""

    bound_s: float
    number: int
    stage: int = field(compare=False)
    case: Case = field(compare=False)
    beside_s: float = field(default=0.0, compare=False)  # of calls that are no matter of its family
    of_first: Step | None = field(default=None, compare=False)
    program: StepProgram | None = field(default=None, compare=False)
    prediction: Prediction | None = field(default=None, compare=False)


_FAMILY, _RANK, _PROGRAM, _PREDICTION = range(4)


Tell = Callable[[int, int, int, int], None]  # how many are found, predicted, bounded, and left to look at


def search(
    case: Case,
    profile: Profile,
    fits: Callable[[Case], bool],
    most: int,
    tell: Tell = lambda *_: None,
) -> Search:
    """Find the `most` fastest plans for the work of a case on its ranks that fit in memory.

    `tell` is called as it goes on; an interrupt ends it with the best of those that were predicted by then.
    """
    return _Queue(profile, fits).run(list(plans(case)), most, tell)


class _Queue:
    """Plans by their bounds."""

    def __init__(self, profile: Profile, fits: Callable[[Case], bool]):
        self._profile, self._fits = profile, fits
        self._costs = Costs(profile, None)
        self._numbers = count()
        self._entries: list[_Entry] = []
        self._floors: dict[Hashable, float] = {}
        self._lines: dict[Plan, tuple[float, float]] = {}  # of few micro-batches, and what each more takes
        self._least: dict[Plan, tuple[float, float]] = {}  # seconds of work and calls, and of calls beside it
        self._seen: set[str] = set()
        self.too_large: list[Case] = []
        self.bounded = self.predicted = 0

    def run(self, cases: Sequence[Case], most: int, tell: Tell) -> Search:
        """Take plans out until so many are known, or an interrupt leaves those that were predicted."""
        found: list[Prediction] = []
        for case in sorted(cases, key=_effort):
            self._add(case)
        ended, told = False, -math.inf
        try:
            while self._entries and len(found) < most:
                entry = heapq.heappop(self._entries)
                if entry.prediction:
                    found.append(entry.prediction)
                else:
                    self._go_on(entry)
                if monotonic() > told + _TELLING_S or len(found) == most:
                    tell(len(found), self.predicted, self.bounded, self._left(most - len(found)))
                    told = monotonic()
        except KeyboardInterrupt:
            ended = True
            best = sorted(each for each in self._entries if each.prediction)
            found += [each.prediction for each in best[: most - len(found)] if each.prediction]
        return Search(
            found=tuple(found),
            ended=ended,
            too_large=tuple(self.too_large),
            plans=len(cases),
            bounded=self.bounded,
            predicted=self.predicted,
        )

    def _left(self, most: int) -> int:
        """Return how many plans may still be among the best, by their bounds and what was predicted."""
        predicted = sorted(each.bound_s for each in self._entries if each.prediction)
        worst_s = predicted[most - 1] if 0 < most <= len(predicted) else math.inf
        return sum(each.bound_s < worst_s for each in self._entries if not each.prediction) if most else 0

    def _add(self, case: Case, least_s: float = 0.0) -> None:
        """Put a plan into the queue of which no more is known than its calls and FLOPs.

        Those of few micro-batches stand for more of them, which come later and need no fewer.
        """
        if case.plan not in self._least:
            within_s, beside_s = self._calls_s(case)
            self._least[case.plan] = within_s + executed_flops(case) / case.ranks * self._s_per_flop, beside_s
        work_s, beside_s = self._least[case.plan]
        bound_s = _MARGIN * (work_s / _busy(case) + beside_s)
        self._put(_Entry(max(bound_s, least_s), 0, _FAMILY, case, beside_s))

    def _put(self, entry: _Entry, **changed: Any) -> None:
        heapq.heappush(self._entries, replace(entry, number=next(self._numbers), **changed))

    def _go_on(self, entry: _Entry) -> None:
        """Bound a plan once more, or predict it."""
        case, family = entry.case, _family(entry.case)
        floor_s = self._floors.get(family, 0.0) / _busy(case) + _MARGIN * entry.beside_s
        if entry.stage < _PROGRAM and floor_s > entry.bound_s:
            self._put(entry, bound_s=floor_s)
        elif entry.stage == _FAMILY:
            if self.too_large and not self._fits(case):
                self._leave_out(case, entry.bound_s)
                return
            if (own_s := self._of_fewer(case)) > entry.bound_s:
                self._put(entry, bound_s=own_s)
                return
            self.bounded += 1
            sizes, step = _sizes(case), step_of(rank_program(case, 0))
            if case.plan.pp == 1 and family not in self._floors:
                self._floors[family] = _FAMILY_MARGIN * sum(self._work(sizes, step))
            own_s = sum(self._own(sizes, step)) / _busy(case)
            self._put(entry, stage=_RANK, bound_s=max(entry.bound_s, _MARGIN * own_s), of_first=step)
        elif entry.stage == _RANK:
            program = step_program(case, entry.of_first)
            bound_s = _MARGIN * usual_step_s(case, program, self._costs)
            self._put(entry, stage=_PROGRAM, bound_s=bound_s, program=program, of_first=None)
        elif not self._fits(case):
            self._leave_out(case, entry.bound_s)
        else:
            self.predicted += 1
            prediction = predict(case, self._profile, draws=DRAWS, program=entry.program)
            self._put(entry, stage=_PREDICTION, bound_s=prediction.step_s.value, prediction=prediction)

    def _of_fewer(self, case: Case) -> float:
        """Return how long a pipeline computes at least by what it does of fewer micro-batches.

        Work stays the same, and calls of kernels and of ranks grow with their number: two tell of all others.
        """
        micro_batches = case.train.micro_batches
        if case.plan.pp == 1 or micro_batches <= _FEW[-1]:
            return 0.0
        if case.plan not in self._lines:
            cases = [replace(case, train=replace(case.train, micro_batches=count)) for count in _FEW]
            first, second = (sum(self._own(_sizes(each), step_of(rank_program(each, 0)))) for each in cases)
            self._lines[case.plan] = second, max(second - first, 0.0) / (_FEW[1] - _FEW[0])
        second, each_s = self._lines[case.plan]
        own_s = second + (micro_batches - _FEW[1]) * each_s
        return _FAMILY_MARGIN * own_s / _busy(case)

    def _leave_out(self, case: Case, bound_s: float) -> None:
        """Leave out a plan that needs too much memory, and try a leaner form of it."""
        self.too_large.append(case)
        for other in leaner(case):
            if other.id not in self._seen:
                self._seen.add(other.id)
                self._add(other, bound_s)

    def _calls_s(self, case: Case) -> tuple[float, float]:
        """Return what calls take at least: those for which ranks stop, of a replica's axes, and all others.

        Messages are left out. A call that may be started takes what it does so, if that is less.
        """
        within_s, beside_s, sizes = 0.0, 0.0, _sizes(case)
        for call in strategies.calls(case):
            size = sizes.get(call.axis, 1)
            if size > 1 and _stops(call.axis, call.verb):
                within_s += call.count * self._least_s(call, size, "call")
            elif size > 1 and call.axis not in (*_WITHIN, "pp") and call.verb not in BETWEEN_TWO:
                started_s = self._least_s(call, size, "start") + self._least_s(call, size, "wait")
                beside_s += call.count * min(self._least_s(call, size, "call"), started_s)
        return within_s, beside_s

    def _least_s(self, call: Call, size: int, event: Event) -> float:
        cost = self._costs.call(AxisCall(event, call.axis, call.verb, call.sent_bytes), size)
        return cost.late_s if event == "start" else min(cost.last_s, cost.late_s)

    @cached_property
    def _s_per_flop(self) -> float:
        """The least time of a FLOP in any segment that was measured."""
        flops = {
            key: sum(amount for name, amount in each.amounts.items() if name.endswith("flops"))
            for key, each in self._profile.segments.items()
        }
        times = self._profile.segments
        return min((times[key].times.mean / amount for key, amount in flops.items() if amount), default=0.0)

    @cached_property
    def _least_of_work(self) -> dict[str, float]:
        """The least mean of segments that compute the same, whatever is around them."""
        found: dict[str, float] = {}
        for each in self._profile.segments.values():
            found[each.work] = min(each.times.mean, found.get(each.work, math.inf))
        return found

    def _own(self, sizes: Mapping[str, int], step: Step) -> Iterator[float]:
        """Yield the times of a rank that waits for nobody; of messages those of sending."""
        for each in step:
            if isinstance(each, Segment):
                yield self._costs.segment(each).mean_s
            elif isinstance(each, AxisCall) and each.verb != "receive":
                cost = self._costs.call(each, sizes[each.axis])
                yield cost.late_s if each.event == "start" else min(cost.last_s, cost.late_s)

    def _work(self, sizes: Mapping[str, int], step: Step) -> Iterator[float]:
        """Yield what a rank spends on what all members of its family do."""
        phase = ""
        for each in step:
            if isinstance(each, Segment):
                phase = each.phase
                if phase in _WORK:
                    mean_s = self._costs.segment(each).mean_s
                    yield min(mean_s, self._least_of_work.get(each.work, mean_s))
            elif isinstance(each, AxisCall) and each.event == "call" and each.axis in _WITHIN:
                cost = self._costs.call(each, sizes[each.axis])
                yield min(cost.last_s, cost.late_s) if phase in _WORK else 0.0


def _sizes(case: Case) -> dict[str, int]:
    """Return how many ranks each axis of calls has."""
    sizes = case.plan.sizes
    return {axis: math.prod(sizes[each] for each in span) for axis, span in axes_of_calls(case).items()}


def _stops(axis: str, verb: str) -> bool:
    """Tell whether ranks never compute while such a call is under way."""
    exchanges = verb in ("all_to_all", "reduce_scatter", "broadcast", "reduce")
    return axis in _WITHIN and (exchanges or (verb == "all_gather" and axis != "cp"))


def _busy(case: Case) -> float:
    """Return for which share of a step a mean rank can be busy.

    A stage begins when the ones before have passed on a micro-batch, and they go on when it has ended; where
    weights are left for the end, the first alone is certain, a third of the work.
    """
    plan, zero_bubble = case.plan, case.plan.schedule == "zero-bubble"
    idle = (plan.pp - 1) / (2 * case.train.micro_batches * plan.virtual_stages)
    return 1 / (1 + (idle / 3 if zero_bubble else idle))


def _effort(case: Case) -> tuple[int, int]:
    """Return how long the program of a plan is, the shortest first: it stands for its family."""
    return case.plan.pp, case.train.micro_batches


def _family(case: Case) -> Hashable:
    """Return what plans share whose ranks together compute the same in forward and backward passes."""
    plan = case.plan
    sequences = case.train.batch // plan.batch_parts // case.train.micro_batches
    context = (plan.cp, plan.context, plan.ulysses) if plan.cp > 1 else 1
    return plan.tp, plan.sp, context, plan.ep, plan.matrix, plan.checkpoint, sequences
