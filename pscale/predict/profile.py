"""How long the parts of a step take on a machine, as distributions, from the traced launches of a run.

Whole steps differ too: launches do, steps of a launch, and ranks of a step. So every time is taken relative
to the pace of its rank in its step, and the paces are kept beside the distributions, as they came together.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pscale.analysis.frames import Run, no_training, records
from pscale.analysis.network import USUAL, calls_alone
from pscale.analysis.timeline import Traced, how_to_trace, traced
from pscale.config import Case, from_dict, to_dict
from pscale.errors import PlanError, ResultsError, UsageError
from pscale.mesh.dry import AxisCall
from pscale.mesh.grid import coordinates, rank_at
from pscale.predict.observed import LaunchTimes, RankTimes, Seconds, numbers_of_calls, observe
from pscale.predict.step_program import Segment, StepProgram, step_program
from pscale.runs.atomic_files import read_json, write_json
from pscale.runs.schema import AMONG_ALL, BETWEEN_TWO, TO_ROOT
from pscale.runs.step_time import Vector, steady, step_times
from pscale.simulator.network import DataSheet
from pscale.worker import calibration

QUANTILES = 64
CALIBRATION = "calibration.json"  # in a run's folder
_LEAST_S = 1e-9
_MOST_STEPS, _MOST_RANKS = 64, 64  # of a launch whose paces are kept


@dataclass(frozen=True, kw_only=True, eq=False)
class Distribution:
    """Equal shares of a sample, ordered, each by its mean: so the mean of them is that of the sample."""

    values: Vector
    count: int

    @classmethod
    def of(cls, sample: Vector) -> Distribution:
        """Return the distribution of a sample of at least one value."""
        ordered = np.sort(sample)
        sums = np.concatenate([[0.0], np.cumsum(ordered)])
        at = np.interp(np.linspace(0, len(ordered), QUANTILES + 1), np.arange(len(ordered) + 1), sums)
        return cls(values=np.diff(at) * QUANTILES / len(ordered), count=len(ordered))

    @property
    def mean(self) -> float:
        """The mean of the sample."""
        return float(self.values.mean())


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentTimes:
    """The time of a segment, and which shares of it go to looking at exchanges, copies and files."""

    work: str
    phase: str
    overlapped: bool
    amounts: Mapping[str, float]
    times: Distribution
    polled: float
    copied: float
    stalled: float


class Calibrated(NamedTuple):
    """Work of a small model that was computed on this machine, and its seconds; `shape` is the model's."""

    shape: int
    amounts: Mapping[str, float]
    seconds: float


class CallKey(NamedTuple):
    """What calls of the same distribution have in common.

    `mode` is call, root, start or wait.
    """

    verb: str
    mode: str
    size: int
    bytes: int

    @property
    def words(self) -> str:
        """Say what calls these are."""
        return f"{self.verb.replace('_', '-')} of {self.bytes:,} bytes on {self.size} ranks"


