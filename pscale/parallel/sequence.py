"""Sequence parallelism inside the tensor axis (Korthikanti et al., 2022): norms, residuals see a slice of T.

Between the cut layers every rank holds its slice of the tokens instead of all of them: what was a sum over
ranks becomes a gather before and a scattered sum after, of the same volume together. What a layer keeps for
backward is the slice as well; it is gathered once more there, which costs one gather per pair of layers.
"""

from __future__ import annotations

from collections.abc import Sequence

from pscale.config import Case
from pscale.errors import PlanError
from pscale.mesh.axis import Axis
from pscale.nn.buffers import Array, Buffers
from pscale.nn.linear import Linear
from pscale.nn.param import Param, share
from pscale.parallel import division
from pscale.parallel.fitting import multiples
from pscale.parallel.layout import equal_parts
from pscale.parallel.replicas import Call
from pscale.parallel.slices import gathered, scattered
from pscale.parallel.tensor import DIM

T_DIM = 1  # of activations (B, T, C)


class EnterLinear:
    """A product with all tokens of an input of which every rank has a slice of T."""

    def __init__(self, linear: Linear, axis: Axis, *, buffers: Buffers):
        self.linear, self.axis, self.buffers = linear, axis, buffers
        self.params: Sequence[Param] = linear.params

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Gather the tokens and multiply; keeps the slice."""
        whole = gathered(x, self.axis, T_DIM, buffers=self.buffers)
        y, kept = self.linear.forward(whole)
        self.buffers.give(kept)
        return y, x

    def backward(self, dy: Array, x: Array) -> Array:
        """Gather the input again, which forward did not keep; sum the gradient and scatter it."""
        whole = gathered(x, self.axis, T_DIM, buffers=self.buffers)
        dx = scattered(self.linear.backward(dy, whole), self.axis, T_DIM, buffers=self.buffers)
        self.buffers.give(x)
        return dx


def slice_of(x: Array, axis: Axis) -> Array:
    """View this rank's slice of T of `x`."""
    return x[:, share(x.shape[T_DIM], axis.size, axis.rank)]


def check(case: Case) -> None:
    """Raise PlanError if the tokens of a rank cannot be cut evenly."""
    model, plan = case.model, case.plan
    if not plan.sp or plan.tp == 1:
        return
    parts = plan.tp * plan.cp
    if model.sequence % parts:
        split = f"tp {plan.tp}" if plan.cp == 1 else f"tp {plan.tp} × cp {plan.cp}"
        fits = multiples(model.sequence, equal_parts(plan))
        raise PlanError(
            f"sp cuts sequence {model.sequence}, which does not divide by {split}; sequence {fits} would"
        )


def calls(case: Case, rank: int) -> list[Call]:
    """Predict gathers of n0 / tp elements and scattered sums of n0, for n0 = b s h."""
    plan = case.plan
    if not plan.sp or plan.tp == 1:
        return []
    names = division.units(case, rank)
    pairs = 2 * sum(name.startswith("block.") for name in names)
    pairs -= sum(division.with_experts(case, name) for name in names)  # of layers that are cut
    head = "head" in names
    by_rows = "embedding" in names and plan.embedding == "row"
    by_columns = "embedding" in names and plan.embedding == "column"
    whole = division.activation_bytes(case)
    made = [
        Call(axis=DIM, verb="all_gather", sent_bytes=whole // plan.tp, count=3 * pairs + 2 * head + by_rows),
        Call(axis=DIM, verb="reduce_scatter", sent_bytes=whole, count=2 * pairs + head + by_rows),
        Call(axis=DIM, verb="all_to_all", sent_bytes=whole // plan.tp, count=2 * by_columns),
    ]
    return division.per_step(case, made)


def buffer_bytes(case: Case, rank: int) -> int:  # noqa: ARG001
    """Predict the memory for arranging slices: of several sequences they come rank by rank."""
    if not case.plan.sp or case.plan.tp == 1 or division.sequences(case) == 1:
        return 0
    return division.activation_bytes(case)
