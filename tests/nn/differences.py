"""Proof of a layer by central differences: along random directions, so that every element counts."""

from collections.abc import Callable

import numpy as np
import pytest
from arena import Arena

from pscale.nn.buffers import Array, Buffers
from pscale.nn.layer import Layer
from pscale.nn.param import Param, constant

STEP = 1e-6
NOWHERE = np.nan  # what a gradient holds before anything was written to it


def param(*shape: int, name: str = "weight") -> Param:
    return Param(name, shape, layer=0, draw=constant(0.0))


def randomize(arena: Arena, seed: int = 5) -> None:
    arena.data[:] = np.random.default_rng(seed).normal(size=arena.data.size)


def slope(function: Callable[[], float], x: Array, direction: Array) -> float:
    """Return the derivative of `function`, which reads `x`, along `direction`."""
    start = x.copy()
    x[...] = start + STEP * direction
    above = function()
    x[...] = start - STEP * direction
    below = function()
    x[...] = start
    return (above - below) / (2 * STEP)


def check(layer: Layer, x: Array, buffers: Buffers) -> None:
    """Hold a layer to its contract: gradients, accumulation, ownership of what it is handed."""
    random = np.random.default_rng(6)
    arena = Arena(layer.params, np.float64)
    randomize(arena)
    y = layer.forward(hand(x, buffers))[0]
    dy = random.normal(size=y.shape)

    def value() -> float:
        return float(np.sum(layer.forward(hand(x, buffers))[0] * dy))

    arena.grad.fill(NOWHERE)
    arena.clear_grads()
    dx = gradient(layer, x, dy, buffers)
    for tensor, grad in [(x, dx), *((one.data, one.grad.copy()) for one in layer.params)]:
        direction = random.normal(size=tensor.shape)
        assert np.vdot(grad, direction) == pytest.approx(slope(value, tensor, direction), rel=1e-6, abs=1e-8)

    once = arena.grad.copy()
    gradient(layer, x, dy, buffers)
    np.testing.assert_allclose(arena.grad, 2 * once, rtol=1e-12)


def gradient(layer: Layer, x: Array, dy: Array, buffers: Buffers) -> Array:
    before = buffers.held_bytes
    dx = layer.backward(hand(dy, buffers), layer.forward(hand(x, buffers))[1])
    assert dx is not None
    found = dx.copy()
    del dx
    assert buffers.held_bytes == before
    return found


def hand(x: Array, buffers: Buffers) -> Array:
    """Return a copy of `x`, for a layer to own."""
    mine = buffers.take(x.shape, x.dtype)
    np.copyto(mine, x)
    return mine
