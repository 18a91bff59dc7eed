"""Context parallelism in two dims: ranks of a group exchange tokens for heads, groups pass keys round a ring.

Fang and Zhao, USP: A Unified Sequence Parallelism Approach for Long Context Generative AI, 2024.
"""

from __future__ import annotations

from dataclasses import replace

from pscale.config.axes import HALVES
from pscale.nn.layer import Layer
from pscale.parallel.constraints import Requires
from pscale.parallel.context.form import AttentionShare, Form, distributes_heads
from pscale.parallel.context.layout import Layout
from pscale.parallel.context.ring import RingAttention
from pscale.parallel.context.ulysses import UlyssesAttention

RING, ULYSSES = HALVES["cp"]


def _attention(share: AttentionShare) -> Layer:
    """Return attention over the ring, with the tokens of a group, around which the group exchanges heads."""
    group, layout = share.mesh.axis(ULYSSES), share.layout
    mine = share.of_heads(group.rank, group.size)
    inner = RingAttention(replace(mine, layout=replace(layout, slices=1), over=RING))
    of_group = Layout(sequence=layout.sequence // layout.parts, parts=group.size, placement="contiguous")
    return UlyssesAttention(
        share.kept(inner), share.queries, axis=group, layout=of_group, buffers=share.buffers
    )


FORM = Form(
    attention=_attention,
    heads_over="ulysses",
    constraints=(
        Requires(
            lambda get: 1 < get("ulysses") < get("cp") and get("cp") % get("ulysses") == 0,
            text="context unified makes groups of cp {cp}, and ulysses {ulysses} does not cut it into "
            "several of several ranks",
            ways="ulysses; context ring|ulysses with ulysses 0",
        ),
        *distributes_heads("tp", "ulysses"),
    ),
)
