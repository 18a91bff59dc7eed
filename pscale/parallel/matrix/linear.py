"""A layer whose product is shared by the ranks of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pscale.config import Plan
from pscale.mesh.axis import Mesh
from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.kernels.tile import ones, rows_of
from pscale.nn.param import Param
from pscale.parallel.matrix.agarwal import Agarwal
from pscale.parallel.matrix.axonn import Axonn
from pscale.parallel.matrix.cannon import Cannon
from pscale.parallel.matrix.grid import Spread
from pscale.parallel.matrix.summa import Summa


class Product(Protocol):
    """A way to multiply matrices that lie in blocks; the rows of activations (B, T, C) are B x T."""

    def multiply(self, a: Array, weight: Param) -> Array:
        """Return this rank's part of `a @ weight`; `a` stays with the caller."""
        ...

    def differentiate(self, dc: Array, a: Array, weight: Param) -> Array:
        """Take over `dc` and `a`, add to the gradient of the weight, return that of `a`."""
        ...


class MatrixLinear:
    """x @ weight + bias; the bias has this rank's columns of the result."""

    def __init__(self, weight: Param, bias: Param | None, product: Product, *, buffers: Buffers):
        self.weight, self.bias, self.product, self.buffers = weight, bias, product, buffers
        self.params: Sequence[Param] = (weight,) if bias is None else (weight, bias)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the product; keeps the input."""
        y = self.product.multiply(x, self.weight)
        if self.bias is not None:
            kernels.current().add(rows_of(y), None, self.bias.data, rows_of(y))
        return y, x

    def remember(self, x: Array) -> Array:
        """Return the input."""
        return x

    def backward(self, dy: Array, x: Array) -> Array:
        """Add to the gradients of weight and bias."""
        if self.bias is not None:
            rows = rows_of(dy)
            self.bias.add_product(ones(len(rows), dy.dtype), rows, self.buffers)
        return self.product.differentiate(dy, x, self.weight)


def make_product(plan: Plan, mesh: Mesh, weight: Spread, *, buffers: Buffers) -> Product:
    """Return what multiplies with weights that lie so: the first of their dims is the contraction's."""
    contraction, output = mesh.axis(weight.rows[0]), mesh.axis(weight.columns[0])
    depth = mesh.axis("tz")
    match plan.matrix.algorithm:
        case "cannon":
            return Cannon(output, contraction, buffers=buffers)
        case "summa":
            return Summa(output, contraction, buffers=buffers)
        case "agarwal":
            return Agarwal(contraction, output, depth, buffers=buffers)
        case "axonn":
            return Axonn(contraction, output, depth, buffers=buffers)
