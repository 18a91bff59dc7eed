"""What context parallelism asks of a plan, and what it costs, from what its form declares."""

from __future__ import annotations

from dataclasses import replace

from pscale.config import Case
from pscale.nn.kernels.attention_block import AttentionBlock
from pscale.parallel import sharding
from pscale.parallel.context.form import Calls, form_of
from pscale.parallel.context.layout import Layout
from pscale.parallel.replicas import Call


def calls(case: Case, rank: int) -> list[Call]:
    """Predict the calls that `rank` makes in one step."""
    if case.plan.cp == 1:
        return []
    form = form_of(case.plan.context)
    layers = sum(name.startswith("block.") for name in sharding.units(case, rank))
    return sharding.per_step(case, _made(case, layers, form.forward, form.backward))


def forward_calls(case: Case, layers: int) -> list[Call]:
    """Predict the calls of the forward passes of `layers` layers and one micro-batch."""
    return _made(case, layers, form_of(case.plan.context).forward)


def recomputed_calls(case: Case, layers: int) -> list[Call]:
    """Predict those of the attention alone, where it is computed again."""
    return _made(case, layers, form_of(case.plan.context).recomputed)


def _made(case: Case, layers: int, *passes: Calls) -> list[Call]:
    if case.plan.cp == 1:
        return []
    queries = sharding.activation_bytes(case) // case.plan.tp  # of this rank's tokens and heads
    made = (call for calls in passes for call in calls(case.plan, queries, queries // case.model.queries))
    return [replace(call, count=call.count * layers) for call in made]


def _met(case: Case, rank: int) -> list[AttentionBlock]:
    """Return the pieces of scores that the rank at `rank` among those that exchange keys has of each head."""
    plan = case.plan
    parts = plan.cp // form_of(plan.context).head_parts(plan)
    layout = Layout(sequence=case.model.sequence, parts=parts, placement=plan.placement)
    return [piece for piece in layout.pieces(rank // (plan.cp // parts)) if piece is not None]


def computed_scores(case: Case) -> int:
    """Return how many scores of one head and sequence all ranks together compute in forward."""
    parts = form_of(case.plan.context).head_parts(case.plan)
    pieces = (piece for rank in range(0, case.plan.cp, parts) for piece in _met(case, rank))
    return sum(piece.scores(kept=case.model.keeps_scores) for piece in pieces)
