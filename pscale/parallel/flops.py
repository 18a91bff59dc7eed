"""What a step multiplies on all ranks."""

from __future__ import annotations

from pscale.config import Case
from pscale.nn import counts
from pscale.parallel import context, recompute
from pscale.parallel.matrix.grid import attending


def executed_flops(case: Case) -> int:
    """Count the FLOPs of the matrix products of a step, on all ranks."""
    scores = context.computed_scores(case) * attending(case.plan)
    copies, parts = case.plan.mixture_copies, case.plan.sequence_parts
    once = counts.executed_flops(case.model, case.train.batch, scores=scores, copies=copies, parts=parts)
    return once + recompute.flops(case)