@dataclass(frozen=True, kw_only=True, eq=False)
class CallTimes:
    """The time of a call beyond waiting: since the last rank entered, or, for who came later, since then.

    `together`: the share of the variance of times that is between calls and not between the ranks of one.
    """

    last: Distribution | None
    late: Distribution | None
    together: float

    @property
    def after_last(self) -> Distribution:
        """The time since the last rank entered; of who came later where nobody waited."""
        found = self.last or self.late
        assert found is not None
        return found

    @property
    def when_late(self) -> Distribution:
        """The time of a rank for which the others had come; that since the last where all waited."""
        found = self.late or self.last
        assert found is not None
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Paces:
    """By how much longer everything took in the steps of a launch than it usually does.

    `common` by step, `calls` by step, `own` by step and rank, beside `common`.
    """

    case: str
    repeat: int
    ranks: int
    common: Vector
    calls: Vector
    own: Vector


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where a profile is from; the speeds of large products and of memory are those of a rank among all."""

    host: str
    cpu_model: str
    cores: int
    ranks_per_node: int
    gemm_gflops: float = math.nan
    stream_gb_s: float = math.nan


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """What is known of a machine from a run; `origin` is the run's folder.

    `spread` is the standard deviation of the logarithm of a launch's step time around that of its case, known
    with `degrees` of freedom; NaN if every case had one launch. `steps_s` are the measured step times of all
    good launches, by case. `dtypes` and `threads` are those of the traced `cases`. `notes` say what of the
    run was left out. `calibration` is what this machine takes for other work, if that was measured. With a
    `sheet` nothing was.
    """

    origin: str
    machine: Machine
    segments: Mapping[str, SegmentTimes] = field(default_factory=dict)
    calls: Mapping[CallKey, CallTimes] = field(default_factory=dict)
    paces: tuple[Paces, ...] = ()
    steps_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    ranks_of: Mapping[str, int] = field(default_factory=dict)
    spread: float = float("nan")
    degrees: int = 0
    cases: tuple[Case, ...] = ()
    dtypes: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    calibration: tuple[Calibrated, ...] = ()
    sheet: DataSheet | None = None

    @classmethod
    def of_run(cls, run: Run, bare: Run | None = None) -> Profile:
        """Measure the parts of the steps in all traced launches of a run.

        Calls that it did not make are those of `bare`, a run of bare collectives. Raises UsageError for a run
        without events or bare collectives, ResultsError where no launch fits its plan.
        """
        profile = _profile(run)
        return profile.beside(bare) if bare else profile

    def beside(self, bare: Run) -> Profile:
        """Return the profile with the bare collectives of another run."""
        note = f"calls that were not traced take the times of bare collectives, in run {bare.name}"
        return replace(self, calls={**_bare_calls(bare), **self.calls}, notes=(*self.notes, note))

    @cached_property
    def hash(self) -> str:
        """Twelve hexadecimal digits of the content."""
        calls = [(key, vars(each)) for key, each in self.calls.items()]
        text = json.dumps(vars(self) | {"calls": calls}, sort_keys=True, default=_plain)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def empty_profile(host: str, cpu_model: str, cores: int) -> Profile:
    """Return the profile of a machine of which nothing was measured."""
    machine = Machine(host=host, cpu_model=cpu_model, cores=cores, ranks_per_node=cores)
    return Profile(origin="probes of this machine", machine=machine)


def small_models(case: Case) -> list[Case]:
    """Return small models that compute what a case does; none of ghosts, which sleep instead."""
    return [] if case.ghost.gflops or case.model.kind not in calibration.KINDS else calibration.shapes(case)


def kept_calibration(
    run: Run, cases: Sequence[Case], phases_s: Sequence[Mapping[str, float]]
) -> tuple[Calibrated, ...]:
    """Return the work of small models, and keep it in a run's folder."""
    with suppress(OSError):  # a folder that cannot be written only costs another calibration
        write_json(run.path / CALIBRATION, {"cases": [*map(to_dict, cases)], "phases_s": phases_s})
    return calibrated(cases, phases_s)


def calibration_of(run: Run) -> tuple[Calibrated, ...]:
    """Return what a prediction from a run has kept there of its machine; nothing where that is damaged."""
    try:
        kept = read_json(run.path / CALIBRATION)
        return calibrated([from_dict(Case, each) for each in kept["cases"]], kept["phases_s"])
    except (
        OSError,
        ArithmeticError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        PlanError,
    ):
        return ()


def calibrated(cases: Sequence[Case], measured: Sequence[Mapping[str, float]]) -> tuple[Calibrated, ...]:
    """Return the work of small models, of which the seconds by phase were measured."""
    found = []
    for shape, (small, phases_s) in enumerate(zip(cases, measured, strict=False)):
        for each in step_program(small).blocks[0].step:
            if isinstance(each, Segment) and each.work and phases_s.get(each.phase):
                found.append(Calibrated(shape, each.amounts, phases_s[each.phase]))
    return tuple(found)


def _plain(value: Any) -> Any:
    """Return what JSON has for an array or the fields of an object."""
    return value.tolist() if isinstance(value, np.ndarray) else vars(value)


def case_of(run: Run, case: str) -> Case:
    """Return a case of a run as its suite had it; raises ResultsError where the run no longer knows."""
    try:
        planned = {name: value for name, value in run.planned[case].items() if name != "id"}
        return from_dict(Case, planned)
    except (TypeError, KeyError) as error:
        raise ResultsError(f"{run.path / 'run.json'}: case {case} is incomplete: {error}") from error


class Parts(NamedTuple):
    """The times of the parts of launches, and their paces."""

    segments: dict[str, SegmentTimes]
    calls: dict[CallKey, CallTimes]
    paces: list[Paces]


