"""What a layer is, and how layers are put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pscale.nn import kernels
from pscale.nn.buffers import Array, Buffers
from pscale.nn.common_layers import LayerNorm
from pscale.nn.kernels.tiles import ones, rows_of
from pscale.nn.param import Param


class Layer(Protocol):
    """A differentiable function with parameters.

    `forward` takes over its input and `backward` the gradient of its output (see `Buffers`): whatever is
    not handed on is given back, at the latest by `backward`. Several forwards may be under way; each has
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


class Forgetful:
    """A layer whose backward needs nothing of forward: its cache is None."""


@runtime_checkable
class Remembering(Protocol):
    """A layer that finds what it keeps for backward with less work than its output."""

    def remember(self, x: Array) -> Any:
        """Take over the input and return what forward would keep of it."""
        ...


def remember(layer: Layer, x: Array, buffers: Buffers) -> Any:
    """Take over `x` and return what `layer.forward(x)` keeps; what its output alone needs is left out."""
    if isinstance(layer, Chain):
        last = max(place for place, each in enumerate(layer.layers) if not isinstance(each, Forgetful))
        caches = []
        for each in layer.layers[:last]:
            x, cache = each.forward(x)
            caches.append(cache)
        return [*caches, remember(layer.layers[last], x, buffers), *[None] * (len(layer.layers) - last - 1)]
    if isinstance(layer, Remembering):
        return layer.remember(x)
    y, cache = layer.forward(x)
    buffers.give(y)
    return cache


class Chain:
    """Layers one after another."""

    def __init__(self, *layers: Layer):
        self.layers = layers
        self.params: Sequence[Param] = tuple(param for layer in layers for param in layer.params)

    def forward(self, x: Array) -> tuple[Array, list[Any]]:
        """Apply the layers in order."""
        caches = []
        for layer in self.layers:
            x, cache = layer.forward(x)
            caches.append(cache)
        return x, caches

    def backward(self, dy: Array, caches: list[Any]) -> Array | None:
        """Apply the layers' backward in reverse."""
        dx: Array | None = dy
        for layer in reversed(self.layers):
            assert dx is not None, "only the first layer may end the chain"
            dx = layer.backward(dx, caches.pop())
        return dx


class Residual:
    """x + layers(x) + bias.

    The bias, where there is one, is added here, not by the last layer: a sum over ranks may come between.
    """

    def __init__(self, *layers: Layer, bias: Param | None = None, buffers: Buffers):
        self.branch, self.bias, self.buffers = Chain(*layers), bias, buffers
        self._after_first = Chain(*layers[1:])
        self.params: Sequence[Param] = self.branch.params if bias is None else (*self.branch.params, bias)

    def forward(self, x: Array) -> tuple[Array, list[Any]]:
        """Add the branch to the stream."""
        self.buffers.share(x)
        branch, caches = self.branch.forward(x)
        y = self.buffers.reuse(branch)
        bias = None if self.bias is None else self.bias.data
        kernels.current().add(rows_of(branch), rows_of(x), bias, rows_of(y))
        self.buffers.give(x)
        return y, caches

    def remember(self, x: Array) -> Any:
        """Return what the branch keeps."""
        return remember(self.branch, x, self.buffers)

    def backward(self, dy: Array, caches: list[Any]) -> Array:
        """Send the gradient both ways."""
        if self.bias is not None:
            dy_rows = rows_of(dy)
            self.bias.add_product(ones(len(dy_rows), dy.dtype), dy_rows, self.buffers)
        self.buffers.share(dy)
        first = self.branch.layers[0]
        if isinstance(first, LayerNorm):  # adds by the way
            branch = self._after_first.backward(dy, caches)
            assert branch is not None
            dx = first.backward(branch, caches.pop(), skip=dy)
        else:
            branch = self.branch.backward(dy, caches)
            assert branch is not None
            dx = self.buffers.reuse(branch)
            kernels.current().add(rows_of(branch), rows_of(dy), None, rows_of(dx))
        self.buffers.give(dy)
        return dx


class First:
    """The first layer of a network whose input is data: nobody needs the gradient of that."""

    def __init__(self, layer: Layer, buffers: Buffers):
        self.layer, self.buffers = layer, buffers
        self.params = layer.params

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Copy the data in, since layers own their input."""
        mine = self.buffers.take(x.shape, x.dtype)
        np.copyto(mine, x)
        return self.layer.forward(mine)

    def backward(self, dy: Array, cache: Any) -> None:
        """Drop the gradient of the data."""
        dx = self.layer.backward(dy, cache)
        assert dx is not None
        self.buffers.give(dx)


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
