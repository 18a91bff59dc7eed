"""The laws of a run as rows for CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pscale.analysis.models import Fit, Model, Prediction
from pscale.analysis.stats import Estimate
from pscale.analysis.summary import Summary
from pscale.report.grids_models import formula

_FITS = ("series", "part", "law", "formula", "r_squared", "error", "refusal")
_BOUNDS = ("", "_low", "_high")
_PREDICTIONS = (
    *("series", "part", "size", "unit"),
    *(f"time_s{bound}" for bound in _BOUNDS),
    *(f"efficiency{bound}" for bound in _BOUNDS),
    "beyond",
)
_NUMBERS = ("serial_fraction", "contention", "coherency")
_NAMED = ("series", "law", "error", *(f"{name}{bound}" for name in _NUMBERS for bound in _BOUNDS), "peak")

Row = dict[str, Any]


def model_tables(summary: Summary) -> dict[str, tuple[Sequence[str], Sequence[Row]]]:
    """Return the columns and rows of the tables `models`, `predictions` and `laws`."""
    return {
        "models": (_FITS, [row for model in summary.models for row in _fits(model)]),
        "predictions": (_PREDICTIONS, [row for model in summary.models for row in _predictions(model)]),
        "laws": (_NAMED, [row for model in summary.models for row in _named(model)]),
    }


def all_fits(model: Model) -> tuple[Fit, ...]:
    """Return the law of the step, if there is one, and those of its parts."""
    return (() if model.step is None else (model.step,)) + model.parts


def _fits(model: Model) -> Iterator[Row]:
    if model.refusal:
        yield {"series": model.series, "part": "step", "refusal": model.refusal}
    for fit in all_fits(model):
        known = {"formula": formula(fit), "r_squared": fit.r_squared, "error": fit.error}
        yield {"series": model.series, "part": fit.part, "law": fit.kind} | known


def _predictions(model: Model) -> Iterator[Row]:
    for fit in all_fits(model):
        for found in fit.predictions:
            key = {"series": model.series, "part": fit.part, "size": found.size, "unit": model.unit}
            yield key | _prediction(found)


def _prediction(found: Prediction) -> Row:
    known = {"time_s": found.time_s, "efficiency": found.efficiency}
    return {"beyond": found.beyond} | _bounded(known)


def _named(model: Model) -> Iterator[Row]:
    for law in model.named:
        key = {"series": model.series, "law": law.law, "error": law.error, "peak": law.peak}
        yield key | _bounded({name: getattr(law, name) for name in _NUMBERS})


def _bounded(values: Mapping[str, Estimate | None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, known in values.items():
        if known is not None:
            found |= {name: known.value, f"{name}_low": known.low, f"{name}_high": known.high}
    return found