def parts_of(launches: Sequence[LaunchTimes]) -> Parts:
    """Return the parts of launches, each relative to the pace of its rank in its step."""
    segments: defaultdict[str, list[Seconds]] = defaultdict(list)
    calls: defaultdict[CallKey, list[Seconds]] = defaultdict(list)
    for launch in launches:
        for times in launch.ranks:
            _collect(launch, times, segments, calls)
    usual = {key: max(float(np.concatenate(parts).mean()), _LEAST_S) for key, parts in segments.items()}
    usual_call = {key: max(float(np.concatenate(parts).mean()), _LEAST_S) for key, parts in calls.items()}
    paces = [_paces(launch, usual, usual_call) for launch in launches]
    return Parts(_segments(launches, paces), _calls(launches, paces), paces)


def _profile(run: Run) -> Profile:
    launches, notes = _launches(run)
    parts = parts_of(launches)
    spread, degrees = _spread(run)
    steps = run.good[run.good["step_s"].notna()]
    return Profile(
        origin=str(run.path),
        machine=_machine(run),
        segments=parts.segments,
        calls=parts.calls,
        paces=tuple(parts.paces),
        steps_s={str(case): tuple(rows["step_s"].tolist()) for case, rows in steps.groupby("case")},
        ranks_of={str(row["case"]): int(row["ranks"]) for row in records(steps[["case", "ranks"]])},
        spread=spread,
        degrees=degrees,
        cases=tuple({launch.case.id: launch.case for launch in launches}.values()),
        dtypes=tuple(sorted({launch.case.model.dtype for launch in launches})),
        threads=tuple(sorted({launch.case.threads for launch in launches})),
        notes=tuple(notes),
        calibration=calibration_of(run),
    )


def _machine(run: Run) -> Machine:
    found = run.document.get("provenance", {}).get("machine", {})
    per_node = run.ranks.groupby(["case", "repeat", "node"], observed=True).size()
    return Machine(
        host=str(found.get("host", "")),
        cpu_model=str(found.get("cpu_model", "")),
        cores=int(found.get("cores", 0)),
        ranks_per_node=int(per_node.max()) if len(per_node) else 1,
        gemm_gflops=float(run.ranks["gemm_peak_gflops"].astype(float).median()),
        stream_gb_s=float(run.ranks["stream_gb_s"].astype(float).median()),
    )


def _launches(run: Run) -> tuple[list[LaunchTimes], list[str]]:
    """Return the traced launches, steady steps alone, and what was left out in sentences."""
    kept = traced(run)
    if run.planned and all(map(no_training, run.planned.values())):
        replay = f"; pscale report {run.path} --what-if NETWORK.yaml replays its calls on another network"
        raise UsageError(
            f"{run.path}: is of another program, whose steps on other ranks cannot be put together: "
            f"that needs a traced run of pscale's own trainer{replay if kept else ''}"
        )
    if not kept:
        raise UsageError(
            f"{run.path / 'data'}: has no events of any launch, so nothing is known of the parts of a step; "
            f"{how_to_trace(run)}"
        )
    programs: dict[str, StepProgram] = {}
    found, notes = [], []
    for launch in kept:
        if launch.case in run.bare or no_training(run.planned[launch.case]):
            continue
        try:
            case = case_of(run, launch.case)
            if launch.case not in programs:
                programs[launch.case] = _program_of(case)
            found.append(_steady(run, launch, observe(run, launch, case, programs[launch.case])))
        except ResultsError as error:
            notes.append(f"{launch.label}, launch {launch.repeat + 1} is left out: {error}")
    if not found:
        raise ResultsError(f"{run.path}: no traced launch fits its plan: {'; '.join(notes) or 'none trains'}")
    return found, notes


def _program_of(case: Case) -> StepProgram:
    """Return what a step of a case does; raises ResultsError for a case that no suite could have."""
    try:
        return step_program(case)
    except (PlanError, ValueError, ArithmeticError, LookupError, TypeError) as error:
        raise ResultsError(f"an impossible case: {error}") from error


def _steady(run: Run, launch: Traced, times: LaunchTimes) -> LaunchTimes:
    """Leave out the first steps, in which the machine warms up."""
    ends = run.ends[(run.ends["case"] == launch.case) & (run.ends["repeat"] == launch.repeat)]
    lengths = step_times(ends.sort_values("step")["end_s"].to_numpy(np.float64))
    first = min(steady(lengths).start, max(len(times.ranks[0].between) - 1, 0))
    return LaunchTimes(
        case=times.case,
        repeat=times.repeat,
        program=times.program,
        ranks=tuple(each.since(first) for each in times.ranks),
    )


