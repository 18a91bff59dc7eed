"""What became of the cases of a suite from run to run: levels, what changed at them, and whether it is worse.

The normal level of a case is the best one since the last that was accepted: an improvement becomes normal by
itself, a level that is worse does not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pscale.analysis import scaling
from pscale.analysis.columns import Row, row
from pscale.analysis.contrasts import command_of, labels_of, work_of
from pscale.analysis.difference import RELEVANT, Answer, answer_of, slope
from pscale.analysis.frames import KINDS, Run, grouped
from pscale.analysis.settings import environment, machine
from pscale.analysis.stats import Estimate, Sample, student_quantile
from pscale.analysis.text import duration_3
from pscale.config.metrics import MEMORY_KINDS
from pscale.runs.history import Acceptance, Entry, History

_LEAST = 0.01  # a level that is worse by less fails no check
_SEEN = 4.2  # standard errors of a change that is found 8 times in 10
_ALONE = 3.5  # standard errors by which one run that lies apart asks for another
_STEADY = 1 / 8  # of the runs: a field that changes at more of them marks no place
_OWN_PACE = frozenset({"code", "MPI", "host", "driver", "case"})  # these cannot change the pace of local work
_PAIRS = 10_000  # of launches, from which it is known how steps follow the pace: more cost time alone
_WILD = 3.0  # deviations beyond which a launch counts no more
_BESIDE = 8  # runs on either side of a change whose parts of a step are compared


class Segment(NamedTuple):
    """Neighbouring runs at one level: from `start` until before `stop`."""

    start: int
    stop: int
    step_s: float

    @property
    def runs(self) -> int:
        """How many they are."""
        return self.stop - self.start


class CaseHistory(NamedTuple):
    """A row of `histories`, and those of `level_changes` and `counter_changes` of the case."""

    row: Row
    changes: Sequence[Row]
    counters: Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class SuiteHistory:
    """The histories of a suite's cases, as far as the newest run has them, and what else there is to know."""

    suite: str
    runs: int
    launches: int
    cases: Sequence[Row]
    changes: Sequence[Row]
    counters: Sequence[Row]
    damaged: Sequence[int]  # lines that could not be read
    acceptances: Sequence[Acceptance]

    @property
    def answer(self) -> Answer:
        """The worst answer of all cases, where more work counts as slower; undecided without any."""
        answers = {"slower" if is_worse(case) else case.answer for case in self.cases} or {"undecided"}
        order: tuple[Answer, ...] = ("slower", "undecided", "faster")
        return next((answer for answer in order if answer in answers), "equal")


def is_worse(case: Row) -> bool:
    """Tell whether a case is slower, or does more of what is counted exactly."""
    return case.answer == "slower" or bool(case.counter)


def suite_history(history: History, relevant: float = RELEVANT) -> SuiteHistory:
    """Return what is known of every case; `relevant` is the least change that has to be seen to say none."""
    by_label = grouped(history.entries, lambda entry: entry.label)
    accepted = {each.label: each for each in history.acceptances}
    histories = [case_history(entries, accepted.get(label), relevant) for label, entries in by_label.items()]
    return SuiteHistory(
        suite=history.suite,
        runs=len({entry.run for entry in history.entries}),
        launches=sum(len(entry.steps) for entry in history.entries),
        cases=[each.row for each in histories],
        changes=[change for each in histories for change in each.changes],
        counters=[change for each in histories for change in each.counters],
        damaged=history.damaged,
        acceptances=history.acceptances,
    )


def case_history(entries: Sequence[Entry], accepted: Acceptance | None, relevant: float) -> CaseHistory:
    """Return the history of one case, whose runs are in order."""
    causes = Causes(entries)
    counters = [*_counter_changes(entries, causes)]
    every, work = len(entries), entries[-1].work
    # Earlier versions kept nothing of the command of a program, which follows the semicolon.
    entries = [entry for entry in entries if entry.work in (work, work.partition("; ")[0])]
    causes = causes if len(entries) == every else Causes(entries)
    series = _at_one_pace(entries, causes)
    steps = level_changes(series, causes.marks)
    places = [change.at for change in steps]
    noise = estimate_noise(series, places) if len(entries) >= FEWEST else None
    levels = _levels(series.values, places)
    runs = [entry.run for entry in entries]
    first = runs.index(accepted.accepted) if accepted is not None and accepted.accepted in runs else None
    judged = _Judged(levels, noise, first, np.array([*map(_error, entries)]))
    newest, named = levels[-1], {"case": entries[-1].case, "label": entries[-1].label}
    changes = [
        row(
            "level_changes",
            **named,
            run=entries[change.at].run,
            before_s=before.step_s,
            after_s=after.step_s,
            ratio=judged.ratio(after, before),
            p=change.p,
            cause=causes.at(change.at),
            parts=_parts(entries, before, after),
        )
        for change, before, after in zip(steps, levels[:-1], levels[1:], strict=True)
    ]
    history = row(
        "histories",
        **named,
        runs=runs,
        steps_s=np.exp(series.values).tolist(),
        levels=levels,
        step_s=newest.step_s,
        normal_s=judged.normal.step_s,
        since=entries[newest.start].run if newest.start else "",
        cause=causes.at(newest.start) if newest.start else "",
        other_work=every - len(entries),
        **_grown(entries[first or 0 :]),
        **_answer(judged, series.values, relevant),
    )
    return CaseHistory(row=history, changes=changes, counters=counters)


