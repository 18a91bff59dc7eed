"""Tensor parallelism (Shoeybi et al., 2019): every layer's weights cut over ranks that see the same tokens.

The matrices of attention and MLP come in pairs, the first cut by columns and the second by rows, so that a
pair needs one sum forward and one backward. `vocabulary` has both ends of the model, `sequence` the form in
which tokens are cut as well outside of the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pscale.config import Case
from pscale.errors import PlanError
from pscale.mesh.axis import Axis
from pscale.nn.buffers import Array, Buffers
from pscale.nn.layer import Forgetful
from pscale.nn.loss import Loss
from pscale.nn.param import Cut, Param, share
from pscale.number import wide_bytes
from pscale.parallel import division
from pscale.parallel.fitting import degrees, divisors, heads
from pscale.parallel.replicas import Call

DIM = "tp"


def cut(whole: tuple[int, ...], dim: int, axis: Axis, *, groups: int = 1) -> tuple[Cut, tuple[int, ...]]:
    """Return this rank's part along `dim` of a parameter, and its shape.

    `groups` things side by side along `dim`, such as q, k and v, are cut each for itself.
    """
    each = whole[dim] // groups
    mine = share(each, axis.size, axis.rank)
    index = (*(slice(None) for _ in range(dim + 1)), mine)
    view = (*whole[:dim], groups, each, *whole[dim + 1 :])
    shape = (*whole[:dim], groups * (mine.stop - mine.start), *whole[dim + 1 :])
    return Cut(whole=whole, view=view, index=index, dims=(DIM,)), shape


class Enter(Forgetful):
    """From tokens that all ranks of the axis share to a layer cut by columns: identity, a sum backward."""

    params: Sequence[Param] = ()

    def __init__(self, axis: Axis, *, buffers: Buffers):
        self.axis, self.buffers = axis, buffers

    def forward(self, x: Array) -> tuple[Array, None]:
        """Hand on what every rank has."""
        return x, None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Add up what the ranks' columns want of the input."""
        return summed(dy, self.axis, self.buffers)


class Leave(Forgetful):
    """From a layer cut by rows to the sum that all ranks of the axis share: a sum, and identity backward."""

    params: Sequence[Param] = ()

    def __init__(self, axis: Axis, *, buffers: Buffers):
        self.axis, self.buffers = axis, buffers

    def forward(self, x: Array) -> tuple[Array, None]:
        """Add up the ranks' partial products."""
        return summed(x, self.axis, self.buffers), None

    def backward(self, dy: Array, cache: None) -> Array:  # noqa: ARG002
        """Hand on what every rank has."""
        return dy


def summed(x: Array, axis: Axis, buffers: Buffers) -> Array:
    """Take over `x` and return its sum over the axis, in place where nobody else holds it."""
    y = buffers.reuse(x)
    if y is not x:
        np.copyto(y, x)
    axis.all_reduce(y)
    return y


class Shared:
    """A loss that all ranks of `axis` compute alike; each reports its share: sums over ranks are right."""

    def __init__(self, loss: Loss, axis: Axis):
        self.loss, self.axis = loss, axis

    def forward(self, y: Array, targets: Array, weight: float) -> tuple[float, Array]:
        """Return this rank's share of the loss and what backward needs."""
        value, cache = self.loss.forward(y, targets, weight)
        return value / self.axis.size, cache

    def backward(self, cache: Array) -> Array:
        """Return the gradient of the outputs, whole on every rank."""
        return self.loss.backward(cache)


def check(case: Case) -> None:
    """Raise PlanError for a model that cannot be cut so."""
    model, tp = case.model, case.plan.tp
    if tp == 1 or model.kind == "collectives":
        return
    if model.kind == "linear":
        raise PlanError(
            f"tp {tp} cuts the layers of a transformer; kind linear has none, tp 1 with dp rest would work"
        )
    if model.heads % tp:
        fits = degrees(case.plan, "tp", divisors(model.heads))
        more = heads(model, division.head_parts(case.plan))
        raise PlanError(f"heads {model.heads} do not divide by tp {tp}; {fits} would, or {more}")
    if model.kind in ("gpt", "moe") and model.vocabulary < tp:
        raise PlanError(
            f"vocabulary {model.vocabulary} leaves some of tp {tp} ranks without a token; "
            f"{degrees(case.plan, 'tp', range(1, model.vocabulary + 1))} would work"
        )


def calls(case: Case, rank: int) -> list[Call]:
    """Predict the sums of activations, of n0 = b s h elements each, and those of the loss, of b s."""
    if case.plan.tp == 1:
        return []
    names = division.units(case, rank)
    blocks, ends = sum(name.startswith("block.") for name in names), "embedding" in names
    whole = division.activation_bytes(case)
    made = []
    if not case.plan.sp:
        rows = case.plan.embedding == "row"
        whole_mlps = sum(division.with_experts(case, name) for name in names)
        sums = 4 * blocks - 2 * whole_mlps + (ends and rows) + ("head" in names)
        made.append(Call(axis=DIM, verb="all_reduce", sent_bytes=whole, count=sums))
        made.append(
            Call(axis=DIM, verb="all_gather", sent_bytes=whole // case.plan.tp, count=ends and not rows)
        )
    of_tokens = whole // division.item_bytes(case) // case.model.width * wide_bytes(case.model.dtype)
    made.append(
        Call(axis=DIM, verb="all_reduce", sent_bytes=of_tokens, count=3 * ("head" in names), wide=True)
    )
    return division.per_step(case, made)


def buffer_bytes(case: Case, rank: int) -> int:
    """Predict the memory for arranging data: embeddings gathered by columns come part by part."""
    plan = case.plan
    if plan.tp == 1 or plan.sp or plan.embedding == "row" or "embedding" not in division.units(case, rank):
        return 0
    return division.activation_bytes(case)
