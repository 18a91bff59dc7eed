"""Gradients that travel with fewer bits, and what they lose sent later.

`error_feedback` exchanges what a codec of `codecs` makes of them, or factors of them. Calls are predicted in
closed form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pscale.config import Case, Plan
from pscale.mesh.axis import Axis
from pscale.mesh.grid import axis_name
from pscale.parallel import sharding
from pscale.parallel.compression.codecs import ROUNDINGS, Blocks, Largest, picked_bytes, rounded_bytes
from pscale.parallel.compression.error_feedback import Array, Encoded, Factors, LowRank, factors
from pscale.parallel.replicas import Call
from pscale.parallel.sharding import TensorGroup

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


def calls(case: Case, rank: int) -> list[Call]:
    """Predict the calls that sum the gradients of `rank`."""
    return [call for part in _compressed(case, rank) for call in _sums(case, part)]


def _sums(case: Case, part: TensorGroup) -> Iterator[Call]:
    axis, plan, item = axis_name(part.sync), case.plan, sharding.item_bytes(case)
    if plan.compression == "powersgd":
        sizes = _factors(case, part)
        for numbers in filter(None, (sizes.first, sizes.second)):
            yield Call(axis=axis, verb="all_reduce", sent_bytes=numbers * item)
    else:
        yield Call(axis=axis, verb="all_gather", sent_bytes=_message_bytes(case, part))


def _compressed(case: Case, rank: int) -> list[TensorGroup]:
    if case.plan.compression == "none":
        return []
    return [part for part in sharding.tensor_groups(case, rank) if part.sync]


def _message_bytes(case: Case, part: TensorGroup) -> int:
    plan = case.plan
    if plan.compression == "topk":
        return picked_bytes(part.parameters, case.model.dtype, plan.compression_share)
    return rounded_bytes(part.parameters, ROUNDINGS[plan.compression])


def _factors(case: Case, part: TensorGroup) -> Factors:
    shapes = [tensor.shape for tensors in part.tensors.values() for tensor in tensors]
    return factors(shapes, case.plan.compression_rank)
