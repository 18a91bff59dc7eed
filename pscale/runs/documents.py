"""The JSON documents that a launch leaves beside the tables, and its row in the table `cases`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from pscale.config import Case
from pscale.config.axes import GRID_AXES, PLAN_AXES
from pscale.runs import atomic_files
from pscale.runs.run_shape import mismatch

PROGRAM = "program"  # in the column `model`, of a case that trains nothing
# Fields of a case that are columns under their own names.
_OF_CASE = ("suite", "label", "series", "base", "scaling", "ranks", "threads")
_OF_PLAN = (
    *PLAN_AXES,
    *("sp", "zero", "shard", "virtual_stages"),
    *("checkpoint", "reduction", "bucket_bytes", "compression", "offload"),
)
_OF_TRAIN = ("micro_batches", "batch", "optimizer", "steps", "warmup")
_OF_MODEL = ("layers", "width", "heads", "sequence", "vocabulary", "dtype")


class _Provenance(TypedDict, total=False):
    mpi: dict[str, Any]
    watch: list[str]


def provenance_of(text: str) -> Mapping[str, Any]:
    """Return what a job has found, from the column of that name; raises ValueError for any other text."""
    try:
        document: Mapping[str, Any] = atomic_files.from_json(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if wrong := mismatch(_Provenance, document):
        raise ValueError(wrong)
    return document


def planned_columns(case: Case) -> dict[str, Any]:
    """Return what is known of a case before it runs, as columns of the `cases` table."""
    model, train, plan = case.model, case.train, case.plan
    of_case = {name: getattr(case, name) for name in _OF_CASE}
    if case.workload.command:
        return {**of_case, "oversubscribed": case.launch.oversubscribe, "model": PROGRAM}
    return {
        **of_case,
        **{name: getattr(plan, name) for name in _OF_PLAN},
        **{name: getattr(train, name) for name in _OF_TRAIN},
        **{name: getattr(model, name) for name in _OF_MODEL},
        "delay_injection": case.injected or None,
        "oversubscribed": case.launch.oversubscribe,
        **{name: getattr(plan.matrix, name) for name in GRID_AXES},
        "matrix": plan.matrix.algorithm if plan.matrix.ranks > 1 else None,
        "schedule": plan.schedule if plan.pp > 1 else None,
        "context": plan.context if plan.cp > 1 else None,
        "placement": plan.placement if plan.cp > 1 else None,
        "model": model.kind,
        "loss_scale": case.loss_scale if isinstance(case.loss_scale, str) else f"{case.loss_scale:.10g}",
        "attention": None
        if model.kind in ("linear", "collectives")
        else "plain"
        if model.keeps_scores
        else "block",
    }
