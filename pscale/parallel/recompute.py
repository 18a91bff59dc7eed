"""Activation checkpointing: which layers of a rank compute again in backward what they did not keep.

`selective`: attention alone, from q, k and v (Korthikanti et al., 2022). `full`: each block from its input.
`every-k`: k blocks in a row from the input of the first (Chen et al., 2016). A run of blocks that is computed
again ends with what its last layer keeps: its output is not needed. Embedding and head keep what they need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pscale.config import Case, Plan
from pscale.nn import counts
from pscale.nn.routing import has_experts
from pscale.parallel import pipeline
from pscale.parallel.context.form import computed_scores
from pscale.parallel.matrix.grid import attention_copies


@dataclass(frozen=True)
class Segment:
    """Units that follow each other; `recomputed`, of which only the input of the first is kept."""

    units: range
    recomputed: bool


def segments(plan: Plan, names: Sequence[str], first: int) -> list[Segment]:
    """Cut a part of the model, units called `names` and numbered from `first`, into segments."""
    found: list[Segment] = []
    for number, name in enumerate(names, first):
        recomputed = plan.checkpoint_interval > 0 and name.startswith("block.")
        last = found[-1] if found else Segment(range(0), recomputed=False)
        if recomputed and last.recomputed and len(last.units) < plan.checkpoint_interval:
            found[-1] = Segment(range(last.units.start, number + 1), recomputed=True)
        else:
            found.append(Segment(range(number, number + 1), recomputed))
    return found


def stage_segments(case: Case, stage: int) -> dict[int, list[Segment]]:
    """Return the segments of each part of the model on `stage`, with the model's numbers of the units."""
    names = [name for name, _ in counts.unit_parameters(case.model)]
    parts = pipeline.stage_units(case.model, case.plan, stage)
    return {
        part: segments(case.plan, [names[unit] for unit in units], units[0]) for part, units in parts.items()
    }


def unit_flops(case: Case) -> dict[int, int]:
    """Return the FLOPs that are done again in a step, on all ranks, by number of the model's unit."""
    model, plan, batch = case.model, case.plan, case.train.batch
    scores = computed_scores(case) * attention_copies(plan)
    if plan.checkpoint == "selective":
        attention = 4 * batch * scores * model.width
        names = counts.unit_parameters(model)
        return {number: attention for number, (name, _) in enumerate(names) if name.startswith("block.")}
    forward = counts.forward_flops(
        model, batch, scores=scores, copies=plan.mixture_copies, parts=plan.sequence_parts
    )
    output = 2 * batch * model.sequence * model.mlp_features * model.width  # of an MLP's second product
    found = {}
    for stage in range(plan.pp):
        for segment in _recomputed(case, stage):
            for number in segment.units:
                name, flops = forward[number]
                stops = number == segment.units[-1] and not has_experts(model, int(name.partition(".")[2]))
                found[number] = flops - output * stops
    return found


def flops(case: Case) -> int:
    """Return the FLOPs that are done again in a step, on all ranks."""
    return sum(unit_flops(case).values())


def _recomputed(case: Case, stage: int) -> list[Segment]:
    every = stage_segments(case, stage).values()
    return [segment for segments in every for segment in segments if segment.recomputed]


def executed_flops(case: Case) -> int:
    """Count the FLOPs of the matrix products of a step, on all ranks."""
    scores = computed_scores(case) * attention_copies(case.plan)
    copies, parts = case.plan.mixture_copies, case.plan.sequence_parts
    once = counts.executed_flops(case.model, case.train.batch, scores=scores, copies=copies, parts=parts)
    return once + flops(case)
