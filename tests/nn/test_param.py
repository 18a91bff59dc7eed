import numpy as np
import pytest
from arena import Arena

from pscale.nn.buffers import Buffers
from pscale.nn.param import Param, constant, normal


def params() -> list[Param]:
    return [
        Param("weight", (3, 4), layer=2, draw=normal(0.5)),
        Param("bias", (4,), layer=2, draw=constant(1.5)),
        Param("weight", (3, 4), layer=3, draw=normal(0.5)),
        Param("other", (3, 4), layer=3, draw=normal(0.5)),
    ]


def test_an_arena_holds_its_parameters_one_after_another_on_a_cache_line():
    arena = Arena(params(), np.float32)
    arena.data[:] = np.arange(40)
    arena.grad[:] = np.arange(40) + 100
    assert [param.data.flat[0] for param in arena.params] == [0, 12, 16, 28]
    np.testing.assert_array_equal(arena.params[2].grad, np.arange(116, 128).reshape(3, 4))
    assert arena.data.ctypes.data % 64 == arena.grad.ctypes.data % 64 == 0


def test_values_depend_on_seed_layer_and_name_alone():
    whole, wide = Arena(params(), np.float32), Arena(params()[::-1], np.float64)
    whole.fill(7)
    wide.fill(7)
    for param, same in zip(whole.params, reversed(wide.params), strict=True):
        np.testing.assert_array_equal(param.data, same.data.astype(np.float32))
    weights = [param.data.tolist() for param in whole.params if param.name != "bias"]
    whole.fill(8)
    weights += [whole.params[0].data.tolist()]
    assert len({str(weight) for weight in weights}) == 4


@pytest.mark.parametrize("stale", [True, False])
def test_a_contribution_replaces_a_stale_gradient_and_adds_to_a_fresh_one(stale):
    arena = Arena(params(), np.float64)
    arena.grad.fill(np.nan if stale else 10)
    if stale:
        arena.clear_grads()
    random = np.random.default_rng(1)
    a, b, v = random.normal(size=(3, 5)), random.normal(size=(5, 4)), random.normal(size=4)
    weight, bias, third, _ = arena.params
    weight.add_product(a, b)
    bias.add_grad(v)
    third.accumulator()[1] += v
    base = 0 if stale else 10
    np.testing.assert_allclose(weight.grad, base + a @ b)
    np.testing.assert_allclose(bias.grad, base + v)
    np.testing.assert_allclose(third.grad, base + np.outer([0, 1, 0], v))
    bias.add_grad(v)
    weight.add_product(a, b)
    np.testing.assert_allclose(weight.grad, base + 2 * (a @ b))
    np.testing.assert_allclose(bias.grad, base + 2 * v)


def test_a_deferred_product_keeps_its_factors_until_it_is_done():
    buffers, weight = Buffers(), Param("w", (2, 3), layer=0, draw=constant(0.0))
    arena = Arena([weight], np.float64)
    weight.deferred = []
    arena.clear_grads()
    a, b = buffers.take((4, 2), np.float64), buffers.take((4, 3), np.float64)
    a[...], b[...] = 2.0, 3.0
    weight.add_product(a.T, b)
    del a, b
    assert weight.stale
    multiply = weight.deferred.pop()
    assert weight.deferred == []
    buffers.take((4, 2), np.float64).fill(np.nan)
    multiply()
    np.testing.assert_array_equal(weight.grad, np.full((2, 3), 24.0))
    del multiply
    assert buffers.held_bytes == 0
