"""Computing that is measured at the shapes of a plan: a rank of each kind runs alone, its peers emulated.

As many copies of it run at once as ranks of a node would, which slow each other by their memory, caches and
clocks. What a network does to a step is not in it: calls take the times of a run or of a described network.
Nor is what else slows computing, such as other programs: probes are timed by what they have of the CPU. A
rank of a traced case is probed in turn, and times are corrected by what it took in the run, as far as chance
does not explain the difference; ranks are late as they were there, and without a run each by itself, as the
steps of the probes were.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from pscale.analysis.text import duration_3
from pscale.config import Case, Inject, Jitter, Timing
from pscale.errors import UsageError
from pscale.mesh.grid import rank_at
from pscale.predict.observed import LaunchTimes, RankTimes, of_rank
from pscale.predict.profile import Distribution, Paces, Profile, SegmentTimes, parts_of
from pscale.predict.step_program import Block, Segment, StepProgram, step_program
from pscale.runs import store
from pscale.runs.step_time import Vector, steady

_FILES = "mpi-io", "files"  # ways of loading
_UNKNOWN = "is taken as long as without: no run tells"
_LAUNCH_S = 1.25  # of a kind, before it is launched once more
_MOST_LAUNCHES = 9
_MOST_RANKS = 64  # that are late each by itself


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Ranks that compute the same, in whatever order: copies of `rank` of `case` stand for them."""

    case: Case
    program: StepProgram
    block: Block
    copies: int = 1

    @property
    def rank(self) -> int:
        """The first of its ranks."""
        starts = {axis: place.start for axis, place in self.block.places.items()}
        return rank_at(self.case.plan.sizes, dict.fromkeys(self.case.plan.sizes, 0) | starts)

    @property
    def cpu_time(self) -> bool:
        """Whether it is timed by what it has of the CPU: one thread that waits for no file.

        Other programs, which take turns on its core, change how long a step takes by far more than that.
        """
        return self.case.threads == 1 and self.case.plan.offload == "none"

    @cached_property
    def segments(self) -> list[Segment]:
        """What it computes, in order."""
        return [each for each in self.block.step if isinstance(each, Segment)]

    @cached_property
    def name(self) -> str:
        """The same for as many copies that compute the same, on as many threads of the same libraries."""
        case, works = self.case, sorted({(each.phase, each.work) for each in self.segments})
        same = self.copies, case.threads, case.model.dtype, case.precision, case.launch, works
        return hashlib.sha256(repr(same).encode()).hexdigest()[:12]


Launch = Callable[[Kind, int, float], Path]  # which repeat, for how many seconds; where each copy's folder is


def kinds_of(case: Case, cores: int = 1) -> list[Kind]:
    """Return the kinds of the ranks of a case, on nodes of so many cores."""
    program, alone, copies = step_program(case), _alone(case), _copies(case, cores)
    return _distinct(
        Kind(case=alone, program=program, block=block, copies=copies) for block in program.blocks
    )


