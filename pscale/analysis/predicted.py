"""What was predicted of the cases of a run before it measured them, beside what it measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pscale.analysis.columns import Row, row
from pscale.analysis.frames import Run, load
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
Recorded = Sequence[tuple[Predicted, pd.DataFrame]]  # predictions of cases, with their launches


def held(recorded: Recorded) -> Iterator[dict[str, Any]]:
    """Yield predictions beside the launches of their cases."""
    for made, launches in recorded:
        steps_s = launches["step_s"]
        measured_s = float(steps_s.median())
        yield {
            **{name: getattr(made, name) for name in ("case", "ranks", "made_unix_s", "low_s", "high_s")},
            "predicted_s": made.step_s,
            "measured_s": measured_s,
            "error": made.step_s / measured_s - 1,
            "launches": len(steps_s),
            "inside": int(steps_s.between(made.low_s, made.high_s).sum()),
        }


def kinds(recorded: Recorded, times: Mapping[str, Sequence[Row]]) -> Iterator[dict[str, Any]]:
    """Yield every kind of time of those cases, predicted and, by the `times` of their phases, measured."""
    for made, _ in recorded:
        for kind, parts in KINDS.items():
            predicted_s = sum(made.losses_s.get(part, 0.0) for part in parts)
            measured_s = _measured_s(times.get(made.case, ()), kind)
            if predicted_s or measured_s:
                yield {"case": made.case, "kind": kind, "predicted_s": predicted_s, "measured_s": measured_s}


def _measured_s(times: Sequence[Row], kind: str) -> float | None:
    """Return the time of a kind in all phases; None without phases, and where clocks do not tell the kind."""
    unclear = kind in ("transfer", "wait") and any(time.wait_or_transfer_s for time in times)
    return None if unclear or not times else sum(getattr(time, f"{kind}_s") for time in times)


def recorded(run: Run) -> Recorded:
    """Return the last prediction of each case that was made before its first launch, and its launches."""
    folder = run.path.absolute().parent
    if not prediction_file(folder).exists():
        return []
    good = run.cases[(run.cases["status"] == "ok") & (run.cases["step_s"] > 0)]
    launches = {str(case): rows for case, rows in good.groupby("case", observed=True)}
    last: dict[str, Predicted] = {}
    for each in sorted(read(folder), key=lambda each: each.made_unix_s):
        if each.case in launches and each.made_unix_s < launches[each.case]["started_unix_s"].min():
            last[each.case] = each
    return [(each, launches[case]) for case, each in last.items()]


def score(predictions: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield how well predictions held; nothing without any."""
    if predictions:
        errors = [abs(each.error) for each in predictions]
        yield {
            "cases": len(predictions),
            "largest_ranks": max(each.ranks for each in predictions),
            "mean_error": sum(errors) / len(errors),
            "largest_error": max(errors),
            **{name: sum(getattr(each, name) for each in predictions) for name in ("launches", "inside")},
        }


def score_in(reports: Path, machine: tuple[str, str]) -> Row | None:
    """Return how well predictions held of all runs in a folder on a machine: its host and processor."""
    found: list[Row] = []
    for folder in predicted_suites(reports):
        for document in folder.glob("*/run.json"):
            try:
                run = load(document.parent)
            except ResultsError:
                continue
            if machine_of(run) == machine:
                found += (row("predicted", **each) for each in held(recorded(run)))
    return next((row("prediction_score", **each) for each in score(found)), None)


def machine_of(run: Run) -> tuple[str, str]:
    """Return host and processor of the machine that a run was started on."""
    return str(run.machine.get("host", "")), str(run.machine.get("cpu_model", ""))
