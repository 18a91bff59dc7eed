"""What compression asks of a plan, and what it costs: calls and memory, in closed form."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pscale.config import Case
from pscale.errors import PlanError
from pscale.mesh.grid import axis_name
from pscale.parallel import division
from pscale.parallel.compression import blocks, largest
from pscale.parallel.compression import factors as low_rank
from pscale.parallel.division import Part
from pscale.parallel.replicas import Call


def check(case: Case) -> None:
    """Raise PlanError where the sums that would be compressed do not exist, or are made in another way."""
    plan, kind = case.plan, case.plan.compression
    if kind == "none":
        return
    if plan.zero:
        raise PlanError(
            f"compression {kind} needs whole gradients on every replica, to hold back what it does not send, "
            f"and zero {plan.zero} scatters their sums over shards; compression none, or zero 0, would do"
        )
    if plan.reduction != "bucketed":
        raise PlanError(
            f"compression {kind} has an exchange of its own: reduction {plan.reduction} is for compression "
            "none; compression none, or reduction bucketed, would do"
        )
    if case.precision.loss_scale not in ("auto", "none"):
        raise PlanError(
            f"compression {kind} keeps what it does not send for later steps, which may have another scale "
            f"of the loss, and keeps what overflowed for ever: loss_scale {case.loss_scale} is for "
            "compression none; loss_scale none works with compression"
        )
    if case.model.kind == "collectives":
        raise PlanError(
            f"model.kind collectives has no gradients for compression {kind}; compression none works"
        )
    most = max(part.parameters for part in division.parts(case, 0))
    if kind == "topk" and most > largest.MOST:
        raise PlanError(
            f"compression topk counts to {largest.MOST:,}, and a rank sums {most:,} gradients; "
            "tp or pp would make them fewer, powersgd needs no indices"
        )


def calls(case: Case, rank: int) -> list[Call]:
    """Predict the calls that sum the gradients of `rank`."""
    return [call for part in _compressed(case, rank) for call in _sums(case, part)]


def _sums(case: Case, part: Part) -> Iterator[Call]:
    axis, plan, item = axis_name(part.sync), case.plan, division.item_bytes(case)
    if plan.compression == "powersgd":
        sizes = _factors(case, part)
        for numbers in filter(None, (sizes.first, sizes.second)):
            yield Call(axis=axis, verb="all_reduce", sent_bytes=numbers * item)
    else:
        yield Call(axis=axis, verb="all_gather", sent_bytes=_message_bytes(case, part))


def buffer_bytes(case: Case, rank: int) -> int:
    """Predict the memory for what is held back, for messages, and for encoding them."""
    return sum(_buffer_bytes(case, part) for part in _compressed(case, rank))


def _buffer_bytes(case: Case, part: Part) -> int:
    plan, item, dtype = case.plan, division.item_bytes(case), case.model.dtype
    held_back = part.parameters * item
    if plan.compression == "powersgd":
        sizes = _factors(case, part)
        return held_back + (sizes.first + sizes.second) * item + low_rank.work_bytes(dtype)
    members = math.prod(plan.sizes[dim] for dim in part.sync)
    work = (
        largest.work_bytes(part.parameters, dtype) if plan.compression == "topk" else blocks.work_bytes(dtype)
    )
    return held_back + (1 + members) * _message_bytes(case, part) + work


def _compressed(case: Case, rank: int) -> list[Part]:
    if case.plan.compression == "none":
        return []
    return [part for part in division.parts(case, rank) if part.sync]


def _message_bytes(case: Case, part: Part) -> int:
    plan = case.plan
    if plan.compression == "topk":
        return largest.message_bytes(part.parameters, case.model.dtype, plan.compression_share)
    return blocks.message_bytes(part.parameters, blocks.ROUNDINGS[plan.compression])


def _factors(case: Case, part: Part) -> low_rank.Factors:
    shapes = [tensor.shape for tensors in part.tensors.values() for tensor in tensors]
    return low_rank.factors(shapes, case.plan.compression_rank)
