"""Layer normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.kernels.tile import rows_of
from pscale.nn.param import Param
from pscale.number import wide

EPSILON = 1e-5

Cache = tuple[Array, Array, Array]


class LayerNorm:
    """(x - mean) / deviation * gain + bias over the last dim (Ba et al., 2016)."""

    def __init__(self, gain: Param, bias: Param, *, buffers: Buffers):
        self.gain, self.bias, self.buffers = gain, bias, buffers
        self.params: Sequence[Param] = (gain, bias)

    def forward(self, x: Array) -> tuple[Array, Cache]:
        """Normalise; keeps the input and two numbers a row."""
        y = self.buffers.take(x.shape, x.dtype)
        rows = rows_of(x)
        mean = self.buffers.take((len(rows),), wide(x.dtype))
        inverse = self.buffers.take((len(rows),), wide(x.dtype))  # of the deviation
        kernels.current().layer_norm(rows, self.gain.data, self.bias.data, rows_of(y), mean, inverse, EPSILON)
        return y, (x, mean, inverse)

    def backward(self, dy: Array, cache: Cache, skip: Array | None = None) -> Array:
        """Add to the gradients of gain and bias, and `skip` to that of the input."""
        x, mean, inverse = cache
        dx = self.buffers.reuse(x)
        grads = np.zeros((2, x.shape[-1]), x.dtype)
        kernels.current().layer_norm_backward(
            rows_of(x),
            mean,
            inverse,
            self.gain.data,
            rows_of(dy),
            rows_of(dx),
            grads[0],
            grads[1],
            None if skip is None else rows_of(skip),
        )
        self.gain.add_grad(grads[0])
        self.bias.add_grad(grads[1])
        for array in (mean, inverse, dy):
            self.buffers.give(array)
        return dx