def _error(entry: Entry) -> float:
    """Return the standard error of the mean of a run's launches; 0 where there is none."""
    if entry.paces or len(entry.steps) < 2:
        return 0.0
    return float(np.std(entry.steps, ddof=1)) / math.sqrt(len(entry.steps))


def _at_one_pace(entries: Sequence[Entry], causes: Causes) -> Series:
    """Return the runs' times as if the machine had been equally fast, as far as its pace tells.

    A new library may compute the fixed work at another speed too, and that is no change of the machine's:
    where the pace itself changes with what computes it, paces are not compared across.
    """
    counts = np.array([len(entry.steps) for entry in entries])
    run = np.repeat(np.arange(len(entries)), counts)
    steps = np.concatenate([entry.steps for entry in entries])
    edges = [0, *_epochs(entries, causes), len(entries)]
    for start, stop in pairwise(edges):
        if entries[start].paces:
            mask = (run >= start) & (run < stop)
            steps[mask] = _adjusted(steps[mask], entries[start:stop], run[mask])
    return _runs(steps, run, counts)


def _epochs(entries: Sequence[Entry], causes: Causes) -> Iterator[int]:
    """Yield the runs from which on paces cannot be compared with those before."""
    began = [
        place
        for place, (one, other) in enumerate(pairwise(entries), 1)
        if bool(one.paces) != bool(other.paces)
    ]
    new = [place for place, fields in enumerate(causes.changed, 1) if fields - _OWN_PACE]
    for start, stop in pairwise([0, *began, len(entries)]):
        inside = [place - start for place in new if start < place < stop]
        if start:
            yield start
        if inside and entries[start].paces:
            counts = np.array([len(entry.paces) for entry in entries[start:stop]])
            paces = np.concatenate([entry.paces for entry in entries[start:stop]])
            series = _runs(paces, np.repeat(np.arange(stop - start), counts), counts)
            yield from (start + change.at for change in level_changes_at(series, inside))


