"""Context parallelism in two dims: ranks of a group exchange tokens for heads, groups pass keys round a ring.

Fang and Zhao, USP: A Unified Sequence Parallelism Approach for Long Context Generative AI, 2024.
"""

from __future__ import annotations

from dataclasses import replace

from pscale.config import Plan
from pscale.config.axes import HALVES
from pscale.errors import PlanError
from pscale.nn.layer import Layer
from pscale.parallel.context.form import AttentionShare, Form
from pscale.parallel.context.layout import Layout
from pscale.parallel.context.ring import RingAttention, hops
from pscale.parallel.context.ulysses import UlyssesAttention, exchanges
from pscale.parallel.replicas import Call
from pscale.parallel.suggestions import alternatives, divisors

RING, ULYSSES = HALVES["cp"]


def _attention(share: AttentionShare) -> Layer:
    """Return attention over the ring, with the tokens of a group, around which the group exchanges heads."""
    group, layout = share.mesh.axis(ULYSSES), share.layout
    heads = share.heads // group.size
    inner = RingAttention(replace(share, heads=heads, layout=replace(layout, slices=1), over=RING))
    of_group = Layout(sequence=layout.sequence // layout.parts, parts=group.size, placement="contiguous")
    return UlyssesAttention(
        share.kept(inner), share.queries, axis=group, layout=of_group, buffers=share.buffers
    )


def _passed_on(plan: Plan, _: int, keys: int) -> list[Call]:
    return hops(RING, keys, plan.cp // plan.ulysses - 1)


def _check(plan: Plan) -> None:
    """Raise PlanError if there are not several groups of several ranks."""
    if 1 < plan.ulysses < plan.cp and plan.cp % plan.ulysses == 0:
        return
    if fits := divisors(plan.cp, 2)[:-1]:
        raise PlanError(
            f"context unified makes groups of cp {plan.cp}, and ulysses {plan.ulysses} does not cut it into "
            f"several of several ranks; ulysses {alternatives(fits)} would"
        )
    raise PlanError(
        f"context unified makes groups of cp {plan.cp}, which has no parts of several ranks; "
        "context ring or ulysses works"
    )


FORM = Form(
    attention=_attention,
    forward=lambda plan, queries, keys: [
        *exchanges(ULYSSES, queries, keys),
        *_passed_on(plan, queries, keys),
    ],
    backward=lambda plan, queries, keys: [
        *exchanges(ULYSSES, queries, keys),
        *hops(RING, keys, 2 * plan.cp // plan.ulysses - 1),
    ],
    recomputed=_passed_on,
    heads_over="ulysses",
    check=_check,
)
