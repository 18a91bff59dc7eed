"""Weights stored in 16 bits train as float32 copies do that get the same gradients."""

import math

import numpy as np
import pytest
from arena import Arena
from nn.test_kernels import fused_kernels

from pscale.config import Train
from pscale.nn import kernels
from pscale.nn.kernels import tiles
from pscale.nn.kernels.reference import Kernels
from pscale.nn.optimizers import make_optimizer
from pscale.nn.optimizers.base import update
from pscale.nn.optimizers.state import Flat
from pscale.nn.param import Param, constant

SHAPES = {"bias": (7,), "matrix": (6, 11), "experts": (2, 3, 5), "gain": (9,)}
SIZE = sum(math.prod(shape) for shape in SHAPES.values())
RANDOM = np.random.default_rng(4)
START = RANDOM.normal(size=SIZE).astype(np.float16)
GRADS = (RANDOM.normal(size=(5, SIZE)) * 2.0**9).astype(np.float16)
OPTIMIZERS = ["sgd", "adam", "adamw", "lamb", "adafactor", "lion", "muon"]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(tiles, "CHUNK", 13)
    monkeypatch.setattr(tiles, "TILE_BYTES", 64)


@pytest.fixture(params=["numpy", "fused"])
def _computing(request):
    before = kernels.current()
    kernels.use(Kernels() if request.param == "numpy" else fused_kernels(2))
    yield
    kernels.use(before)


def trained(optimizer, dtype, steps=5, lr=1e-4):
    """Return stored weights and all state after steps with gradients that are 512 times too large."""
    params = [
        Param(name, shape, layer=0, draw=constant(0.0), decay=len(shape) > 1, matrices=int(name == "matrix"))
        for name, shape in SHAPES.items()
    ]
    arena = Arena(params, dtype)
    arena.data[:] = START
    train = Train(optimizer=optimizer, momentum=0.9, weight_decay=0.1)
    made = make_optimizer(train, [Flat(arena.data, arena.grad, arena.params)])
    for number, grad in enumerate(GRADS[:steps], 1):
        arena.grad[:] = grad
        update(made, 1, lr, 2.0**-9, number)
    return arena.data, made.state


@pytest.mark.usefixtures("_computing")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_copies_take_the_steps_of_float32_and_are_rounded_to_what_is_stored(optimizer):
    expected, (stored, (copy, *state)) = trained(optimizer, "float32"), trained(optimizer, "float16")
    assert stored.dtype == np.float16
    assert all(each.dtype != np.float16 for each in state)
    np.testing.assert_allclose(copy, expected[0], rtol=1e-6)
    for found, wanted in zip(state, expected[1], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-9)
    np.testing.assert_array_equal(stored, copy.astype(np.float16))


def test_updates_smaller_than_the_last_bit_add_up_in_the_copies():
    params = [Param("w", (3,), layer=0, draw=constant(1.0))]
    arena = Arena(params, "float16")
    arena.fill(0)
    made = make_optimizer(Train(optimizer="sgd"), [Flat(arena.data, arena.grad, arena.params)])
    arena.grad[:] = -1
    for _ in range(100):
        update(made, 1, 1e-4)  # half of the distance from 1 to the next number is 4.9e-4
    np.testing.assert_allclose(arena.data.astype(float), 1.01, atol=5e-4)


def test_mixed_precision_with_adam_takes_twelve_bytes_a_weight_beside_the_four_of_weights_and_gradients():
    data, state = trained("adamw", "float16", steps=0)
    assert 2 * data.nbytes + sum(each.nbytes for each in state) == (2 + 2 + 12) * SIZE