def _adjusted(steps: Vector, entries: Sequence[Entry], run: Places) -> Vector:
    """Return the levels of launches at the mean pace, on the scale of their step times."""
    levels = np.concatenate([entry.levels for entry in entries])
    paces = np.concatenate([entry.paces for entry in entries])
    pairs = [
        (levels[apart:] - levels[:-apart], paces[apart:] - paces[:-apart], run[apart:] - run[:-apart] <= 1)
        for apart in range(1, min(len(levels), 2 * max(len(entry.paces) for entry in entries)))
    ]
    if not pairs:
        return steps
    apart_by = [np.concatenate([pair[side][pair[2]] for pair in pairs]) for side in (0, 1)]
    some = slice(None, None, 1 + len(apart_by[0]) // _PAIRS)
    followed = slope(apart_by[0][some], apart_by[1][some])
    return np.asarray(levels - followed * (paces - paces.mean()) + np.median(steps - levels))


def _runs(steps: Vector, run: Places, counts: Places) -> Series:
    """Return the means of runs, of launches that single wild ones do not lead astray."""
    inside = np.diff(steps)[np.diff(run) == 0]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    if len(inside):
        spread = 1.4826 * float(np.median(np.abs(inside))) / math.sqrt(2)
        ordered = steps[np.lexsort((steps, run))]
        middle = ((ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2)[run]
        steps = np.clip(steps, middle - _WILD * spread, middle + _WILD * spread)
    means = np.add.reduceat(steps, starts) / counts
    squares = float(((steps - means[run]) ** 2).sum())
    degrees = counts - 1
    variance = squares / max(int(degrees.sum()), 1) * float((1 / counts).mean())
    return Series(values=means, variance=variance, degrees=degrees)


def _levels(values: Vector, places: Sequence[int]) -> list[Segment]:
    edges = [0, *places, len(values)]
    return [
        Segment(start, stop, math.exp(float(values[start:stop].mean()))) for start, stop in pairwise(edges)
    ]


def _differing(one: Entry, other: Entry) -> set[str]:
    fields = {"code"} if one.code != other.code else set[str]()
    if one.fingerprint is not other.fingerprint:  # nearly always it is, as read from a file
        fields |= {name for name, _ in one.fingerprint.items() ^ other.fingerprint.items()}
    return fields


class Causes:
    """What changed from run to run beside the times."""

    def __init__(self, entries: Sequence[Entry]):
        self._entries = entries
        self.changed = [_differing(one, other) for one, other in pairwise(entries)]
        self._often = Counter(field for fields in self.changed for field in fields)

    def _steady(self, field: str) -> bool:
        return self._often[field] <= max(1.0, _STEADY * len(self.changed))

    @property
    def marks(self) -> list[int]:
        """The runs before which a field changed that does not change all the time."""
        return [place for place, fields in enumerate(self.changed, 1) if any(map(self._steady, fields))]

    def at(self, place: int) -> str:
        """Say what changed before a run: fields that seldom change, others only where none of those did."""
        one, other = (
            {"code": each.code, **each.fingerprint} for each in self._entries[place - 1 : place + 1]
        )
        order = [*one, *other]
        fields = sorted(self.changed[place - 1], key=lambda field: (self._often[field], order.index(field)))
        named = [field for field in fields if self._steady(field)] or fields
        words = (f"{field} {one.get(field) or 'none'} → {other.get(field) or 'none'}" for field in named)
        return "; ".join(words) or "nothing that was recorded"


class _Judged:
    """The levels of a case, and which of them is the normal one."""

    def __init__(self, levels: Sequence[Segment], noise: Noise | None, accepted: int | None, errors: Vector):
        self.levels, self.noise, self._errors = levels, noise, errors
        start = next(
            (i for i, level in enumerate(levels) if accepted is not None and accepted < level.stop), 0
        )
        self.before = self.normal = levels[start]
        for level in levels[start + 1 :]:
            if (high := self.ratio(level, self.normal).high) is not None and high < 1:
                self.before, self.normal = self.normal, level

    def ratio(self, level: Segment, other: Segment) -> Estimate:
        """Return a level over another with its interval."""
        value = level.step_s / other.step_s
        if level is other:
            return Estimate(value=1.0, low=1.0, high=1.0)
        if self.noise is None:
            return Estimate(value=value)
        error = max(self.noise.error(level.runs, other.runs), self._error(level, other))
        reach = math.exp(student_quantile(self.noise.degrees) * error)
        return Estimate(value=value, low=value / reach, high=value * reach)

    def _error(self, *levels: Segment) -> float:
        """Return the standard error of a difference of levels by the launches of their own runs.

        Noise that has grown is larger in the newest runs than in all.
        """
        squares = [self._errors[level.start : level.stop] ** 2 for level in levels]
        return math.sqrt(sum(float(each.mean()) / len(each) for each in squares))


def _grown(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the first counter of the newest run that is above its least, and how many others are."""
    every = {id(entry.counters): entry.counters for entry in entries}.values()
    newest = entries[-1].counters
    least = {name: min(counters.get(name, value) for counters in every) for name, value in newest.items()}
    grown = [name for name, value in newest.items() if value > least[name]]
    if not grown:
        return {}
    ends = {"counter_before": least[grown[0]], "counter_after": newest[grown[0]]}
    return {"counter": grown[0], **ends, "counters_more": len(grown) - 1}


def _answer(judged: _Judged, values: Vector, relevant: float) -> dict[str, Any]:
    """Return what is known of the newest level beside the normal one, and of the newest run beside it.

    Where the newest level is the normal one, it is compared with what was normal before.
    """
    newest, noise = judged.levels[-1], judged.noise
    ratio = judged.ratio(newest, judged.normal)
    if noise is None:
        return {"ratio": ratio, "answer": "undecided"}
    lone = _lone(newest, values, noise, relevant)
    detectable = math.expm1(_SEEN * noise.error(2, max(len(values) - 2, 1)))
    answer = answer_of(ratio, differs=ratio.value > 1 + _LEAST, equal=not lone and detectable <= relevant)
    if answer == "equal" and newest is judged.normal and newest is not judged.before:
        answer = "faster"
    return {
        "ratio": ratio,
        "answer": answer,
        "gain": 1 - newest.step_s / judged.before.step_s if answer == "faster" else None,
        "lone": lone or None,
        "detectable": detectable,
    }


def _lone(newest: Segment, values: Vector, noise: Noise, relevant: float) -> float:
    """Return by how much the newest run alone is slower than its level; 0 where that is not worth a word."""
    before = values[newest.start : -1]
    apart = float(values[-1] - before.mean()) if len(before) else 0.0
    above = apart > math.log1p(relevant) and apart > _ALONE * noise.error(1, len(before))
    return math.expm1(apart) if above else 0.0


def _counter_changes(entries: Sequence[Entry], causes: Causes) -> Iterator[Row]:
    """Yield every change of a counter from a run to the next."""
    for place, (one, other) in enumerate(pairwise(entries), start=1):
        names = {**one.counters, **other.counters} if one.counters is not other.counters else ()
        for counter in names:
            before, after = one.counters.get(counter), other.counters.get(counter)
            if before != after:
                known = {"case": other.case, "label": other.label, "run": other.run, "counter": counter}
                yield row("counter_changes", **known, before=before, after=after, cause=causes.at(place))


def _parts(entries: Sequence[Entry], before: Segment, after: Segment) -> str:
    """Return the two parts of a step that changed most, by phase and kind."""
    one, other = (
        pd.DataFrame([entry.times_s for entry in side])[[*side[0].times_s]].fillna(0.0).mean()
        for side in (
            entries[max(before.start, before.stop - _BESIDE) : before.stop],
            entries[after.start : after.start + _BESIDE],
        )
    )
    apart = other.sub(one, fill_value=0.0)
    largest = apart.loc[apart.abs().sort_values(ascending=False, kind="stable").index[:2]]
    named = largest[largest.abs() > apart.abs().max() / 4]
    return ", ".join(
        f"{name} {'+' if value > 0 else '−'}{duration_3(abs(value))}" for name, value in named.items()
    )


def accepting(
    history: SuiteHistory, labels: Sequence[str], reason: str, now_unix_s: float
) -> list[Acceptance]:
    """Return what makes the newest levels of cases the normal ones: those named, or all that are worse."""
    return [
        Acceptance(accepted=case.runs[-1], label=case.label, reason=reason, at_unix_s=now_unix_s)
        for case in history.cases
        if (case.label in labels if labels else is_worse(case))
    ]


# What a run adds to the history of its suite: times, exact counters and the fingerprint of every case

_MEMORY = (*MEMORY_KINDS, "offloaded", "buffers")
_FIELDS = {  # of a fingerprint, by what the machine or the run calls it
    "MPI": "MPI",
    "BLAS": "BLAS",
    "Kernels": "kernels",
    "Hosts": "host",
    "CPU": "processor",
    "kernel": "operating system",
    "driver": "driver",
    "job.governor": "governor",
    "job.python": "Python",
}
_COMPUTING = ("OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "NVPL_")  # variables of a rank
_COMMUNICATING = ("MPICH_", "OMPI_MCA_", "I_MPI_", "UCX_", "FI_", "HYDRA_", "PRTE_")  # of who launches it
_SMALL = 1e-3  # of a step: a time below is not kept
_DIGITS = 7  # of a logarithm: to 0.00001 %


def entries_of(run: Run) -> list[Entry]:
    """Return what is known of each case that was measured."""
    times, labels = scaling.step_samples(run), labels_of(run)
    often = Counter(labels.values())
    return [
        _entry(run, case, label if often[label] == 1 else case, times[case])
        for case, label in labels.items()
        if case in times and times[case].logs is not None
    ]


def _entry(run: Run, case: str, label: str, times: Sample) -> Entry:
    of_case = replace(
        run,
        cases=run.good[run.good["case"] == case],
        ranks=run.ranks[run.ranks["case"] == case],
    )
    environment_of_case = {**environment(of_case), **dict(machine(of_case))}
    begun = run.cases["started_unix_s"].min()  # of the run: its cases stay in the order of the suite
    commit = environment_of_case.get("git.commit", "")[:12]
    dirty = bool(commit) and environment_of_case.get("git.dirty") == "true"  # files differ from it
    program = command_of(run, case)
    step = [value for name, value in work_of(run, case).items() if name not in program]
    work = ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in step)
    return Entry(
        run=run.name,
        begun_unix_s=0.0 if pd.isna(begun) else float(begun),
        case=case,
        label=label,
        work=work + "".join(f"; {name} {value}" for name, value in program.items()),
        steps=_rounded(np.log(times.medians)),
        levels=_rounded(times.levels if times.paces else ()),
        paces=_rounded(times.paces if times.levels else ()),
        times_s=_times(of_case, case, times.value),
        code=commit + " with changes" * dirty,
        fingerprint=dict(_fingerprint(environment_of_case)) | {"case": case},
        counters=dict(_counters(of_case, case)),
    )


def _rounded(values: Any) -> list[float]:
    return [round(float(value), _DIGITS) for value in values]


def _times(run: Run, case: str, step_s: float) -> dict[str, float]:
    """Return means over ranks and steps, by phase and kind."""
    rows, steps = run.phases[run.phases["case"] == case], run.seats.loc[run.seats["case"] == case, "steps"]
    kinds = [name for name in KINDS if name in rows.columns]
    sums = rows.groupby("phase", observed=True)[kinds].sum() / max(int(steps.sum()), 1)
    return {
        f"{phase} {str(kind).removesuffix('_s').replace('_', ' ')}": float(f"{value:.4g}")
        for phase, row in sums.iterrows()
        for kind, value in row.items()
        if value >= _SMALL * step_s
    }


def _counters(run: Run, case: str) -> Iterator[tuple[str, float]]:
    """Yield what launches count of a step, over all ranks; memory is that of the largest rank."""
    steps = run.seats[run.seats["case"] == case].groupby("repeat")["steps"].max()
    calls = run.calls[run.calls["case"] == case]
    for (axis, verb), rows in calls.groupby(["axis", "verb"], observed=True):
        for column, name in (("count", "calls"), ("bytes", "bytes")):
            by_launch = rows.groupby("repeat")[column].sum() / steps
            yield from _agreed(f"{name} of {axis} {verb}", by_launch)
    for column in ("executed_flops", "model_flops"):
        yield from _agreed(column.replace("_flops", " FLOPs"), run.cases[column])
    kernels = run.kernels[run.kernels["case"] == case].groupby("repeat")[["calls", "flops", "bytes"]].sum()
    for column, name in (("calls", "calls"), ("flops", "FLOPs"), ("bytes", "bytes")):
        yield from _agreed(f"{name} of kernels", kernels[column])
    for kind in _MEMORY:
        yield from _agreed(f"bytes of {kind}", run.ranks.groupby("repeat")[f"{kind}_bytes"].max())


def _agreed(name: str, by_launch: Any) -> Iterator[tuple[str, float]]:
    values = set(by_launch.astype(float))
    if len(values) == 1 and (value := values.pop()) > 0:
        yield name, int(value) if value.is_integer() else value


def _fingerprint(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield everything else that may explain a change of times, in words."""
    for name, field in _FIELDS.items():
        yield from ((field, values[name]) for _ in (1,) if values.get(name))
    for name, value in sorted(values.items()):
        group, _, rest = name.partition(".")
        if group == "packages":
            yield f"package {rest}", value
        elif name.startswith("job.environment.") and (short := name.split(".", 2)[2]).startswith(_COMPUTING):
            if short == "OMP_NUM_THREADS" or not short.endswith("_NUM_THREADS"):  # whose values are the same
                yield short, value
        elif group == "environment" and rest.startswith(_COMMUNICATING):
            yield rest, value


# Where the level of a series of runs changes
#
# What is left between runs is a share that keeps its own memory, half of it from run to run, and one that
# each run draws anew. How large either is, nobody knows beforehand: likelihoods are averaged over shares, so
# that a machine that drifts is not taken for a program that changes. The launches within runs tell the least
# that must be left.
#
# The optimal partition proposes (Jackson et al. 2005, https://doi.org/10.1109/LSP.2001.838216). A change
# holds if the likelihood ratio for it passes a bound, which is set for few false alarms in histories that are
# judged after each of 40 runs, however large the share that drifts is (benchmarks/history.py); and if hardly
# any permutation of the same runs shows as much: what is left of them is made independent, permuted with
# random signs, and made as dependent as before. A change that is not new, and at which nothing else changed,
# has to be clearer: it was looked for before, and not found.

Vector = NDArray[np.float64]
Places = NDArray[np.int64]

LEAST = 2  # runs at a level: one alone may be another's fault
FEWEST = 8  # runs that say anything
_CERTAIN = 0.02  # p-value of a change
_CORRELATION = 0.5  # correlation of what runs keep with that of the run before
_SHARES = (0.0, 0.15, 0.35, 0.6, 0.8, 0.93, 0.99)  # of the variance between runs that has this memory
_DOUBTS = (0.0, 2.5, 5.0, 6.0, 6.0, 7.2, 9.0)  # logarithms: weight of each share if nothing has changed
_BOUND = 0.45  # logarithm of the likelihood ratio of a change
_OLD = 3.0  # as much more if the change is not new, and nothing else changed there
_FASTER = 2.0  # as much more for a faster level: to find one a run later fails no check
_REACH = 40  # runs on either side of a change that it is judged by
_PROPOSED, _MARKED = 4.5, 2.5  # cost of a change in the partition of 40 runs, over the variance of noise
_DRAWS = (49, 999)  # the first tell what is no change at all
_SPIKE = 3.0  # deviations by which one run may lie outside both of its neighbours
_TRIMMED = 0.9
_OF_TRIMMED = 0.66  # mean of the lower nine tenths of squares of normal values
_TINY = 1e-12  # of a sum of squares: what a change cannot explain is at least that
_LEAST_VARIANCE = 1e-8  # of a run: times are not known better than to 0.01 %


@dataclass(frozen=True, kw_only=True)
class Series:
    """Logarithms of the runs' times; `variance` of a run by its launches alone, with degrees of freedom."""

    values: Vector
    variance: float
    degrees: Places  # of each run: its launches but one

    def part(self, start: int, stop: int) -> Series:
        """Return some runs of it."""
        return replace(self, values=self.values[start:stop], degrees=self.degrees[start:stop])


@dataclass(frozen=True, kw_only=True)
class LevelChange:
    """The first run at a new level, and the chance that noise alone shows as large a change.

    `evidence` is the logarithm of the likelihood ratio, less what it has to be: it holds above 0.
    """

    at: int
    p: float
    evidence: float


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Variance of runs about their level, and the share of it that drifts."""

    variance: float
    share: float
    degrees: float

    def error(self, *counts: int) -> float:
        """Return the standard error of a sum or difference of the means of so many neighbouring runs each."""
        known = [self.share * _of_mean(count) + (1 - self.share) / count for count in counts]
        return math.sqrt(self.variance * sum(known))


def level_changes(series: Series, marks: Sequence[int] = ()) -> list[LevelChange]:
    """Return all changes of the level in order; one at `marks` is believed sooner."""
    known, inside = _despiked(series), _inside(series, marks)
    if len(known.values) < FEWEST:
        return []
    found = _certain(known, _partition(known, inside), inside)
    places = [change.at for change in found]
    more = _likeliest(known, places[-1] if places else 0, inside)
    return _certain(known, [*places, *more], inside) or found if more else found


def level_changes_at(series: Series, marks: Sequence[int]) -> list[LevelChange]:
    """Return those of the marks at which the level changes."""
    inside = _inside(series, marks)
    known, found = _despiked(series), list[LevelChange]()
    while inside and len(known.values) >= FEWEST:
        edges = [0, *(change.at for change in found), len(known.values)]
        judged = [
            _judged(
                known,
                max(edge for edge in edges if edge <= place - LEAST),
                place,
                min(edge for edge in edges if edge >= place + LEAST),
                inside,
            )
            for place in inside
        ]
        surest = min(judged, key=lambda change: (change.p, -change.evidence))
        if surest.p > _CERTAIN:
            break
        found.append(surest)
        inside = [place for place in inside if abs(place - surest.at) >= LEAST]
    return sorted(found, key=lambda change: change.at)


def _despiked(series: Series) -> Series:
    return replace(series, values=_without_spikes(series.values))


def _inside(series: Series, marks: Sequence[int]) -> list[int]:
    return [mark for mark in marks if LEAST <= mark <= len(series.values) - LEAST]


def _certain(series: Series, places: list[int], marks: Sequence[int]) -> list[LevelChange]:
    """Return the changes that hold beside each other: the least certain is given up until all do."""
    known: dict[tuple[int, int, int], LevelChange] = {}
    while places:
        around = list(zip([0, *places], places, [*places[1:], len(series.values)], strict=False))
        known |= {each: _judged(series, *each, marks) for each in around if each not in known}
        found = [known[each] for each in around]
        worst = max(found, key=lambda change: (change.p, -change.evidence))
        if worst.p <= _CERTAIN:
            return found
        places = [place for place in places if place != worst.at]
    return []


def _judged(series: Series, before: int, at: int, after: int, marks: Sequence[int]) -> LevelChange:
    """Return a change with its p-value between the changes before and after it."""
    start, stop = max(before, at - _REACH), min(after, at + _REACH)
    part, asked = series.part(start, stop), _asked(series, start, stop, marks)
    evidence = float(_evidence(part, asked)[at - start - LEAST])
    return LevelChange(
        at=at, p=_p_value(part, at - start, asked, evidence) if evidence > 0 else 1.0, evidence=evidence
    )


def _likeliest(series: Series, start: int, marks: Sequence[int]) -> list[int]:
    """Return the place with most evidence of a change after the last known one, if there is any."""
    start, stop = max(start, len(series.values) - 2 * _REACH), len(series.values)
    if stop - start < 2 * LEAST:
        return []
    evidence = _evidence(series.part(start, stop), _asked(series, start, stop, marks))
    place = int(evidence.argmax())
    return [start + LEAST + place] if evidence[place] > 0 else []


def _asked(series: Series, start: int, stop: int, marks: Sequence[int]) -> Vector:
    """Return the likelihood ratios that changes between runs have to exceed, by place."""
    asked = np.full(stop - start - 2 * LEAST + 1, _BOUND + _OLD)
    asked[[mark - start - LEAST for mark in marks if start + LEAST <= mark <= stop - LEAST]] = _BOUND
    if stop == len(series.values):
        asked[-1] = _BOUND
    return asked


def _evidence(part: Series, asked: Vector) -> Vector:
    return np.asarray(_likelihood_ratios((part.values - part.values.mean())[None], part)[0] - asked)


def _without_spikes(values: Vector) -> Vector:
    """Return the values with single ones that lie outside both neighbours moved towards them.

    The newest has one neighbour alone, and would make a level of the two: it becomes equal to that, unless
    that one is the spike.
    """
    if len(values) < FEWEST:
        return values
    spread = 1.4826 * float(np.median(np.abs(np.diff(values)))) / math.sqrt(2)
    before, after = np.r_[values[1], values[:-1]], np.r_[values[1:], values[-2]]
    low, high = np.minimum(before, after), np.maximum(before, after)
    kept = np.clip(values, low - _SPIKE * spread, high + _SPIKE * spread)
    if kept[-2] == values[-2] and kept[-1] != values[-1]:
        kept[-1] = kept[-2]
    elif kept[-2] != values[-2]:
        kept[-1] = values[-1]
    return kept


def _partition(series: Series, marks: Sequence[int]) -> list[int]:
    """Return where levels begin in the partition that costs least."""
    values, count = series.values - series.values.mean(), len(series.values)
    squares = np.diff(values) ** 2
    apart = float(np.sort(squares)[: max(1, int(_TRIMMED * len(squares)))].mean()) / _OF_TRIMMED
    own = series.variance if series.degrees.any() else apart / 2
    drift = max(0.0, apart - 2 * own)
    cost = np.full(count + 1, _PROPOSED + 2 * max(0.0, math.log(count / _REACH)))
    cost[list(marks)] = _MARKED
    cost *= max(own + 3 * drift, _LEAST_VARIANCE)
    sums, powers = (np.concatenate([[0.0], np.cumsum(each)]) for each in (values, values**2))
    lengths = np.arange(count, 0.0, -1.0)  # of what begins at each place and ends at the last
    best, begins = np.full(count + 1, np.inf), np.zeros(count + 1, np.int64)
    best[0] = -cost[0]
    head, room = best + cost - powers, np.empty(count)
    for stop in range(LEAST, count + 1):
        last = stop - LEAST + 1
        total = np.subtract(sums[:last], sums[stop], room[:last])  # in place: a long history has many
        total *= total
        total /= lengths[count - stop : count - stop + last]
        np.subtract(head[:last], total, total)
        begins[stop] = place = int(total.argmin())
        best[stop] = total[place] + powers[stop]
        head[stop] = best[stop] + cost[stop] - powers[stop]
    found = []
    stop = int(begins[count])
    while stop > 0:
        found.append(stop)
        stop = int(begins[stop])
    return found[::-1]


@dataclass(frozen=True, kw_only=True)
class _Model:
    """What makes so many runs independent if this share of them drifts."""

    share: float
    whiten: Vector
    log: float  # of the likelihood, for what makes them dependent and for a common level
    level: Vector  # direction of a common level, once independent
    steps: Vector  # a column for each first run of a new level: its direction beside that


@lru_cache(maxsize=3 * _REACH)
def _models(count: int) -> tuple[_Model, ...]:
    found = []
    for share in _SHARES:
        whiten = np.asarray(np.linalg.inv(_colour(share, count)), np.float64)
        sums = np.cumsum(whiten[:, ::-1], axis=1)[:, ::-1]
        length = float(np.linalg.norm(sums[:, 0]))
        level = sums[:, 0] / length
        steps = sums[:, LEAST : count - LEAST + 1]
        steps = steps - np.outer(level, level @ steps)
        steps /= np.linalg.norm(steps, axis=0)
        log = float(np.log(np.diag(whiten)).sum()) - math.log(length)
        found.append(_Model(share=share, whiten=whiten, log=log, level=level, steps=steps))
    return tuple(found)


def _colour(share: float, count: int) -> Vector:
    """Return what makes independent runs as dependent as a drift of that share."""
    apart = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    return np.asarray(np.linalg.cholesky(share * _CORRELATION**apart + (1 - share) * np.eye(count)))


def _likelihood_ratios(values: Vector, part: Series) -> Vector:
    """Return logarithms of likelihood ratios by series and place: of a change there to none at all.

    `values` have a row for each series, as long as `part` and as noisy within its runs. Likelihoods are
    averages over the shares that may drift.
    """
    degrees = int(part.degrees.sum())
    inner = max(part.variance, _LEAST_VARIANCE) * max(degrees, 1)
    none, some = [], []
    for model, doubt in zip(_models(values.shape[1]), _DOUBTS, strict=True):
        white = values @ model.whiten.T
        known = model.log - degrees / 2 * math.log(1 - model.share)
        own = inner / (1 - model.share) if degrees else inner
        left = (white**2).sum(axis=1) - (white @ model.level) ** 2 + own
        power = -(values.shape[1] - 1 + degrees) / 2
        none.append(known + doubt + power * np.log(left))
        along = white @ model.steps
        some.append(
            known
            + power * np.log(np.maximum(left[:, None] - along**2, _TINY * left[:, None]))
            - _FASTER * (along < 0)
        )
    return _added(np.array(some)) - _added(np.array(none))[:, None]


def _added(logs: Vector) -> Vector:
    """Return the logarithm of the sum over shares, the first axis."""
    most = logs.max(axis=0)
    return np.asarray(most + np.log(np.exp(logs - most).sum(axis=0)))


def _p_value(part: Series, place: int, asked: Vector, evidence: float) -> float:
    """Return the chance that noise shows as much evidence of a change anywhere."""
    random = np.random.default_rng(len(part.values))
    left, colour = _left(part, place)
    p = 1.0
    for draws in _DRAWS:
        drawn = random.permuted(np.tile(left, (draws, 1)), axis=1)
        drawn *= random.choice([-1.0, 1.0], drawn.shape)
        shown = (_likelihood_ratios(drawn @ colour.T, part) - asked).max(axis=1)
        p = (1 + int((shown >= evidence).sum())) / (draws + 1)
        if p > 2 / _DRAWS[0]:
            break
    return p


def _left(part: Series, place: int) -> tuple[Vector, Vector]:
    """Return what levels about a place leave of the runs, independent, and what makes it dependent again.

    The share that drifts is that of runs which are all at one level: a level that fits a drift leaves too
    small a share, and too small a one is a false alarm.
    """
    count = len(part.values)
    colour = _colour(float(_shares(part, []) @ _SHARES), count)
    design = np.linalg.solve(colour, np.column_stack([_indicators(count, [place]), part.values]))
    basis, _ = np.linalg.qr(design[:, :-1])
    left: Vector = design[:, -1] - basis @ (basis.T @ design[:, -1])
    return left * math.sqrt(count / (count - basis.shape[1])), colour


def _indicators(count: int, places: Sequence[int]) -> Vector:
    """Return a column of ones and zeros for each level."""
    edges = np.array([0, *places, count])
    level = np.searchsorted(edges, np.arange(count), side="right")
    return np.asarray(level[:, None] == np.arange(1, len(edges)), np.float64)


def _fits(part: Series, places: Sequence[int]) -> Iterator[tuple[float, float]]:
    """Yield, by share, the logarithm of the likelihood and the variance of runs about their levels."""
    count, degrees = len(part.values), int(part.degrees.sum())
    inner = max(part.variance, _LEAST_VARIANCE) * max(degrees, 1)
    design = np.column_stack([_indicators(count, places), part.values - part.values.mean()])
    for model in _models(count):
        upper = np.asarray(np.linalg.qr(model.whiten @ design, mode="r"))
        squares = float(upper[-1, -1] ** 2) + (inner / (1 - model.share) if degrees else inner)
        free = count - len(places) - 1 + degrees
        logs = np.log(np.diag(model.whiten)).sum() - np.log(np.abs(np.diag(upper)[:-1])).sum()
        log = float(logs) - degrees / 2 * math.log(1 - model.share)
        yield log - free / 2 * math.log(squares), squares / free


def _shares(part: Series, places: Sequence[int]) -> Vector:
    """Return how probable each share is."""
    logs = np.array([log for log, _ in _fits(part, places)])
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def estimate_noise(series: Series, places: Sequence[int]) -> Noise:
    """Return the noise of the newest runs about levels that begin at `places`."""
    start = max(0, len(series.values) - 3 * _REACH)
    part = _despiked(series).part(start, len(series.values))
    inside = [place - start for place in places if place > start]
    probable, variances = _shares(part, inside), np.array([each for _, each in _fits(part, inside)])
    return Noise(
        variance=float(probable @ variances),
        share=float(probable @ _SHARES),
        degrees=max(1.0, len(part.values) - len(inside) - 1.0),
    )


def _of_mean(count: int) -> float:
    """Return the variance of the mean of neighbouring values of variance 1 that have a memory."""
    across = (1 + _CORRELATION) / (1 - _CORRELATION) / count
    return across - 2 * _CORRELATION * (1 - _CORRELATION**count) / ((1 - _CORRELATION) * count) ** 2
