"""What segments and calls of a program cost, by a profile: as measured, or from the nearest measured ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.linalg import cholesky
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from pscale.mesh.dry import AxisCall
from pscale.predict.network import Fabric
from pscale.predict.profile import Calibrated, CallKey, CallTimes, Machine, Profile, SegmentTimes, call_key
from pscale.predict.step_program import Segment
from pscale.runs.step_time import Vector
from pscale.simulator.network import Algorithm, DataSheet, moved_bytes, rounds
from pscale.training.meta_arrays import Compute

_NOTHING = np.zeros(1)
_LEAST_S = 1e-9
_SHAPES = "array shapes that were not measured"
_SIZES = "these sizes were not measured; times come from the nearest, by latency and bytes"
_FREE = "no rank of the run did so, and it counts as free"
_FADING = 3  # how fast; by trial on plans that were predicted from others
_TRIED = 12  # shapes that are taken from the others, to see how well that goes
_USUAL_S = {  # of a core; by the end of a name where it is no whole one
    "product flops": 1 / 20e9,
    "product edge": 16 / 20e9,  # sides of 16 take twice as long as large ones
    "attention flops": 1 / 5e9,
    "flops": 1 / 2e9,
    "far bytes": 1 / 10e9,
    "copied bytes": 1 / 5e9,
    "bytes": 1 / 20e9,
    "kernels": 20e-6,  # with what the layers do around them
    "copies": 2e-6,
    "segments": 5e-6,
}
_MACHINE_UNSURE, _WORK_UNSURE = 2.0, 0.7  # of logarithms: factors of 7 and 2
_PACE_UNSURE, _RATE_UNSURE = 0.3, 0.15  # by how much a run differs from what the machine was calibrated at
_MISFIT = 0.15  # of the logarithm, of times that the right seconds of all units leave
_LEAST_WEIGHT, _MOST_FITS = 0.1, 60
_HIDDEN_S = 1e-6  # what takes less was over before it was waited for, and tells nothing of how long it takes
_LEAST_BYTES = 64  # below it the size of a message makes no difference


@dataclass(frozen=True, kw_only=True, eq=False)
class SegmentCost:
    """The time of a segment at the usual pace, with the shares of it that are no computing.

    `unsure_s` is the standard error of its mean where it was not measured.
    """

    values: Vector
    polled: float = 0.0
    copied: float = 0.0
    stalled: float = 0.0
    unsure_s: float = 0.0

    @cached_property
    def mean_s(self) -> float:
        """The mean of the time."""
        return float(self.values.mean())


@dataclass(frozen=True, kw_only=True, eq=False)
class CallCost:
    """The time of a call since the last rank entered, and of a rank for which the others had come.

    In a share of calls, `together`, the ranks take as long as each other. `priced` by a network that was not
    measured, it keeps `link` from other calls for `busy_s`; else that is part of what was measured.
    """

    last: Vector
    late: Vector
    together: float = 0.0
    priced: bool = False
    busy_s: float = 0.0
    link: str = ""
    unsure_s: float = 0.0

    @cached_property
    def last_s(self) -> float:
        """The mean time since the last rank entered."""
        return float(self.last.mean())

    @cached_property
    def late_s(self) -> float:
        """The mean time of a rank for which the others had come."""
        return float(self.late.mean())


class Costs:
    """The costs of a program, each looked up once; what was not measured is noted."""

    def __init__(self, profile: Profile, network: Fabric | None):
        self._profile, self._network = profile, network
        self._segments: dict[str, SegmentCost] = {}
        self._kinds: dict[tuple[str, str], _Calls] = {}
        self._calls: dict[tuple[AxisCall, int], CallCost] = {}
        self._notes: dict[str, None] = {}

    @property
    def priced(self) -> bool:
        """Whether a network that was not measured prices calls."""
        return self._network is not None

    def notes(self) -> Iterator[str]:
        """Yield what was not measured, in sentences."""
        yield from self._notes

    def longer(self) -> Costs | None:
        """Return the costs looked up so far, each longer by its standard error; None: all were measured."""
        segments, calls = self._segments.items(), self._calls.items()
        if not any(cost.unsure_s for _, cost in segments) and not any(cost.unsure_s for _, cost in calls):
            return None
        found = Costs(self._profile, self._network)
        found._segments = {key: replace(cost, values=cost.values + cost.unsure_s) for key, cost in segments}
        found._calls = {
            key: replace(cost, last=cost.last + cost.unsure_s, late=cost.late + cost.unsure_s)
            for key, cost in calls
        }
        return found

    def segment(self, segment: Segment) -> SegmentCost:
        """Return the cost of a segment."""
        if segment.key not in self._segments:
            self._segments[segment.key] = self._segment(segment)
        return self._segments[segment.key]

    def call(self, point: AxisCall, size: int) -> CallCost:
        """Return the cost of a call, or of a part of one, over an axis of `size` ranks."""
        if (point, size) not in self._calls:
            self._calls[point, size] = self._call(point, size)
        return self._calls[point, size]

    def completion(self, start: AxisCall, size: int) -> CallCost:
        """Return the cost of what was started: of a message that is sent that of receiving it."""
        verb = "receive" if start.verb == "send" else start.verb
        return self.call(replace(start, event="wait", verb=verb, partner=None, request=None), size)

    def _segment(self, segment: Segment) -> SegmentCost:
        if self._profile.sheet:
            return SegmentCost(values=np.array([self._sheet_s(self._profile.sheet, segment)]))
        known = self._profile.segments
        if segment.key in known:
            return _cost(known[segment.key])
        same = [each for each in known.values() if each.work == segment.work]
        if same:
            found = max(same, key=lambda each: (*_likeness(each, segment), each.times.count))
            alike = not segment.operations or found.overlapped == segment.overlapped
            slower = self.slowdown if segment.overlapped else 1 / self.slowdown
            return _cost(found, 1.0 if alike else slower)
        if not segment.operations:
            return SegmentCost(values=_NOTHING)
        found, factor = self._rates.nearest(segment)
        self._note(f"computing in {segment.phase}", f"{_SHAPES}, {self._rates.rests_on(segment)}")
        return _cost(found, factor, self._rates.error(segment))

    def _sheet_s(self, sheet: DataSheet, segment: Segment) -> float:
        """Return how long a machine by data sheet computes: kernel by kernel, and copies there and back."""
        (dtype,), (threads,) = self._profile.dtypes, self._profile.threads
        works = [each for each in segment.operations if isinstance(each, Compute)]
        copied = sum(2 * each.bytes for each in segment.operations if isinstance(each, AxisCall))
        return sheet.kernel_s(0.0, copied, dtype, threads) + sum(
            sheet.kernel_s(each.flops, each.bytes, dtype, threads) for each in works
        )

    @cached_property
    def slowdown(self) -> float:
        """By how much longer the same work takes while an exchange is under way: the median of all works."""
        means: dict[tuple[str, str], dict[bool, list[float]]] = {}
        for each in self._profile.segments.values():
            if each.work:
                means.setdefault((each.phase, each.work), {True: [], False: []})[each.overlapped].append(
                    each.times.mean
                )
        ratios = [np.mean(pair[True]) / np.mean(pair[False]) for pair in means.values() if all(pair.values())]
        return float(np.median(ratios)) if ratios else 1.0

    @cached_property
    def _rates(self) -> _Rates:
        known = [each for each in self._profile.segments.values() if each.work]
        return _Rates(known, self._profile.calibration, _usual_of(self._profile.machine))

    def _call(self, point: AxisCall, size: int) -> CallCost:
        key = call_key(point, size)
        found, factor = self._measured(key)
        last, late = (found.after_last.values, found.when_late.values) if found else (_NOTHING, _NOTHING)
        sent = "send" if key.verb == "receive" else key.verb
        price = (
            self._network.price(point.axis, sent, key.bytes)
            if self._network and key.mode != "start"
            else None
        )
        if price is not None:
            # How calls differ is known from blocking ones: a wait for what was started is mostly overlap.
            differs = found and key.mode != "wait" and last.mean() > 0
            last = price.seconds * (last / last.mean() if differs else np.ones(1))
            cost = CallCost(last=last, late=_NOTHING, together=1.0, priced=True)
            return replace(cost, busy_s=price.busy_s, link=price.link)
        if found is None and self._profile.sheet:
            return CallCost(last=_NOTHING, late=_NOTHING)
        if found is None:
            self._note("starting calls" if key.mode == "start" else "calls", _FREE)
            return CallCost(last=_NOTHING, late=_NOTHING)
        unsure_s = 0.0
        if key not in self._profile.calls and key.mode != "start":
            unsure_s = self._comparable(key).error(key) * float(last.mean()) * factor
            verb = key.verb.replace("_", "-")
            self._note(f"{verb} over {point.axis}", _SIZES)
        return CallCost(last=last * factor, late=late * factor, together=found.together, unsure_s=unsure_s)

    def _measured(self, key: CallKey) -> tuple[CallTimes | None, float]:
        """Return the nearest call that was measured, and by how much longer this one takes."""
        known = self._profile.calls
        if key in known:
            return known[key], 1.0
        same = self._comparable(key)
        return same.nearest(key) if same.known else (None, 1.0)

    def _comparable(self, key: CallKey) -> _Calls:
        """Return the calls that tell most of one: of its kind, of its verb, blocking ones, else any."""
        kind = key.verb, key.mode
        if kind not in self._kinds:
            known, starts = self._profile.calls, key.mode == "start"
            alike = {each: times for each, times in known.items() if (each.mode == "start") == starts}
            same_verb = {each: times for each, times in alike.items() if each.verb == key.verb}
            same = {each: times for each, times in same_verb.items() if each.mode == key.mode}
            # A wait for what was started is mostly overlap: of other verbs and sizes, calls tell more.
            calls = {each: times for each, times in alike.items() if each.mode == "call"}
            of_sizes = {each: times for each, times in calls.items() if each.verb == key.verb}
            found = same or same_verb or calls or alike
            self._kinds[kind] = _Calls(found, found if len(found) > 1 else of_sizes or found)
        return self._kinds[kind]

    def _note(self, which: str, said: str) -> None:
        self._notes[f"{which}: {said}"] = None


class _Calls:
    """Measured calls from which others are taken; how times grow is that of `growth`."""

    def __init__(self, known: Mapping[CallKey, CallTimes], growth: Mapping[CallKey, CallTimes] | None = None):
        self.known, self._growth = known, growth or known

    def nearest(self, key: CallKey) -> tuple[CallTimes, float]:
        """Return the nearest one, and by how much longer a call takes by latency and bytes.

        It takes no less than one that moves less among no more ranks, and no more than one of the opposite.
        """
        keys, known = self._logs
        here = _log(key)
        place = int(np.abs(known - here).sum(axis=1).argmin())
        nearest = keys[place]
        expected, base = (float(_parts(each) @ self._line) for each in (key, nearest))
        factor = expected / base if base > 0 else 1.0
        if key.mode != "wait" and self._times[place] > 0:  # waits are what computing has left of a call
            least = self._times[(known <= here).all(axis=1)].max(initial=0.0)
            most = self._times[(known >= here).all(axis=1)].min(initial=math.inf)
            factor = max(min(factor, most / self._times[place]), least / self._times[place])
        return self.known[nearest], factor

    @cached_property
    def _times(self) -> Vector:
        return np.array([each.after_last.mean for each in self.known.values()])

    @cached_property
    def _logs(self) -> tuple[list[CallKey], Vector]:
        return [*self.known], np.array([_log(key) for key in self.known])

    def error(self, key: CallKey) -> float:
        """Return the relative error of a call: of each from the others, and of more ranks from fewer."""
        most = max(each.size for each in self.known)
        doublings = max(math.log2(key.size / most), 0.0)
        return max(self._each_from_others, self._of_a_doubling * doublings)

    @cached_property
    def _each_from_others(self) -> float:
        return self._missed({each: [each] for each in self.known})

    @cached_property
    def _of_a_doubling(self) -> float:
        """The relative error of calls on the most ranks, taken from those on fewer, for each time as many."""
        sizes = sorted({each.size for each in self.known})
        if len(sizes) == 1:
            return 0.0
        most = [each for each in self.known if each.size == sizes[-1]]
        return self._missed(dict.fromkeys(most, most)) / math.log2(sizes[-1] / sizes[-2])

    def _missed(self, without: Mapping[CallKey, Sequence[CallKey]]) -> float:
        """Return the mean relative error of calls, each taken from all but some."""
        missed = []
        for each, left_out in without.items() if len(self.known) > 1 else ():
            others = _Calls({key: at for key, at in self.known.items() if key not in left_out})
            found, factor = others.nearest(each)
            mean_s = max(self.known[each].after_last.mean, _LEAST_S)
            missed.append(min(abs(found.after_last.mean * factor / mean_s - 1), 1.0))
        return float(np.mean(missed)) if missed else 1.0

    @cached_property
    def _line(self) -> Vector:
        """What each of the parts of a call takes, none below 0, by their relative errors."""
        taken = {key: each.after_last.mean for key, each in self._growth.items()}
        taken = {key: mean for key, mean in taken.items() if mean > _HIDDEN_S} or dict.fromkeys(taken, 1.0)
        columns, times = np.array([_parts(key) for key in taken]), np.array([*taken.values()])
        if len({key.size for key in taken}) == 1:  # cannot tell how bytes grow with ranks
            columns[:, 2] = 0.0
        return _fit(columns, times, 1 / times)


def _parts(key: CallKey) -> Vector:
    """Return the rounds that a call needs, and the bytes it moves: at least, and in a tree, in each round.

    Libraries send all but the smallest blocks of an all-to-all from each rank to each (Thakur, Rabenseifner
    and Gropp, Optimization of collective communication operations in MPICH, 2005).
    """
    verb, size = "send" if key.verb == "receive" else key.verb, max(key.size, 2)
    least = moved_bytes(verb, size, key.bytes)
    algorithm: Algorithm = "pairwise" if verb == "all_to_all" else "best"
    return np.array([rounds(verb, size, algorithm), least, moved_bytes(verb, size, key.bytes, "tree")])


def _log(key: CallKey) -> Vector:
    """Return the logarithms of the bytes that a call moves and of its ranks: what makes calls near."""
    return np.log([_parts(key)[1] + _LEAST_BYTES, key.size])


def _fit(columns: Vector, times: Vector, weights: Vector) -> Vector:
    """Return by least squares how much of the times each unit of a column takes, none below 0."""
    scale = np.maximum(columns.max(axis=0), 1.0)
    solved, _ = nnls(columns / scale * weights[:, None], times * weights)
    return np.asarray(solved / scale)


def _likeness(known: SegmentTimes, segment: Segment) -> tuple[bool, bool]:
    return known.overlapped == segment.overlapped, known.phase == segment.phase


def _cost(found: SegmentTimes, factor: float = 1.0, error: float = 0.0) -> SegmentCost:
    values = found.times.values * factor
    return SegmentCost(
        values=values,
        polled=found.polled,
        copied=found.copied,
        stalled=found.stalled,
        unsure_s=float(values.mean()) * error,
    )


class _Rates:
    """The seconds of a unit of every kind of work: those of this machine or usual ones, corrected by a run.

    Logarithms of the seconds have a normal prior, so that what the segments cannot tell apart keeps what it
    was, with its uncertainty; that of the machine as a whole is known least.
    """

    def __init__(
        self,
        segments: Sequence[SegmentTimes],
        calibration: Sequence[Calibrated] = (),
        usual_s: Mapping[str, float] = _USUAL_S,
    ):
        self._segments, self._calibrated, self._usual_s = segments, bool(calibration), usual_s
        amounts = [each.amounts for each in segments] + [each.amounts for each in calibration]
        self._names = sorted({name for each in amounts for name in each})
        self._usual = np.array([_by_end(usual_s, name) for name in self._names])
        columns = np.array([self._row(each) for each in amounts])
        self._columns, self._calibration = columns[: len(segments)], columns[len(segments) :]
        self._calibrated_s = np.array([each.seconds for each in calibration])
        self._small = np.array([each.shape for each in calibration])
        self._times = np.array([max(each.times.mean, _LEAST_S) for each in segments])
        self._shapes, self._shape_of = np.unique(self._columns, axis=0, return_inverse=True)
        self._phases = np.array([each.phase for each in segments])
        self._flops = np.array([_flops(each.amounts) for each in segments])
        self._logs = np.log1p(self._columns)
        self._prior = self._of_machine(np.ones(len(calibration), bool))
        self._fitted, self._covariance = self._fit(np.ones(len(segments), bool))
        self._fitted_logs, _ = self._log_s(self._columns * self._usual, self._fitted)

    def _of_machine(self, which: NDArray[np.bool_]) -> tuple[Vector, Vector]:
        """Return what logarithms are by calibration, or usually, and their covariance before the run."""
        unsure = np.array([_MACHINE_UNSURE, *[_WORK_UNSURE] * len(self._names)])
        usual = np.zeros(len(unsure)), np.diag(unsure**2)
        if not which.any():
            return usual
        weights = np.full(which.sum(), 1 / _MISFIT)
        mean, covariance = self._solve(self._calibration[which], self._calibrated_s[which], weights, *usual)
        return mean, covariance + np.diag([_PACE_UNSURE**2, *[_RATE_UNSURE**2] * len(self._names)])

    def _fit(self, which: NDArray[np.bool_]) -> tuple[Vector, Vector]:
        """Return the logarithms of how far seconds are from what is usual, and their covariance."""
        # Segments of one shape are one observation; long ones are known best and matter most.
        counts = np.bincount(self._shape_of)[self._shape_of[which]]
        weights = np.sqrt(self._times[which] / self._times[which].max()).clip(_LEAST_WEIGHT) / _MISFIT
        return self._solve(self._columns[which], self._times[which], weights / np.sqrt(counts), *self._prior)

    def _solve(
        self, columns: Vector, times: Vector, weights: Vector, mean: Vector, covariance: Vector
    ) -> tuple[Vector, Vector]:
        """Return the most likely logarithms of a prior and of times, and their covariance."""
        parts, logs, of_prior = columns * self._usual, np.log(times), np.linalg.inv(cholesky(covariance))

        def misses(logs_of: Vector) -> Vector:
            misfit = (self._log_s(parts, logs_of)[0] - logs) * weights
            return np.concatenate([misfit, of_prior @ (logs_of - mean)])

        def slopes(logs_of: Vector) -> Vector:
            return np.vstack([self._log_s(parts, logs_of)[1] * weights[:, None], of_prior])

        solved = least_squares(misses, mean, slopes, max_nfev=_MOST_FITS)
        return np.asarray(solved.x), np.linalg.inv(solved.jac.T @ solved.jac)

    @staticmethod
    def _log_s(parts: Vector, logs_of: Vector) -> tuple[Vector, Vector]:
        """Return the logarithms of times, of parts at the usual seconds, and their slopes."""
        seconds = parts * np.exp(logs_of[0] + logs_of[1:])
        whole = np.maximum(seconds.sum(axis=1), _LEAST_S)
        return np.log(whole), np.hstack([np.ones((len(parts), 1)), seconds / whole[:, None]])

    def nearest(self, segment: Segment | SegmentTimes) -> tuple[SegmentTimes, float]:
        """Return the measured segment whose work is most alike, and by how much longer this one takes."""
        row = self._row(segment.amounts)
        far = np.abs(self._logs - np.log1p(row)).sum(axis=1) + (self._phases != segment.phase)
        place = int(far.argmin())
        here, _ = self._log_s(row[None] * self._usual, self._fitted)
        growth = float(here[0] - self._fitted_logs[place]) + self._of_strangers(segment.amounts, here[0])
        # By how much the nearest misses its fit tells the less, the more its work differs.
        missed = float(np.log(self._times[place]) - self._fitted_logs[place])
        fading = min(_FADING, 1 / max(abs(missed), _LEAST_S))  # no faster, or more work would take less time
        kept = 1 / (1 + fading * abs(growth))
        return self._segments[place], math.exp(growth + missed * (kept - 1))

    def error(self, segment: Segment) -> float:
        """Return the standard error of the logarithm of a time: of the fit, and as shapes are missed."""
        _, slope = self._log_s(self._row(segment.amounts)[None] * self._usual, self._fitted)
        return math.hypot(math.sqrt(float(slope[0] @ self._covariance @ slope[0])), self._missed)

    def rests_on(self, segment: Segment) -> str:
        """Say whether the work lies among what was measured in its phase, or how far away in FLOPs."""
        flops, of_phase = _flops(segment.amounts), self._flops[self._phases == segment.phase]
        known = of_phase[of_phase > 0]
        if not len(known) or not flops:
            return "taken from other work"
        times = max(flops / known.max(), known.min() / flops)
        distance = f"extrapolated {times:.2g} times in FLOPs" if times > 1 else "interpolated in FLOPs"
        return f"{distance} by rates {'of this machine' if self._calibrated else 'usual of a core'}"

    def _of_strangers(self, amounts: Mapping[str, float], log_s: float) -> float:
        """Return by what logarithm kinds of work that no segment had lengthen a time, at what is usual."""
        strange = sum(
            _by_end(self._usual_s, name) * amount
            for name, amount in amounts.items()
            if name not in self._names
        )
        return math.log1p(strange * math.exp(self._fitted[0] - log_s))

    @cached_property
    def _missed(self) -> float:
        """The error of the logarithm of shapes that are left out as a whole, of the run or of calibration."""
        if len(self._shapes) == 1 and not self._calibrated:
            return _WORK_UNSURE
        return max(self._missed_of_run if len(self._shapes) > 1 else 0.0, self._missed_of_small)

    @property
    def _missed_of_run(self) -> float:
        """Of shapes that take longest, each from all others, weighted by time."""
        longest = np.argsort(-np.bincount(self._shape_of, self._times))[:_TRIED]
        errors, lengths = [], []
        for shape in longest.tolist():
            out = self._shape_of == shape
            here, _ = self._log_s(self._shapes[shape][None] * self._usual, self._fit(~out)[0])
            errors.append(float(here[0] - np.log(self._times[out]).mean()))
            lengths.append(self._times[out].sum())
        return float(np.sqrt(np.average(np.square(errors), weights=lengths)))

    @property
    def _missed_of_small(self) -> float:
        """Of the small models of calibration, each from the others, weighted by time."""
        errors = np.zeros(len(self._small))
        for shape in np.unique(self._small):
            out = self._small == shape
            here, _ = self._log_s(self._calibration[out] * self._usual, self._of_machine(~out)[0])
            errors[out] = here - np.log(self._calibrated_s[out])
        return float(np.sqrt(np.average(errors**2, weights=self._calibrated_s))) if len(errors) else 0.0

    def _row(self, amounts: Mapping[str, float]) -> Vector:
        return np.array([amounts.get(name, 0.0) for name in self._names])


def _flops(amounts: Mapping[str, float]) -> float:
    return sum(amount for name, amount in amounts.items() if name.endswith(" flops"))


def _by_end(usual_s: Mapping[str, float], name: str) -> float:
    """Return the seconds of a unit of work that are usual of a core."""
    return usual_s.get(name) or next(s for kind, s in usual_s.items() if name.endswith(kind))


def _usual_of(machine: Machine) -> dict[str, float]:
    """Return the seconds that are usual, of large products and of memory those that a run recorded."""
    found = dict(_USUAL_S)
    if machine.gemm_gflops > 0:
        found |= {"product flops": 1e-9 / machine.gemm_gflops, "product edge": 16e-9 / machine.gemm_gflops}
    if machine.stream_gb_s > 0:
        found["far bytes"] = 1e-9 / machine.stream_gb_s
    return found
