"""The Gaussian error linear unit in its tanh form, with the bias that comes before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.kernels.tile import rows_of
from pscale.nn.param import Param


class BiasGelu:
    """GELU(x + bias).

    Forward puts the derivative where its input was, so that backward is one product. A bias (G, C) has a
    row for each of the G equal parts of x, as experts do.
    """

    def __init__(self, bias: Param, *, buffers: Buffers):
        self.bias, self.buffers = bias, buffers
        self.params: Sequence[Param] = (bias,)

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the activation; keeps its derivative."""
        y, slope = self.buffers.take(x.shape, x.dtype), self.buffers.reuse(x)
        kernels.current().bias_gelu(
            self._parts(x), rows_of(self.bias.data), self._parts(y), self._parts(slope)
        )
        return y, slope

    def backward(self, dy: Array, slope: Array) -> Array:
        """Multiply by the derivative."""
        dx = self.buffers.reuse(dy)
        bias_grad = np.zeros(self.bias.shape, dy.dtype)
        kernels.current().bias_gelu_backward(
            self._parts(dy), self._parts(slope), self._parts(dx), rows_of(bias_grad)
        )
        self.bias.add_grad(bias_grad)
        self.buffers.give(slope)
        return dx

    def _parts(self, x: Array) -> Array:
        width = self.bias.shape[-1]
        return x.reshape(self.bias.size // width, -1, width)
