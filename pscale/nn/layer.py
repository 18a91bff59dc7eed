"""What a layer is, and how layers are put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.common_layers import Dropout, LayerNorm
from pscale.nn.kernels.tiles import rows_of
from pscale.nn.param import Param


class Layer(Protocol):
    """A differentiable function with parameters.

    A layer owns what it is handed, to keep it or to write into it, but for two arrays: the output of
    attention, which attention keeps, so a product follows; and the gradient of a residual, which that adds
    itself, so its branch ends in a product or a sum over ranks. Several forwards may be under way; each has
    its own cache. Backward adds to the gradient of every parameter.
    """

    @property
    def params(self) -> Sequence[Param]:
        """Parameters in forward order."""
        ...

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return the output and what backward needs."""
        ...

    def backward(self, dy: Array, cache: Any) -> Array | None:
        """Return the gradient of the input; None from the first layer of a network."""
        ...


class Stateless:
    """A layer whose backward needs nothing of forward: its cache is None. It has no parameters."""

    params: Sequence[Param] = ()


def remember(layer: Layer, x: Array) -> Any:
    """Return what `layer.forward(x)` keeps; what its output alone needs is left out, if it can `remember`."""
    if isinstance(layer, Chain):
        last = max(place for place, each in enumerate(layer.layers) if not isinstance(each, Stateless))
        caches = []
        for each in layer.layers[:last]:
            x, cache = each.forward(x)
            caches.append(cache)
        return [*caches, remember(layer.layers[last], x), *[None] * (len(layer.layers) - last - 1)]
    kept = getattr(layer, "remember", None)
    return kept(x) if kept else layer.forward(x)[1]


class Chain:
    """Layers one after another."""

    def __init__(self, *layers: Layer):
        self.layers = layers
        self.params: Sequence[Param] = tuple(param for layer in layers for param in layer.params)

    def forward(self, x: Array) -> tuple[Array, list[Any]]:
        """Apply the layers in order."""
        caches, flow = [], [x]  # from which a layer takes what it alone is to hold
        del x
        for layer in self.layers:
            *flow, cache = layer.forward(flow.pop())
            caches.append(cache)
        return flow.pop(), caches

    def backward(self, dy: Array, caches: list[Any]) -> Any:
        """Apply the layers' backward in reverse; only the first may return None."""
        flow: list[Any] = [dy]
        del dy
        for layer in reversed(self.layers):
            flow.append(layer.backward(flow.pop(), caches.pop()))
        return flow.pop()


class Residual:
    """x + dropout(layers(x) + bias).

    The bias, where there is one, is added here, not by the last layer: a sum over ranks may come between.
    """

    def __init__(self, *layers: Layer, bias: Param | None = None, dropout: Dropout | None = None):
        self.branch, self.bias, self.dropout = Chain(*layers), bias, dropout
        self._after_first = Chain(*layers[1:])
        self.params: Sequence[Param] = self.branch.params if bias is None else (*self.branch.params, bias)

    def forward(self, x: Array) -> tuple[Array, list[Any]]:
        """Add the branch to the stream."""
        y, caches = self.branch.forward(x)
        bias = None if self.bias is None else self.bias.data
        if self.dropout is not None:
            if bias is not None:
                kernels.current().add(rows_of(y), None, bias, rows_of(y))
            y, bias = self.dropout.dropped(y, y), None
        kernels.current().add(rows_of(y), rows_of(x), bias, rows_of(y))
        return y, caches

    def remember(self, x: Array) -> Any:
        """Return what the branch keeps."""
        return remember(self.branch, x)

    def backward(self, dy: Array, caches: list[Any]) -> Array:
        """Send the gradient both ways."""
        left = dy
        if self.dropout is not None:
            left = self.dropout.dropped(dy, self.dropout.buffers.take(dy.shape, dy.dtype))
        if self.bias is not None:
            self.bias.add_column_sums(rows_of(left))
        first, flow = self.branch.layers[0], [left]
        del left
        if isinstance(first, LayerNorm):  # adds by the way
            return first.backward(self._after_first.backward(flow.pop(), caches), caches.pop(), skip=dy)
        dx: Array = self.branch.backward(flow.pop(), caches)
        kernels.current().add(rows_of(dx), rows_of(dy), None, rows_of(dx))
        return dx


class First:
    """The first layer of a network whose input is data: nobody needs the gradient of that."""

    def __init__(self, layer: Layer, buffers: Buffers):
        self.layer, self.buffers = layer, buffers
        self.params = layer.params

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Copy the data, since layers may write into their input."""
        mine = self.buffers.take(x.shape, x.dtype)
        np.copyto(mine, x)
        return self.layer.forward(mine)

    def backward(self, dy: Array, cache: Any) -> None:
        """Drop the gradient of the data."""
        self.layer.backward(dy, cache)


class Recomputed:
    """A layer of which its input alone is kept: backward does forward again, with the same bits."""

    def __init__(self, layer: Layer):
        self.layer = layer
        self.params: Sequence[Param] = layer.params

    def forward(self, x: Array) -> tuple[Array, Array]:
        """Return the output; keeps the input."""
        return self.layer.forward(x)[0], x

    def backward(self, dy: Array, x: Array) -> Array | None:
        """Find what the layer keeps, and go back through it."""
        return self.layer.backward(dy, self.layer.forward(x)[1])
