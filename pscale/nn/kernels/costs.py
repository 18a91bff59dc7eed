"""What a call of a kernel costs, from its operands: floating-point operations, and bytes to and from memory.

Bytes are what a cache cannot save: each operand that is read counts once, each that is written once, and one
that is updated in place twice. What a kernel reads again because a cache does not hold it, or keeps in
scratch memory, is not counted, so that FLOPs over bytes is the arithmetic intensity of the roofline model
(Williams, Waterman and Patterson 2009, https://doi.org/10.1145/1498765.1498785). An operation
on a number counts one, whichever it is: a sum, a square root, a tanh. Of attention only the matrix products
count, masked scores included, so that products and attention together are `counts.executed_flops`.
"""

# ruff: noqa: ARG001 - called like the kernels
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pscale.nn.buffers import Array
from pscale.nn.kernels.attention_block import AttentionGradients, AttentionOperands


class Cost(NamedTuple):
    """What one call costs, and the class of kernels that it belongs to."""

    kernel: str
    flops: int
    bytes: int


def _bytes(*operands: Array | None, updated: Sequence[Array | None] = ()) -> int:
    """Return the bytes of operands that are read or written, and twice those of the `updated` ones."""
    return sum(x.nbytes for x in (*operands, *updated, *updated) if x is not None)


def multiply(a: Array, b: Array, out: Array) -> Cost:
    """Return the cost of a @ b; with a vector it is a reduction, since no number is used twice."""
    kernel = "product" if a.ndim > 1 and b.ndim > 1 else "reduction"
    return Cost(kernel, 2 * out.size * a.shape[-1], _bytes(a, b, out))


def bias_gelu(x: Array, bias: Array, y: Array, slope: Array) -> Cost:
    """Return the cost of the activation and its derivative: 15 operations a number."""
    return Cost("activation", 15 * x.size, _bytes(x, bias, y, slope))


def bias_gelu_backward(dy: Array, slope: Array, dx: Array, bias_grad: Array) -> Cost:
    """Return the cost of a product and a sum for each number."""
    return Cost("activation", 2 * dy.size, _bytes(dy, slope, dx, updated=[bias_grad]))


def layer_norm(
    x: Array, gain: Array, bias: Array, y: Array, mean: Array, inverse: Array, epsilon: float
) -> Cost:
    """Return the cost of a norm: 7 operations a number and 5 a row."""
    return Cost("norm", 7 * x.size + 5 * len(x), _bytes(x, gain, bias, y, mean, inverse))


def layer_norm_backward(
    x: Array,
    mean: Array,
    inverse: Array,
    gain: Array,
    dy: Array,
    dx: Array,
    gain_grad: Array,
    bias_grad: Array,
    skip: Array | None = None,
) -> Cost:
    """Return the cost of a norm's gradients: 14 operations a number, 15 with `skip`, and 2 a row."""
    flops = (14 + (skip is not None)) * x.size + 2 * len(x)
    return Cost("norm", flops, _bytes(x, mean, inverse, gain, dy, dx, skip, updated=[gain_grad, bias_grad]))


def add(x: Array, skip: Array | None, bias: Array | None, y: Array) -> Cost:
    """Return the cost of a sum of two or three arrays."""
    terms = (skip is not None) + (bias is not None)
    return Cost("elementwise", terms * y.size, _bytes(x, skip, bias, y))


def attend(of: AttentionOperands) -> Cost:
    """Return the cost of two products for each score; scores move where they are kept for backward."""
    softmax = of.softmax
    statistics = [softmax.maximum, softmax.total]
    moved = _bytes(*of.inputs, of.y, softmax.factors, softmax.exponentials, updated=statistics)
    return Cost("attention", 4 * _products(of), moved + (0 if of.first else of.y.nbytes))


def attend_backward(of: AttentionGradients) -> Cost:
    """Return the cost of four products for each score, five where scores are computed again."""
    flops = (8 if of.keeps_scores else 10) * _products(of)
    moved = _bytes(*of.inputs, of.y, of.dy, *of.grads, of.softmax.factors, of.softmax.exponentials)
    return Cost("attention", flops, moved + (0 if of.first else of.grads[0].nbytes))


