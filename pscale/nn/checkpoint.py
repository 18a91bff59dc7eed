"""Activations that are computed again rather than kept (Chen et al., 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from pscale.nn.buffers import Array, Buffers
from pscale.nn.layer import Layer
from pscale.nn.param import Param


class Recomputed:
    """A layer of which its input alone is kept: backward does forward again, with the same bits."""

    def __init__(self, layer: Layer, *, buffers: Buffers):
        self.layer, self.buffers = layer, buffers
        self.params: Sequence[Param] = layer.params

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the output; keeps the input."""
        mark = self.buffers.holdings()
        self.buffers.share(x)
        y, _ = self.layer.forward(x)
        self.buffers.forget_since(mark, y)
        return y, x

    def backward(self, dy: Array, x: Array) -> Array | None:
        """Find what the layer keeps, and go back through it."""
        y, cache = self.layer.forward(x)
        self.buffers.give(y)
        return self.layer.backward(dy, cache)
