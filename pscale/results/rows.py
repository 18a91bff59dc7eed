"""The row of one launch in the `cases` table: what was asked for, what was measured, how it ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pscale.config import Case


def planned_columns(case: Case) -> dict[str, Any]:
    """Return what is known of a case before it runs, as columns of the `cases` table."""
    model, train, plan = case.model, case.train, case.plan
    return {
        "suite": case.suite,
        "label": case.label,
        "series": case.series,
        "base": case.base,
        "scaling": case.scaling,
        "injected": case.injected or None,
        "ranks": case.ranks,
        "threads": case.threads,
        "oversubscribed": case.launch.oversubscribe,
        "dp": plan.dp,
        "tp": plan.tp,
        "pp": plan.pp,
        "cp": plan.cp,
        "ep": plan.ep,
        "tx": plan.matrix.tx,
        "ty": plan.matrix.ty,
        "tz": plan.matrix.tz,
        "matrix": plan.matrix.algorithm if plan.matrix.ranks > 1 else None,
        "sp": plan.sp,
        "zero": plan.zero,
        "shard": plan.shard,
        "schedule": plan.schedule if plan.pp > 1 else None,
        "virtual_stages": plan.virtual_stages,
        "context": plan.context if plan.cp > 1 else None,
        "placement": plan.placement if plan.cp > 1 else None,
        "checkpoint": plan.checkpoint,
        "reduction": plan.reduction,
        "bucket_bytes": plan.bucket_bytes,
        "compression": plan.compression,
        "offload": plan.offload,
        "micro_batches": train.micro_batches,
        "model": model.kind,
        "layers": model.layers,
        "width": model.width,
        "heads": model.heads,
        "sequence": model.sequence,
        "vocabulary": model.vocabulary,
        "dtype": model.dtype,
        "loss_scale": case.loss_scale if isinstance(case.loss_scale, str) else f"{case.loss_scale:.10g}",
        "attention": None
        if model.kind in ("linear", "collectives")
        else "plain"
        if model.keeps_scores
        else "block",
        "batch": train.batch,
        "optimizer": train.optimizer,
        "steps": train.steps,
        "warmup": train.warmup,
    }


def launch_row(case: Case, folder: Path, ended: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a launch in `folder`; `ended` is how the launcher saw it end.

    Where the launcher saw nothing wrong the job's own word counts: it knows whether its figures hold.
    """
    row = {**planned_columns(case), **ended}
    if ended["status"] == "ok":
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        row |= {**result["columns"], "status": result["status"], "reason": result["reason"]}
    return row