def _products(of: AttentionOperands) -> int:
    """Return the multiply-adds of one product of the scores that are computed."""
    B, heads, _, width = of.inputs[0].shape
    products: int = B * heads * of.block.scores(kept=of.keeps_scores) * width
    return products


def normalise(y: Array, total: Array) -> Cost:
    """Return the cost of dividing by sums; no matrix product."""
    return Cost("attention", 0, _bytes(total, updated=[y]))


def take_rows(table: Array, rows: Array, out: Array) -> Cost:
    """Return the cost of copying rows."""
    return Cost("embedding", 0, _bytes(rows, out, out))


def add_to_rows(table: Array, rows: Array, x: Array) -> Cost:
    """Return the cost of adding rows, each of which counts as read and written in the table."""
    return Cost("embedding", x.size, _bytes(rows, x, updated=[x]))


def loss(y: Array, targets: Array) -> Cost:
    """Return the cost of a loss with its gradient in place: 5 operations a logit, 4 of a mean square."""
    each = 5 if np.issubdtype(targets.dtype, np.integer) else 4
    return Cost("loss", each * y.size, _bytes(targets, updated=[y]))


def sgd(weight: Array, grad: Array, velocity: Array | None, **_: float) -> Cost:
    """Return the cost of 3 operations a weight, 5 with a velocity."""
    each = 3 if velocity is None else 5
    return Cost("optimizer", each * weight.size, _bytes(grad, updated=[weight, velocity]))


def adamw(weight: Array, grad: Array, m: Array, v: Array, *, keep: float, **_: float) -> Cost:
    """Return the cost of 11 operations a weight, 12 with weight decay."""
    return Cost("optimizer", (11 + (keep != 1)) * weight.size, _bytes(grad, updated=[weight, m, v]))


def lamb_moments(
    weight: Array, grad: Array, m: Array, v: Array, squares: Array, *, decay: float, **_: float
) -> Cost:
    """Return the cost of 14 operations a weight, 16 with weight decay."""
    each = 14 + 2 * (decay != 0)
    return Cost("optimizer", each * weight.size, _bytes(weight, grad, updated=[m, v, squares]))


def lamb(weight: Array, m: Array, v: Array, *, decay: float, **_: float) -> Cost:
    """Return the cost of 6 operations a weight, 8 with weight decay."""
    return Cost("optimizer", (6 + 2 * (decay != 0)) * weight.size, _bytes(m, v, updated=[weight]))


def square_sums(x: Array, row_sums: Array, column_sums: Array) -> Cost:
    """Return the cost of a square and two sums for each number."""
    return Cost("optimizer", 3 * x.size, _bytes(x, updated=[row_sums, column_sums]))


def factored_norm(x: Array, of_rows: Array, of_columns: Array) -> Cost:
    """Return the cost of two products, a square and a sum for each number."""
    return Cost("optimizer", 4 * x.size, _bytes(x, of_rows, of_columns))


def factored_step(
    weight: Array, x: Array, of_rows: Array, of_columns: Array, *, keep: float, **_: float
) -> Cost:
    """Return the cost of 4 operations a weight, 5 with weight decay."""
    return Cost("optimizer", (4 + (keep != 1)) * x.size, _bytes(x, of_rows, of_columns, updated=[weight]))


def square_norm(x: Array) -> Cost:
    """Return the cost of a square and a sum for each number."""
    return Cost("optimizer", 2 * x.size, _bytes(x))


# Of every kernel, by its name and with its arguments.
COSTS: Mapping[str, Callable[..., Cost]] = {
    cost.__name__: cost
    for cost in (
        *(multiply, bias_gelu, bias_gelu_backward, layer_norm, layer_norm_backward, add),
        *(attend, attend_backward, normalise, take_rows, add_to_rows),
        *(sgd, adamw, lamb_moments, lamb, square_sums, factored_norm, factored_step, square_norm),
    )
}