class _Sample(NamedTuple):
    """Times, and the paces of the steps that they are from."""

    seconds: Seconds
    paces: Vector


def call_key(point: AxisCall, size: int) -> CallKey:
    """Return what is known of a call by its kind; who sends nothing is known by what arrives."""
    mode = "root" if point.root else point.event
    return CallKey(point.verb, mode, size, point.bytes or point.arriving)


def _observations(times: RankTimes) -> Iterator[tuple[Segment, int | None, Seconds]]:
    """Yield the segments of a rank with the number of the point behind each, and their times."""
    step = times.block.step
    between = step[0]
    assert isinstance(between, Segment)
    yield between, None, times.between[np.isfinite(times.between)]
    for place, segment in enumerate(step[1::2]):
        assert isinstance(segment, Segment)
        yield segment, place, times.segments[:, place]


def _keyed_calls(launch: LaunchTimes, times: RankTimes) -> Iterator[tuple[int, AxisCall, CallKey]]:
    """Yield the calls of a rank with their numbers among its points."""
    for place, point in enumerate(times.block.step[2::2]):
        if isinstance(point, AxisCall):
            yield place, point, call_key(point, launch.program.size(point.axis))


def _collect(
    launch: LaunchTimes,
    times: RankTimes,
    segments: defaultdict[str, list[Seconds]],
    calls: defaultdict[CallKey, list[Seconds]],
) -> None:
    for segment, _, seconds in _observations(times):
        segments[segment.key].append(seconds)
    for place, _, key in _keyed_calls(launch, times):
        calls[key].append(times.calls[:, place])


def _paces(launch: LaunchTimes, usual: Mapping[str, float], usual_call: Mapping[CallKey, float]) -> Paces:
    """Return the paces of a launch: sums over its segments, and over its calls, by the usual ones."""
    whole = np.stack(
        [
            times.segments.sum(axis=1)
            / sum(usual[each.key] for each in times.block.step[1::2] if isinstance(each, Segment))
            for times in launch.ranks
        ],
        axis=1,
    )
    common = whole.mean(axis=1)
    calls, expected = np.zeros(len(common)), 0.0
    for times in launch.ranks:
        calls += times.calls.sum(axis=1)
        expected += sum(usual_call[key] for _, _, key in _keyed_calls(launch, times))
    return Paces(
        case=launch.case.id,
        repeat=launch.repeat,
        ranks=len(launch.ranks),
        common=common,
        calls=np.maximum(calls / expected, _LEAST_S) if expected else np.ones(len(common)),
        own=whole / common[:, None],
    )


def _segments(launches: Sequence[LaunchTimes], paces: Sequence[Paces]) -> dict[str, SegmentTimes]:
    pools: defaultdict[str, list[_Sample]] = defaultdict(list)
    whole: defaultdict[str, Vector] = defaultdict(lambda: np.zeros(4))
    known: dict[str, Segment] = {}
    for launch, pace in zip(launches, paces, strict=True):
        for number, times in enumerate(launch.ranks):
            own = pace.common * pace.own[:, number]
            for segment, place, seconds in _observations(times):
                known[segment.key] = segment
                pools[segment.key].append(_Sample(seconds, own[len(own) - len(seconds) :]))
                if place is not None:
                    inside = [getattr(times, name)[:, place].sum() for name in ("polls", "copies", "stalls")]
                    whole[segment.key] += [seconds.sum(), *inside]
    found = {}
    for key, parts in pools.items():
        if (pooled := _pooled(parts)) is not None:
            segment, (total, *inside) = known[key], whole[key]
            polled, copied, stalled = (min(part / total, 1.0) if total else 0.0 for part in inside)
            found[key] = SegmentTimes(
                work=segment.work,
                phase=segment.phase,
                overlapped=segment.overlapped,
                amounts=segment.amounts,
                times=pooled,
                polled=polled,
                copied=copied,
                stalled=stalled,
            )
    return found


