"""What one rank will hold, by kind, before a process starts: exact, as the job lays it out."""

from __future__ import annotations

import math

from pscale.config import Case
from pscale.mesh.grid import coordinates
from pscale.nn import counts
from pscale.parallel import context, division, offload, optimizer, pipeline, strategies, zero_plan
from pscale.parallel.matrix import kept as matrix_kept
from pscale.parallel.matrix.grid import activation_parts
from pscale.parallel.on_paper import on_paper
from pscale.parallel.recompute import Segment, stage_segments
from pscale.parallel.schedule import peak

KINDS = ("parameters", "gradients", "optimizer", "activations", "exchange")

_UNLIKE = ("pp", "cp", "tx", "ty")  # dims along which ranks may hold more or less


def memory_bytes(case: Case, rank: int) -> dict[str, int]:
    """Predict the memory of `rank` by kind.

    Activations: the pool in which they, their gradients and scratch lie. Exchange: what is arranged, leaves
    or arrives, in that pool and beside it.
    """
    item = division.item_bytes(case)
    state, pool = zero_plan.model_state(case, rank), on_paper(case, rank)
    return {
        "parameters": state["parameters"] * item,
        "gradients": state["gradients"] * item,
        "optimizer": offload.resident_bytes(case, rank)
        if case.plan.offloads_state
        else optimizer.state_bytes(case, rank),
        "activations": pool.total_bytes - pool.exchange_bytes,
        "exchange": pool.exchange_bytes + strategies.buffer_bytes(case, rank),
    }


def fullest_rank(case: Case) -> int:
    """Return the rank that needs the most memory.

    Where parameters or tokens do not divide, the first rank of an axis has more of them; stages of a pipeline
    and places in a sequence differ in what they keep, and those on a square in what passes through them.
    """
    places = [coordinates(case.plan.sizes, rank) for rank in range(case.ranks)]
    candidates = [
        rank
        for rank, place in enumerate(places)
        if not any(at for dim, at in place.items() if dim not in _UNLIKE)
    ]
    if len(candidates) == 1:
        return candidates[0]
    return max(candidates, key=lambda rank: (sum(memory_bytes(case, rank).values()), -rank))


def kept_bytes(case: Case, rank: int) -> int:
    """Predict the most that `rank` keeps for backward passes to come, of all micro-batches under way.

    In closed form, from the literature's counts: a part of the activations, which the pool also has.
    """
    model, plan, stage = case.model, case.plan, pipeline.stage_of(case.plan, rank)
    sequences, columns = division.sequences(case), division.vocabulary(case, rank)
    tokens, outside = model.sequence // plan.cp, plan.tp if plan.sp else 1
    kept = (
        matrix_kept.unit_activation_bytes(case)
        if plan.matrix.ranks > 1
        else counts.unit_activation_bytes(
            model,
            sequences,
            inside=plan.tp,
            outside=outside,
            columns=columns,
            tokens=tokens,
            kept=counts.Kept() if plan.checkpoint == "selective" else context.kept_numbers(case, rank),
        )
    )
    put_off = counts.unit_put_off_bytes(
        model, sequences, inside=plan.tp, outside=outside, columns=columns, tokens=tokens
    )
    parts, slice_ = stage_segments(case, stage), division.activation_bytes(case) // outside
    slice_ //= math.prod(activation_parts(plan))

    def of_segment(segment: Segment) -> int:
        return slice_ if segment.recomputed else kept[segment.units[0]][1]

    return peak(
        pipeline.timetable(plan, case.train.micro_batches).actions(stage),
        kept=lambda part: sum(map(of_segment, parts[part])),
        put_off=lambda part: sum(put_off[unit][1] for segment in parts[part] for unit in segment.units),
    )
