"""Gradients that travel with fewer bits, and what they lose sent later.

What an encoding leaves out stays on the rank for the next step: what was sent so far and what is held back
are together the sum of all gradients (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019).
"""

from __future__ import annotations

from collections.abc import Sequence

from pscale.config import Plan
from pscale.mesh.axis import Axis
from pscale.parallel.compression.codecs import ROUNDINGS, Array, Blocks, Encoded, Largest
from pscale.parallel.compression.low_rank import LowRank

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
