"""Gradients that travel with fewer bits, and what they lose sent later.

`error_feedback` exchanges what a codec of `codecs` makes of them, or factors of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pscale.config import Plan
from pscale.mesh.axis import Axis
from pscale.parallel.compression.codecs import ROUNDINGS, Blocks, Largest
from pscale.parallel.compression.error_feedback import Array, Encoded, LowRank

Compressed = Encoded | LowRank


def make_compressed(
    plan: Plan, grad: Array, shapes: Sequence[tuple[int, ...]], axis: Axis
) -> Compressed | None:
    """Return the exchange that the plan asks for; `shapes` are those of the tensors in the flat `grad`.

    None where gradients travel as they are, or not at all.
    """
    if plan.compression == "none" or axis.size == 1:
        return None
    if plan.compression == "powersgd":
        return LowRank(grad, axis, shapes, plan.compression_rank)
    if plan.compression == "topk":
        return Encoded(grad, axis, Largest(grad.size, grad.dtype, plan.compression_share))
    return Encoded(grad, axis, Blocks(grad.size, grad.dtype, ROUNDINGS[plan.compression]))
