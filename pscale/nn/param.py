"""Parameters, and the flat memory that holds all of a stage's."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import DTypeLike

from pscale.nn.buffers import Array, Buffers, aligned

Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


def normal(deviation: float) -> Draw:
    """Draw from a normal distribution around zero."""
    return lambda random, shape: random.normal(0.0, deviation, shape)


def constant(value: float) -> Draw:
    """Set every element to `value`."""
    return lambda _, shape: np.full(shape, value)


class Param:
    """A weight and its gradient, both views into an arena once bound.

    `layer` and `name` (unique within the layer) choose the random numbers, `sync` names the axes over
    which the gradient is a partial sum, `decay` says whether weight decay applies.
    """

    data: Array
    grad: Array

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        *,
        layer: int,
        draw: Draw,
        sync: tuple[str, ...] = (),
        decay: bool = False,
    ):
        self.name, self.shape, self.layer = name, shape, layer
        self.draw, self.sync, self.decay = draw, sync, decay
        self.size = math.prod(shape)
        self.stale = False  # the gradient belongs to an earlier step

    def initial(self, seed: int) -> Array:
        """Draw the whole value in float64, the same for every plan, dtype and order of construction."""
        random = np.random.default_rng([seed, self.layer, zlib.crc32(self.name.encode())])
        return self.draw(random, self.shape)

    def add_grad(self, values: Array) -> None:
        """Add to the gradient."""
        if self.stale:
            np.copyto(self.grad, values)
        else:
            self.grad += values
        self.stale = False

    def add_product(self, a: Array, b: Array, buffers: Buffers) -> None:
        """Add `a @ b` to the gradient; the first of a step is written in place, which saves a pass."""
        if self.stale:
            np.matmul(a, b, out=self.grad)
            self.stale = False
        else:
            product = buffers.take(self.shape, self.grad.dtype)
            np.matmul(a, b, out=product)
            self.grad += product
            buffers.give(product)

    def accumulator(self) -> Array:
        """Return the gradient for adding to, zero if nothing was added in this step."""
        if self.stale:
            self.grad.fill(0)
            self.stale = False
        return self.grad


class Arena:
    """All parameters of a stage in one flat array and all gradients in another, in forward order."""

    def __init__(self, params: Sequence[Param], dtype: DTypeLike):
        self.params = tuple(params)
        kind = np.dtype(dtype)
        size = sum(param.size for param in self.params)
        self.data: Array = aligned(size * kind.itemsize).view(kind)
        self.grad: Array = aligned(size * kind.itemsize).view(kind)
        self.data.fill(0)
        self.grad.fill(0)
        start = 0
        for param in self.params:
            stop = start + param.size
            param.data = self.data[start:stop].reshape(param.shape)
            param.grad = self.grad[start:stop].reshape(param.shape)
            start = stop

    def fill(self, seed: int) -> None:
        """Give every parameter its initial value."""
        for param in self.params:
            param.data[...] = param.initial(seed)

    def clear_grads(self) -> None:
        """Begin a step: the first contribution to each gradient replaces what is there.

        No memory is touched. Every layer contributes to all of its gradients in every backward, so
        none is left stale; that is cheaper than zeroing all and adding.
        """
        for param in self.params:
            param.stale = True