def _copies(case: Case, cores: int) -> int:
    """Return how many ranks of a node compute at once: in a pipeline some wait for the others."""
    plan, on_node = case.plan, min(case.ranks, case.launch.ranks_per_node or case.ranks)
    parts = case.train.micro_batches * plan.virtual_stages
    busy = parts / (parts + plan.pp - 1)
    return max(1, min(round(on_node * busy), cores // case.threads))


def check_probe(cases: Sequence[Case], *, priced: bool, anywhere: bool) -> None:
    """Raise UsageError where probes do not tell what is needed; `priced`: something tells what calls take."""
    if anywhere:
        raise UsageError(
            "--probe measures this machine, --any-machine predicts for another: give one of them"
        )
    if any(case.ghost.gflops for case in cases):
        raise UsageError("--probe measures computing, and ghosts only sleep: leave out --probe, or ghost")
    largest = max(cases, key=lambda case: case.ranks)
    if largest.ranks > 1 and not priced:
        raise UsageError(
            f"--probe measures computing, and {largest.label} has {largest.ranks} ranks that exchange data: "
            "say what calls take by --from RUN, a traced run, --bare RUN, a run of the suite collectives, or "
            "--network FILE"
        )


def _alone(case: Case) -> Case:
    """Return a case as one of its ranks can run it: without delays, and without files that others write."""
    from_memory = replace(case.data, loading="memory", prefetch=False, hints={})
    data = from_memory if case.data.loading in _FILES else case.data
    return replace(case, data=data, inject=Inject(), jitter=Jitter(), timing=Timing(gemm_peak=False))


def _distinct(kinds: Iterable[Kind]) -> list[Kind]:
    found: dict[str, Kind] = {}
    for kind in kinds:
        found.setdefault(kind.name, kind)
    return [*found.values()]


class Probes:
    """What kinds of ranks computed alone, beside the profile of a run or an empty one."""

    def __init__(
        self,
        profile: Profile,
        launch: Launch | None = None,
        fits: Callable[[Kind], bool] = lambda _: True,
        cores: int = 1,
    ):
        self.profile = profile
        self._launch, self._fits, self._cores = launch, fits, cores
        self._kinds: dict[str, list[Kind]] = {}  # by case
        self._found: dict[str, list[LaunchTimes]] = {}
        self._references: dict[str, tuple[Case, Kind]] = {}  # traced, by case that is predicted

    def measure(
        self, cases: Sequence[Case], seconds: float, before: Callable[[], None] = lambda: None
    ) -> None:
        """Probe the kinds of ranks of cases that the profile does not know, in so many seconds together.

        A rank of the traced case on the nearest number of ranks is probed in turn with those of each case, in
        rounds of random order; what is done `before` each is not counted. Of a case that does not fit in
        memory, ranks with fewer layers are.
        """
        for case in sorted(cases, key=lambda case: case.ranks):
            self._kinds[case.id] = self._kinds_that_fit(case)
        kinds = _distinct(kind for of_case in self._kinds.values() for kind in of_case)
        asked = [kind for kind in kinds if not self._is_known(kind)]
        if not asked:
            return
        for case in cases:
            traced = self._nearest(case)
            if traced and not all(map(self._is_known, self._kinds[case.id])):
                self._references[case.id] = traced, self._kinds_of(traced)[0]
        asked = _distinct([*asked, *(kind for _, kind in self._references.values())])
        rounds = min(max(int(seconds / len(asked) / _LAUNCH_S), 1), _MOST_LAUNCHES)
        order, left_s = random.Random(0), seconds
        for repeat in range(rounds):
            before()
            began, share = time.monotonic(), max(left_s, 0.0) / (rounds - repeat) / len(asked)
            for kind in order.sample(asked, len(asked)):
                assert self._launch
                times = _times(self._launch(kind, repeat, share), kind, repeat)
                self._found.setdefault(kind.name, []).append(times)
            left_s -= time.monotonic() - began
            if left_s <= 0:
                break

    def profile_for(self, case: Case) -> Profile:
        """Return the profile to predict a case by: of computing, what its own kinds of ranks took."""
        profile, kinds = self.profile, self._kinds.get(case.id, [])
        probed = [self._found[kind.name] for kind in kinds if not self._is_known(kind)]
        if not probed:
            return profile
        reference = self._references.get(case.id)
        factors = self._factors(reference[1]) if reference else np.ones(0)
        certain = _certain(np.log(factors), profile, reference[0]) if reference and len(factors) else 0.0
        if certain:
            probed = [[*map(_times_longer, launches, factors**certain)] for launches in probed]
        spread, degrees = _spread(profile, probed)
        parts = parts_of([launch for launches in probed for launch in _at_median(launches)])
        longer_s = _longer_s(profile)
        scatter = _scatter(profile) if len(factors) else None
        scattered = {key: _scattered(each, scatter) for key, each in parts.segments.items()}
        segments = {key: _slowed(each, longer_s or 0.0) for key, each in scattered.items()}
        notes = [_measured_by(probed, len(kinds)) + ", by CPU time" * kinds[0].cpu_time]
        layers = kinds[0].case.model.layers
        if layers < case.model.layers:
            notes[0] += f", with {layers} of {case.model.layers} layers, which is what fits in memory"
        if reference and len(factors):
            usual = float(np.median(factors))
            notes.append(
                f"computing is multiplied by {usual**certain:.2f}: ranks of {reference[0].label} took "
                f"{usual:.2f} times as long in the run as in probes in turn with these, of which chance "
                f"explains {1 - certain:.0%}"
            )
        else:
            notes.append("by how much other programs, and ranks beyond the cores, slow computing is left out")
        if any(each.overlapped and each.work for each in segments.values()):
            known = _UNKNOWN if longer_s is None else f"takes {duration_3(longer_s)} longer, as in the run"
            notes.append(f"computing while an exchange is under way {known}")
        return replace(
            profile,
            segments={**profile.segments, **segments},
            paces=profile.paces or tuple(_paces(case, parts.paces)),
            spread=spread,
            degrees=degrees,
            dtypes=tuple({*profile.dtypes, case.model.dtype}),
            threads=tuple({*profile.threads, case.threads}),
            notes=(*profile.notes, *notes),
        )

    def _kinds_that_fit(self, case: Case) -> list[Kind]:
        """Return the kinds of ranks of a case, of half its layers until they fit, one a stage at least."""
        kinds, model = self._kinds_of(case), case.model
        unit = case.plan.pp * case.plan.virtual_stages * (model.every if model.kind == "moe" else 1)
        fewer = max(model.layers // 2 // unit, 1) * unit
        if fewer >= model.layers or all(map(self._fits, kinds)):
            return kinds
        return self._kinds_that_fit(replace(case, model=replace(model, layers=fewer)))

    def _kinds_of(self, case: Case) -> list[Kind]:
        return [self._narrowed(kind) for kind in kinds_of(case, self._cores)]

    def _narrowed(self, kind: Kind) -> Kind:
        """Return a kind in half as many copies until they fit, in one at least."""
        fewer = kind.copies // 2
        return self._narrowed(replace(kind, copies=fewer)) if fewer and not self._fits(kind) else kind

    def _is_known(self, kind: Kind) -> bool:
        profile = self.profile
        same = kind.case.threads in profile.threads and kind.case.model.dtype in profile.dtypes
        works = {each.work for each in profile.segments.values()}
        return same and all(each.work in works for each in kind.segments if each.operations)

    def _nearest(self, case: Case) -> Case | None:
        """Return the traced case that tells most of how computing of a case is slowed."""
        traced = self.profile.cases
        same = [each for each in traced if each.threads == case.threads and not each.ghost.gflops]
        return min(same, key=lambda each: abs(math.log(each.ranks / case.ranks)), default=None)

    def _factors(self, reference: Kind) -> Vector:
        """Return for each launch of a traced rank alone by how much longer it computed in the run.

        Computing while an exchange is under way is left out: a lone rank has no exchanges.
        """
        profile, segments = self.profile, reference.segments[1:]  # the first is between steps
        plain = [place for place, each in enumerate(segments) if each.operations and not each.overlapped]
        in_run_s = sum(profile.segments[segments[place].key].times.mean for place in plain)
        alone_s = [float(_steps(launch, plain).mean()) for launch in self._found[reference.name]]
        return in_run_s / np.array(alone_s) if in_run_s and all(alone_s) else np.ones(0)


def _certain(logs: Vector, profile: Profile, traced: Case) -> float:
    """Return the share of a factor's logarithm that chance in the run and in probes does not explain."""
    squared = profile.spread**2 if profile.degrees else 0.0
    error = squared / max(len(profile.steps_s.get(traced.id, ())), 1)
    error += float(logs.var(ddof=1)) / len(logs) if len(logs) > 1 else squared
    centre = float(np.median(logs))
    return max(1 - error / centre**2, 0.0) if centre else 0.0


def _paces(case: Case, probed: Sequence[Paces]) -> Iterator[Paces]:
    """Yield launches of all ranks, each late by itself."""
    draws, ranks = np.random.default_rng(0), min(case.ranks, _MOST_RANKS)
    for number, pace in enumerate(probed):
        copies, count = (pace.common[:, None] * pace.own).T, len(pace.common)
        own = np.stack(
            [np.roll(copies[rank % len(copies)], draws.integers(count)) for rank in range(ranks)], axis=1
        )
        one = np.ones(count)
        yield Paces(case=case.id, repeat=number, ranks=ranks, common=one, calls=one, own=own)


def _times(data: Path, kind: Kind, repeat: int) -> LaunchTimes:
    """Return the times of the copies of a probe, without the first steps, in which the machine warms up."""
    tables = [_events(copy, kind.case.id, repeat) for copy in sorted(data.iterdir())]
    last = min(int(table["step"].max()) for table in tables)  # a copy may have taken one step more
    ranks = [of_rank(kind.rank, table[table["step"] <= last], kind.block) for table in tables]
    lengths = np.mean([each.segments.sum(axis=1) for each in ranks], axis=0)
    first = min(steady(lengths).start, len(lengths) - 1)
    steps = tuple(each.since(first) for each in ranks)
    return LaunchTimes(case=kind.case, repeat=repeat, program=kind.program, ranks=steps)


def _events(data: Path, case: str, repeat: int) -> pd.DataFrame:
    """Return the events of a copy, times in whole ns."""
    table: pd.DataFrame = store.read_part(data, "events", case, repeat).to_pandas()
    for name in ("enter", "leave", "wait"):
        table[name] = np.rint(table[f"{name}_s"].to_numpy(np.float64) * 1e9).astype(np.int64)
    return table


def _times_longer(launch: LaunchTimes, factor: float) -> LaunchTimes:
    """Return a launch whose computing took so many times as long."""
    return replace(launch, ranks=tuple(_rank_times_longer(each, factor) for each in launch.ranks))


def _rank_times_longer(times: RankTimes, factor: float) -> RankTimes:
    names = ("segments", "polls", "copies", "stalls", "between")
    return replace(times, **{name: getattr(times, name) * factor for name in names})


def _at_median(launches: Sequence[LaunchTimes]) -> list[LaunchTimes]:
    """Return launches of a kind as if each had computed as long as the median one."""
    means = [float(_steps(launch).mean()) for launch in launches]
    return [_times_longer(each, np.median(means) / mean) for each, mean in zip(launches, means, strict=True)]


def _steps(launch: LaunchTimes, places: Sequence[int] | slice = slice(None)) -> Vector:
    """Return the computing of the steps of a probe, of all copies on average; of some of its segments."""
    return np.asarray(np.mean([each.segments[:, places].sum(axis=1) for each in launch.ranks], axis=0))


def _longer_s(profile: Profile) -> float | None:
    """Return by how much longer a segment takes while an exchange is under way: the median of all works.

    What such an exchange moves does not grow with what is computed, so neither does this. None: unknown.
    """
    means: defaultdict[tuple[str, str], dict[bool, float]] = defaultdict(dict)
    for each in profile.segments.values():
        if each.work:
            means[each.phase, each.work][each.overlapped] = each.times.mean
    longer_s = [pair[True] - pair[False] for pair in means.values() if len(pair) == 2]
    return max(float(np.median(longer_s)), 0.0) if longer_s else None


def _scatter(profile: Profile) -> Vector | None:
    """Return how segments of a run scatter around their means, by quantile; the longest count most."""
    known = [each.times for each in profile.segments.values() if each.work and each.times.mean > 0]
    total_s = sum(each.mean for each in known)
    return np.sum([each.values for each in known], axis=0) / total_s if known else None


def _scattered(times: SegmentTimes, scatter: Vector | None) -> SegmentTimes:
    """Return a segment that scatters as those of the run: CPU time does not, where programs take turns."""
    if scatter is None or not times.work:
        return times
    return replace(times, times=Distribution(values=times.times.mean * scatter, count=times.times.count))


def _slowed(times: SegmentTimes, longer_s: float) -> SegmentTimes:
    """Return a segment as long as it takes while exchanges are under way, which a lone rank has not."""
    if not times.overlapped or not times.work:
        return times
    values = Distribution(values=times.times.values + longer_s, count=times.times.count)
    return replace(times, times=values)


def _spread(profile: Profile, probed: Sequence[Sequence[LaunchTimes]]) -> tuple[float, int]:
    """Return how launches scatter, of the run and of the probes, and its degrees of freedom."""
    squares = profile.degrees * profile.spread**2 if profile.degrees else 0.0
    degrees = profile.degrees
    for launches in probed:
        logs = np.log([float(np.median(_steps(launch))) for launch in launches])
        squares += float(((logs - logs.mean()) ** 2).sum())
        degrees += len(launches) - 1
    return (math.sqrt(squares / degrees) if degrees else float("nan")), degrees


def _measured_by(probed: Sequence[Sequence[LaunchTimes]], kinds: int) -> str:
    """Say what computing was measured by."""
    steps = sum(len(_steps(launch)) for launches in probed for launch in launches)
    which = "each kind of rank" if len(probed) == kinds else f"{len(probed)} of {kinds} kinds of ranks"
    count = sum(map(len, probed))
    copies = max(len(launches[0].ranks) for launches in probed)
    alone = f"alone in {copies} copies at once" if copies > 1 else "alone"
    return f"computing is measured: {steps} steps of {which}, {alone}, in {count} launch{'es' * (count > 1)}"
