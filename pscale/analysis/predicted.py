"""What was predicted of the cases of a run before it measured them, beside what it measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pscale.analysis.columns import Row, frame, rows
from pscale.analysis.frames import Run, by_case, grouped, load
from pscale.analysis.steps import phases
from pscale.errors import ResultsError
from pscale.results.predictions import Predicted, read
from pscale.run_folders import predicted_suites, prediction_file

KINDS: Mapping[str, tuple[str, ...]] = {  # measured kinds of time, and those predicted kinds that they are
    "compute": ("compute", "injected"),
    "transfer": ("transfer",),
    "wait": ("bubble", "imbalance", "jitter"),
    "copy": ("copy",),
    "offload": ("offload",),
}


@dataclass(frozen=True, kw_only=True)
class KindTime:
    """Seconds of a step by one kind, of the mean rank."""

    kind: str
    predicted_s: float
    measured_s: float


@dataclass(frozen=True, kw_only=True)
class Held:
    """A prediction and what was measured afterwards; `inside` of `launches` lie in its interval."""

    case: str
    ranks: int
    made_unix_s: float
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    launches: int
    inside: int
    kinds: tuple[KindTime, ...]

    @property
    def error(self) -> float:
        """By how much more was predicted than measured, as a fraction."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, kw_only=True)
class Score:
    """How well predictions held: errors of cases, and the launches inside of the intervals."""

    cases: int
    largest_ranks: int
    mean_error: float  # of absolute values
    largest_error: float
    launches: int
    inside: int


def held(run: Run) -> tuple[Held, ...]:
    """Return the last prediction of each case that was made before its first launch, beside the launches."""
    folder = run.path.absolute().parent
    if not prediction_file(folder).exists():
        return ()
    good = run.cases[(run.cases["status"] == "ok") & (run.cases["step_s"] > 0)]
    launches = {str(case): rows for case, rows in good.groupby("case", observed=True)}
    predictions = grouped((each for each in read(folder) if each.case in launches), lambda each: each.case)
    times = by_case(rows("phases", frame("phases", phases(run), {}))) if predictions else {}
    found = []
    for case, made in predictions.items():
        ended = launches[case]
        before = [each for each in made if each.made_unix_s < ended["started_unix_s"].min()]
        if before:
            last = max(before, key=lambda each: each.made_unix_s)
            found.append(_held(last, ended["step_s"].tolist(), times.get(case, [])))
    return tuple(found)


def _held(predicted: Predicted, steps_s: Sequence[float], times: Sequence[Row]) -> Held:
    ordered = sorted(steps_s)
    return Held(
        case=predicted.case,
        ranks=predicted.ranks,
        made_unix_s=predicted.made_unix_s,
        predicted_s=predicted.step_s,
        low_s=predicted.low_s,
        high_s=predicted.high_s,
        measured_s=_median(ordered),
        launches=len(ordered),
        inside=sum(predicted.low_s <= step_s <= predicted.high_s for step_s in ordered),
        kinds=tuple(_kinds(predicted, times)),
    )


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _kinds(predicted: Predicted, times: Sequence[Row]) -> Iterator[KindTime]:
    for kind, parts in KINDS.items():
        predicted_s = sum(predicted.losses_s.get(part, 0.0) for part in parts)
        measured_s = sum(getattr(time, f"{kind}_s") or 0.0 for time in times)
        if predicted_s or measured_s:
            yield KindTime(kind=kind, predicted_s=predicted_s, measured_s=measured_s)


def score(found: Sequence[Held]) -> Score | None:
    """Return how well predictions held; None without any."""
    if not found:
        return None
    errors = [abs(each.error) for each in found]
    return Score(
        cases=len(found),
        largest_ranks=max(each.ranks for each in found),
        mean_error=sum(errors) / len(errors),
        largest_error=max(errors),
        launches=sum(each.launches for each in found),
        inside=sum(each.inside for each in found),
    )


def score_in(reports: Path, machine: tuple[str, str]) -> Score | None:
    """Return how well predictions held of all runs in a folder on a machine: its host and processor."""
    found: list[Held] = []
    for folder in predicted_suites(reports):
        for document in folder.glob("*/run.json"):
            try:
                run = load(document.parent)
            except ResultsError:
                continue
            if machine_of(run) == machine:
                found += held(run)
    return score(found)


def machine_of(run: Run) -> tuple[str, str]:
    """Return host and processor of the machine that a run was started on."""
    return str(run.machine.get("host", "")), str(run.machine.get("cpu_model", ""))
