"""Both ends of a model that works on a part of data which every rank has whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pscale.nn.buffers import Array
from pscale.nn.layer import Layer
from pscale.nn.loss import Loss
from pscale.nn.param import Param

Choice = Callable[[Array], Array]  # views this rank's part


class Sliced:
    """A first layer that works on a part of the data."""

    def __init__(self, layer: Layer, part: Choice):
        self.layer, self.part = layer, part
        self.params: Sequence[Param] = layer.params

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Show the layer its part."""
        return self.layer.forward(self.part(x))

    def backward(self, dy: Array, cache: Any) -> Array | None:
        """Leave it to the layer."""
        return self.layer.backward(dy, cache)


class SlicedTargets:
    """A loss of a part, against targets that every rank has whole."""

    def __init__(self, loss: Loss, part: Choice):
        self.loss, self.part = loss, part

    def forward(self, y: Array, targets: Array, weight: float) -> tuple[float, Array]:
        """Show the loss its part of the targets."""
        return self.loss.forward(y, self.part(targets), weight)

    def backward(self, cache: Array) -> Array:
        """Return the gradient of this rank's outputs."""
        return self.loss.backward(cache)
