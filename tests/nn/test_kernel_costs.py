"""What kernels cost, counted by hand: operations, and bytes of operands with 8 for a number."""

import inspect

import numpy as np
import pytest

from pscale.nn.kernels import Kernels
from pscale.nn.kernels.attention_block import AttentionGradients, AttentionOperands, Softmax, whole
from pscale.nn.kernels.costs import KERNELS, Cost


def of(*shape):
    return np.zeros(shape)


ROWS = np.zeros(2, np.intp)
STATISTICS = {"factors": of(1, 2, 4), "maximum": of(1, 2, 4), "total": of(1, 2, 4)}  # 8 numbers each
KEPT = Softmax(exponentials=of(1, 2, 16), **STATISTICS)  # of 2 heads, 4 queries and 4 keys
AGAIN = Softmax(exponentials=None, **STATISTICS)
QKV = [of(1, 2, 4, 3)] * 3  # 24 numbers each
MET = {"block": whole(4), "inputs": QKV, "y": of(1, 2, 4, 3)}
BACK = {"dy": of(1, 2, 4, 3), "grads": QKV}
ADAMW = {"scale": 1.0, "beta1": 0.9, "beta2": 0.9, "rate": 0.1, "epsilon": 1e-8}
HAND = {
    "product": ("multiply", [of(2, 3), of(3, 4), of(2, 4)], {}, Cost("product", 48, 8 * (6 + 12 + 8))),
    "products": ("multiply", [of(5, 2, 3), of(5, 3, 4), of(5, 2, 4)], {}, Cost("product", 240, 8 * 5 * 26)),
    "vector": ("multiply", [of(3), of(3, 4), of(4)], {}, Cost("reduction", 24, 8 * (3 + 12 + 4))),
    "sum of products": (
        *("multiply_add", [of(2, 3), of(3, 4), of(2, 4)], {}),
        Cost("product", 48, 8 * (6 + 12 + 2 * 8)),
    ),
    "gelu": ("bias_gelu", [of(2, 3), of(3), *[of(2, 3)] * 2], {}, Cost("activation", 90, 8 * 21)),
    "gelu back": (
        *("bias_gelu_backward", [*[of(2, 3)] * 3, of(3)], {}),
        Cost("activation", 12, 8 * (18 + 2 * 3)),
    ),
    "norm": (
        *("layer_norm", [of(2, 3), of(3), of(3), of(2, 3), of(2), of(2), 1e-5], {}),
        Cost("norm", 7 * 6 + 5 * 2, 8 * (6 + 3 + 3 + 6 + 2 + 2)),
    ),
    "norm back": (
        *("layer_norm_backward", [of(2, 3), of(2), of(2), of(3), of(2, 3), of(2, 3), of(3), of(3)], {}),
        Cost("norm", 14 * 6 + 2 * 2, 8 * (6 + 2 + 2 + 3 + 6 + 6 + 2 * (3 + 3))),
    ),
    "gelu without bias": (
        *("bias_gelu", [of(2, 3), None, *[of(2, 3)] * 2], {}),
        Cost("activation", 84, 8 * 18),
    ),
    "swiglu": ("swiglu", [of(2, 3), of(2, 6)], {}, Cost("activation", 60, 8 * (6 + 2 * 12))),
    "swiglu back": ("swiglu_backward", [of(2, 3), of(2, 6)], {}, Cost("activation", 12, 8 * (6 + 2 * 12))),
    "rmsnorm": (
        *("layer_norm", [of(2, 3), of(3), None, of(2, 3), None, of(2), 1e-5], {}),
        Cost("norm", 4 * 6 + 4 * 2, 8 * (6 + 3 + 6 + 2)),
    ),
    "rmsnorm back": (
        *("layer_norm_backward", [of(2, 3), None, of(2), of(3), of(2, 3), of(2, 3), of(3), None], {}),
        Cost("norm", 9 * 6 + 2, 8 * (6 + 2 + 3 + 6 + 6 + 2 * 3)),
    ),
    "dropout": (
        *("dropout", [of(2, 9), of(2, 9), ROWS, 0, 0, 0, 0, 0, 0.1], {}),
        Cost("elementwise", 18, 8 * (18 + 18 + 2)),
    ),
    "rotation": (
        *("rotate", [of(2, 9), of(2, 2), of(2, 2), 2, 1], {}),
        Cost("elementwise", 6 * 2 * 2 * 2, 8 * (4 + 4 + 2 * 2 * 8)),
    ),
    "sum": ("add", [of(2, 3), of(2, 3), of(3), of(2, 3)], {}, Cost("elementwise", 12, 8 * 21)),
    "bias": ("add", [of(2, 3), None, of(3), of(2, 3)], {}, Cost("elementwise", 6, 8 * 15)),
    "attention": (
        *("attend", [AttentionOperands(**MET, softmax=KEPT, first=True)], {}),
        Cost("attention", 2 * 2 * (2 * 16 * 3), 8 * (3 * 24 + 24 + 8 + 32 + 2 * (8 + 8))),
    ),
    "more keys": (
        *("attend", [AttentionOperands(**MET, softmax=AGAIN, first=False)], {}),
        Cost("attention", 2 * 2 * (2 * 16 * 3), 8 * (3 * 24 + 2 * 24 + 8 + 2 * (8 + 8))),
    ),
    "attention back": (
        *("attend_backward", [AttentionGradients(**MET, **BACK, softmax=KEPT, first=True)], {}),
        Cost("attention", 4 * 2 * (2 * 16 * 3), 8 * (3 * 24 + 24 + 24 + 3 * 24 + 8 + 32)),
    ),
    "scores again": (
        *("attend_backward", [AttentionGradients(**MET, **BACK, softmax=AGAIN, first=True)], {}),
        Cost("attention", 5 * 2 * (2 * 16 * 3), 8 * (3 * 24 + 24 + 24 + 3 * 24 + 8)),
    ),
    "loss": ("cross_entropy", [of(2, 9), ROWS, 1.0], {}, Cost("loss", 5 * 18, 8 * (2 + 2 * 18))),
    "square": ("mean_square", [of(2, 9), of(2, 9), 1.0], {}, Cost("loss", 4 * 18, 8 * (18 + 2 * 18))),
    "exponentials": (
        *("exponentials", [of(2, 9), ROWS, of(2), of(2), of(2)], {}),
        Cost("loss", 3 * 18, 8 * (4 * 2 + 2 * 18)),
    ),
    "softmax back": (
        *("softmax_gradient", [of(2, 9), ROWS, of(2), 1.0], {}),
        Cost("loss", 18, 8 * (2 * 2 + 2 * 18)),
    ),
    "lookup": ("take_rows", [of(9, 3), ROWS, of(2, 3)], {}, Cost("embedding", 0, 8 * (2 + 6 + 6))),
    "lookup back": ("add_to_rows", [of(9, 3), ROWS, of(2, 3)], {}, Cost("embedding", 6, 8 * (2 + 3 * 6))),
    "sgd": ("sgd", [of(5), of(5), None], {}, Cost("optimizer", 15, 8 * (5 + 2 * 5))),
    "momentum": ("sgd", [of(5), of(5), of(5)], {}, Cost("optimizer", 25, 8 * (5 + 2 * 10))),
    "adamw": ("adamw", [of(5)] * 4, {**ADAMW, "keep": 0.9}, Cost("optimizer", 60, 8 * 7 * 5)),
    "adam": ("adamw", [of(5)] * 4, {**ADAMW, "keep": 1}, Cost("optimizer", 55, 8 * 7 * 5)),
    "norm of gradient": ("square_norm", [of(5)], {}, Cost("optimizer", 10, 40)),
}


@pytest.mark.parametrize("name", HAND)
def test_a_call_costs_what_was_counted_by_hand(name):
    kernel, operands, settings, expected = HAND[name]
    assert KERNELS[kernel].cost(*operands, **settings) == expected


def test_numbers_of_16_bits_move_half_of_the_bytes():
    narrow, wide = ([np.zeros(5, dtype)] * 4 for dtype in (np.float16, np.float32))
    assert KERNELS["adamw"].cost(*narrow, keep=1).bytes * 2 == KERNELS["adamw"].cost(*wide, keep=1).bytes


def test_every_kernel_is_declared():
    assert {name for name in dir(Kernels) if callable(getattr(Kernels, name)) and name[0] != "_"} == set(
        KERNELS
    )


@pytest.mark.parametrize("name", KERNELS)
def test_a_declaration_names_all_arrays_of_its_kernel(name):
    arguments = inspect.signature(getattr(Kernels, name)).parameters.values()
    arrays = [each.name for each in arguments if str(each.annotation).startswith("Array")]
    assert sorted(arrays) == sorted(KERNELS[name].modes)