def _calls(launches: Sequence[LaunchTimes], paces: Sequence[Paces]) -> dict[CallKey, CallTimes]:
    last: defaultdict[CallKey, list[_Sample]] = defaultdict(list)
    late: defaultdict[CallKey, list[_Sample]] = defaultdict(list)
    instances: defaultdict[CallKey, list[Seconds]] = defaultdict(list)
    for number, (launch, pace) in enumerate(zip(launches, paces, strict=True)):
        for times in launch.ranks:
            group = dict(_groups(launch, times))
            for place, point, key in _keyed_calls(launch, times):
                seconds, waited = times.calls[:, place], times.waits[:, place] > 0
                last[key].append(_Sample(seconds[waited], pace.calls[waited]))
                late[key].append(_Sample(seconds[~waited], pace.calls[~waited]))
                if point.verb not in BETWEEN_TWO and point.event != "start":
                    steps = np.arange(len(seconds))
                    group_of = np.full(len(steps), hash((number, group[place])))
                    instances[key].append(np.stack([group_of, steps, seconds / pace.calls]))
    return {
        key: CallTimes(
            last=_pooled(last[key]),
            late=_pooled(late[key]),
            together=_alike(np.concatenate(instances[key], axis=1)) if key in instances else 0.0,
        )
        for key in last
    }


def _bare_calls(bare: Run) -> dict[CallKey, CallTimes]:
    """Return the times of blocking calls by themselves."""
    rows = calls_alone(bare)
    is_usual = rows["dtype"] == USUAL
    rows = rows[is_usual | (not is_usual.any())].copy()
    rows["each_s"], rows["each_bytes"] = rows["seconds"] / rows["count"], rows["bytes"] // rows["count"]
    found = {}
    by = ["case", "verb", "ranks", "each_bytes"]
    for _, same in rows.groupby(by):
        case, verb, *counts = same[by].iloc[0]
        size, sent = map(int, counts)
        message = int(bare.planned[case]["model"]["message_bytes"])
        arriving = message if verb == "broadcast" else message // size
        receives = verb in AMONG_ALL or not sent
        times = Distribution.of(same["each_s"].to_numpy(np.float64))
        for mode in ("call", "root") if verb in TO_ROOT else ("call" if receives else "root",):
            key = CallKey(verb, mode, size, sent or arriving)
            found[key] = CallTimes(last=times, late=times, together=0.0)
    return found


def _pooled(parts: Sequence[_Sample]) -> Distribution | None:
    """Return the distribution at the usual pace; at the paces of the samples its mean is theirs.

    A mean of ratios would be too high for what keeps its time while the pace of a step changes.
    """
    seconds, paces = (np.concatenate(each) for each in zip(*parts, strict=True))
    if not len(seconds):
        return None
    relative = seconds / paces
    mean = float(relative.mean())
    return Distribution.of(relative * (seconds.sum() / paces.sum() / mean if mean else 1.0))


def _groups(launch: LaunchTimes, times: RankTimes) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield for each call which call of which group of ranks it is."""
    points = times.block.step[2::2]
    numbers = numbers_of_calls(points)  # type: ignore[arg-type]
    sizes = launch.case.plan.sizes
    place = coordinates(sizes, times.rank)
    for number, point in enumerate(points):
        if isinstance(point, AxisCall):
            span = launch.program.spans[point.axis]
            first = rank_at(sizes, {axis: 0 if axis in span else at for axis, at in place.items()})
            yield number, (first, numbers[number])


def _alike(instances: NDArray[np.float64]) -> float:
    """Return the share of the variance of times that is between calls: 0 if ranks have nothing in common."""
    seconds = np.minimum(instances[2], np.quantile(instances[2], 0.98))
    _, which = np.unique(instances[:2], axis=1, return_inverse=True)
    sizes = np.bincount(which)
    means = np.bincount(which, seconds) / sizes
    whole, alone = (
        float(seconds.var()),
        float((1 / sizes[which]).mean()),
    )  # of ranks that have nothing in common
    if whole == 0 or alone == 1:
        return 0.0
    return max((float(means[which].var()) / whole - alone) / (1 - alone), 0.0)


def _spread(run: Run) -> tuple[float, int]:
    """Return the standard deviation of logarithms of step times around their case's, and its degrees."""
    good = run.good[run.good["step_s"] > 0]
    squares, degrees = 0.0, 0
    for _, rows in good.groupby("case", observed=True):
        logs = np.log(rows["step_s"].to_numpy(np.float64))
        squares += float(((logs - logs.mean()) ** 2).sum())
        degrees += len(logs) - 1
    return (squares / degrees) ** 0.5 if degrees else float("nan"), degrees
