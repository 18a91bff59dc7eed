"""Predict the step of a case: walk all ranks through draws of launches, and say what came of it.

A draw is a launch: its steps follow one another, and take their paces from consecutive steps of a launch that
was recorded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from pscale.analysis.columns import Row
from pscale.analysis.stats import Estimate
from pscale.analysis.timeline import PARTS
from pscale.config import Case
from pscale.errors import UsageError
from pscale.predict.costs import Costs
from pscale.predict.network import Fabric
from pscale.predict.profile import Paces, Profile
from pscale.predict.step_program import StepProgram, step_program
from pscale.predict.walk import StepPaces, Walk
from pscale.runs.step_time import Vector
from pscale.simulator.network import Network

DRAWS = 200
KINDS = ("compute", "copy", "offload", "transfer", "bubble", "imbalance", "jitter", "injected")
_STEPS = 4  # of a launch that count, after one that brings the ranks into their places
_FEWEST = 2
_AT_ONCE = 1 << 18  # clocks that are walked at once
_MOST_WORK = 1 << 28  # clocks x points of a step x steps of all draws
_VISIBLE = 1 / 2000  # of the step
SAYS_NOTHING = 5  # times as long: an interval that reaches so far
_WITHIN = 0.95  # quantile of the upper end: nine in ten lie between the ends


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value, and between which ends nine in ten launches lie."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """A step of a case that was not run.

    `step_s` is the step time of a launch, as reports have it; `draws` are those of single steps. `losses`
    are seconds of the mean rank's step by kind, which add up to `step_s.value`; of calls, `transfers` are
    mean seconds that are not hidden, by verb and axis. `waits` are mean seconds by rank class (its first
    rank) and phase. `timeline` is one step of some ranks of each class. No prediction of more than
    `checked_ranks` ranks was ever checked on this machine.
    """

    case: Case
    step_s: Interval
    draws: Vector
    losses: Mapping[str, float]
    transfers: Mapping[str, float]
    waits: Mapping[tuple[int, str], float]
    timeline: Sequence[Row]
    notes: tuple[str, ...]
    checked_ranks: int

    @property
    def largest_loss(self) -> str:
        """The kind of time, other than computing, that takes most; empty if there is none."""
        kinds = (kind for kind in self.losses if kind != "compute")
        return max(kinds, key=self.losses.__getitem__, default="")

    @property
    def says_nothing(self) -> bool:
        """Whether the interval reaches so far that the value tells next to nothing."""
        return self.step_s.high > SAYS_NOTHING * self.step_s.value

    @property
    def stated_s(self) -> Estimate:
        """The step time as it is stated: without interval where none for so many ranks was ever checked."""
        if self.case.ranks > self.checked_ranks:
            return Estimate(value=self.step_s.value)
        return Estimate(value=self.step_s.value, low=self.step_s.low, high=self.step_s.high)


def predict(
    case: Case,
    profile: Profile,
    network: Network | None = None,
    *,
    draws: int = DRAWS,
    seed: int = 0,
    program: StepProgram | None = None,
) -> Prediction:
    """Predict the step of a case on the profile's machine; on `network`, if one is given.

    `program` is that of the case, where it is known already. Where so many ranks take long, there are fewer
    draws. Raises PlanError where the ranks of a plan would wait for each other for ever.
    """
    if draws < _FEWEST:
        raise UsageError(f"--draws {draws}: at least {_FEWEST} are needed for an interval")
    if profile.sheet and not case.jitter.mean_s:
        draws = _FEWEST  # all are the same
    program = program or step_program(case)
    fabric = Fabric(network, program) if network else None
    costs = Costs(profile, fabric)
    chosen = paces_for(case, profile)
    random = np.random.default_rng(seed)
    launches, steps = _size(program, draws)
    wide = max(1, _AT_ONCE // program.ranks)
    walks = []
    for first in range(0, launches, wide):
        count = min(wide, launches - first)
        paces = list(
            drawn_paces(
                [chosen[(first + each) % len(chosen)] for each in range(count)], steps + 1, program, random
            )
        )
        walks.append(Walk(case, program, costs, paces, random, traced=not first).run())
    still = Walk(case, program, costs, _usual(program), None).run()
    lengths = np.concatenate([walk.lengths for walk in walks])
    longer = costs.longer()
    # What a stage waits for is as unsure as what the others compute: a walk tells, a sum over ranks does not.
    unsure_s = usual_step_s(case, program, longer) - still.lengths.mean() if longer else 0.0
    step_s = _interval(lengths, len(chosen), profile, still.certain_s, unsure_s)
    notes = [*profile.notes, *_unlike(case, profile), *costs.notes(), *(fabric.notes if fabric else ())]
    if all(pace.case != case.id for pace in chosen):
        notes.append("how much launches, steps and ranks differ is taken from other cases")
    if step_s.high > SAYS_NOTHING * step_s.value:
        notes.append(f"the interval spans {step_s.high / step_s.low:.0f} times: it tells next to nothing")
    if lengths.size < draws:
        notes.append(f"{lengths.size} draws instead of {draws}: more of so many ranks would take long")
    return Prediction(
        case=case,
        step_s=step_s,
        draws=lengths.ravel(),
        losses=_losses(_mean([walk.spent for walk in walks], walks), still.spent, step_s.value),
        transfers=_mean([walk.transfers for walk in walks], walks),
        waits=_mean([walk.waits for walk in walks], walks),
        timeline=_timeline(case, walks[0].spans),
        notes=tuple(notes),
        checked_ranks=max(profile.ranks_of.values(), default=0),
    )


def _unlike(case: Case, profile: Profile) -> Iterator[str]:
    """Yield in what no traced case is like this one, although kernels depend on it."""
    if case.model.dtype not in profile.dtypes:
        traced = ", ".join(profile.dtypes)
        yield f"{case.model.dtype} was not traced, only {traced}: kernels of another type differ in speed"
    if case.threads not in profile.threads:
        traced = ", ".join(map(str, profile.threads))
        yield f"ranks of {case.threads} threads were not traced, only of {traced}: taken as equally fast"


def usual_step_s(case: Case, program: StepProgram, costs: Costs) -> float:
    """Return how long a step takes if everything takes its mean: no longer than the mean step."""
    return float(Walk(case, program, costs, _usual(program), None).run().lengths.mean())


def _size(program: StepProgram, draws: int) -> tuple[int, int]:
    """Return how many launches are drawn, and how many steps of each, without the first."""
    points = max(len(block.step) for block in program.blocks)
    most = max(_FEWEST, min(draws, _MOST_WORK // (points * program.ranks)))
    steps = min(_STEPS, most)
    return math.ceil(most / steps), steps


def _mean(found: Sequence[Mapping], walks: Sequence[Walk]) -> dict:  # type: ignore[type-arg]
    """Return the means over all launches of what each walk found."""
    sums: Counter = Counter()  # type: ignore[type-arg]
    launches = sum(walk.launches for walk in walks)
    for each, walk in zip(found, walks, strict=True):
        for key, seconds in each.items():
            sums[key] += seconds * walk.launches / launches
    return dict(sums)


def _losses(spent: Mapping[str, float], still: Mapping[str, float], step_s: float) -> dict[str, float]:
    """Return the seconds of each kind: the waits that are left where everything takes its mean, and jitter.

    The step time is a median, what is spent are means: the shares of these count.
    """
    found = {kind: spent.get(kind, 0.0) for kind in KINDS}
    waited = sum(spent.values()) - sum(found.values())
    fixed = {kind: seconds for kind, seconds in still.items() if kind.startswith("wait ")}
    whole = sum(fixed.values())
    kept = min(whole, waited)
    for kind, seconds in fixed.items():
        found[kind.removeprefix("wait ")] += seconds * kept / whole if whole else 0.0
    found["jitter"] = waited - kept
    total = sum(found.values())
    return {kind: seconds * step_s / total for kind, seconds in found.items() if seconds > 0}


def _interval(lengths: Vector, sources: int, profile: Profile, certain_s: float, unsure_s: float) -> Interval:
    """Return the step time of a launch: launches scatter as they did, and extrapolations miss as they do.

    However far these miss, a step takes no less than its computing that was measured and the bytes of calls
    for which ranks stop, at the bandwidth of the network where one is described.
    """
    source = np.arange(len(lengths)) % sources
    medians = [np.median(lengths[source == each]) for each in np.unique(source)]
    value = float(np.exp(np.mean(np.log(medians))))
    reach = float(stdtrit(profile.degrees, _WITHIN)) * profile.spread if profile.degrees else math.inf
    reach *= math.sqrt(1 + 1 / sources)  # a launch to come scatters, and so does the mean of those measured
    if not math.isfinite(reach):  # of every case there was one launch: steps of it stand for launches
        low, high = np.quantile(lengths, [1 - _WITHIN, _WITHIN])
        reach = math.log(high / low) / 2
    unsure = float(stdtrit(math.inf, _WITHIN)) * unsure_s / value
    factor = math.exp(math.hypot(reach, unsure))
    least_s = min(certain_s, value) / math.exp(reach)
    return Interval(value=value, low=max(value / factor, least_s), high=value * factor)


def _timeline(case: Case, spans: Sequence[Row]) -> list[Row]:
    """Return spans from the beginning of the step on, those that can be seen."""
    began, ended = min(span.start_s for span in spans), max(span.stop_s for span in spans)
    length_s = ended - began
    same = {"case": case.id, "stages": case.plan.pp, "length_s": length_s}
    return [
        span._replace(**same, start_s=span.start_s - began, stop_s=span.stop_s - began)
        for span in spans
        if span.kind in PARTS or span.stop_s - span.start_s > length_s * _VISIBLE
    ]


def paces_for(case: Case, profile: Profile) -> list[Paces]:
    """Return the paces of launches of the case itself, else of all on the most ranks."""
    own = [pace for pace in profile.paces if pace.case == case.id]
    most = max(pace.ranks for pace in profile.paces)
    return own or [pace for pace in profile.paces if pace.ranks == most]


def _usual(program: StepProgram) -> list[StepPaces]:
    one = np.ones((1,) * (1 + len(program.sizes)))
    return [StepPaces(computing=[one] * len(program.blocks), calls=np.ones(1))] * 2


def drawn_paces(
    sources: Sequence[Paces], steps: int, program: StepProgram, random: np.random.Generator
) -> Iterator[StepPaces]:
    """Draw the paces of launches, step by step: those of a recorded launch from some step on.

    Ranks take the paces of ranks: each its own, those that nobody recorded one that they keep.
    """
    shape = tuple(program.sizes.values())
    starts = [int(random.integers(len(pace.common))) for pace in sources]
    seats = []
    for pace, apart in zip(sources, random.spawn(len(sources)), strict=True):
        others = apart.integers(pace.ranks, size=max(program.ranks - pace.ranks, 0))
        seats.append(np.append(np.arange(pace.ranks), others)[: program.ranks].reshape(shape))
    for step in range(steps):
        now = [(start + step) % len(pace.common) for start, pace in zip(starts, sources, strict=True)]
        whole = np.stack(
            [pace.common[at] * pace.own[at][seat] for pace, at, seat in zip(sources, now, seats, strict=True)]
        )
        boxes = ([slice(each.start, each.stop) for each in block.places.values()] for block in program.blocks)
        yield StepPaces(
            computing=[whole[(slice(None), *box)] for box in boxes],
            calls=np.array([pace.calls[at] for pace, at in zip(sources, now, strict=True)]),
        )
