"""The fused kernels against those in NumPy, which define what is computed."""

import os
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pscale.nn.buffers import Array
from pscale.nn.kernels import fused, philox, reference, tiles
from pscale.nn.kernels.attention_block import (
    AttentionBlock,
    AttentionGradients,
    AttentionOperands,
    DroppedScores,
    Progress,
    Softmax,
    whole,
)
from pscale.nn.kernels.reference import Kernels, add_product

WIDTH = 19  # no multiple of a vector's length


def fused_kernels(threads: int) -> Kernels:
    library = fused.library()
    if library is None:
        assert not os.environ.get("CI"), "a compiler with OpenMP is there: the fused kernels must be too"
        pytest.skip("the fused kernels were not built: no C compiler with OpenMP when pscale was installed")
    return fused.FusedKernels(library, threads)


@pytest.fixture(params=[1, 2, 3], ids="{} threads".format)
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    yield fused_kernels(request.param)
    fused_kernels(1)


def test_a_library_that_was_built_from_other_sources_is_not_called(monkeypatch):
    fused_kernels(1)
    monkeypatch.setattr(fused, "INTERFACE", fused.INTERFACE + 1)
    fused._loaded.cache_clear()
    try:
        assert fused.library() is None
        assert "other sources" in fused.obstacle()
    finally:
        fused._loaded.cache_clear()


def test_memory_that_a_function_in_c_is_given_stays_until_it_returns(monkeypatch):
    kernels = fused_kernels(2)
    told, function, given, gone = fused.data, kernels.function, [], {}

    def data(*arrays):
        given.extend(map(weakref.ref, arrays))
        return told(*arrays)

    def watched(name, x):
        def call(*arguments):
            gone[name] = [reference() is None for reference in given]
            given.clear()
            return function(name, x)(*arguments)

        return call

    monkeypatch.setattr(fused, "data", data)
    monkeypatch.setattr(kernels, "function", watched)
    y, rows = np.ones((6, WIDTH)), np.zeros(6, np.int64)
    kernels.cross_entropy(y, rows, 1.0)
    kernels.square_norm(y.ravel())
    kernels.square_sums(y, np.empty(6), np.empty(WIDTH))
    kernels.add_to_rows(np.zeros((3, WIDTH)), rows, y)
    assert gone == {
        "cross_entropy": [False] * 3,
        "square_norm": [False] * 2,
        "square_sums": [False] * 4,
        "add_to_rows": [False] * 3,
    }


MATRICES = {
    "rows": lambda x: x,
    "columns": np.asfortranarray,
    "a part": lambda x: np.pad(x, 1)[1:-1, 1:-1],
    "a transposed part": lambda x: np.pad(x.T, 1)[1:-1, 1:-1].T,
    "every second": lambda x: np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::2],  # which no BLAS takes
}


@pytest.mark.parametrize("by_blas", [True, False])
@pytest.mark.parametrize("sizes", [(5, 7, 3), (1, 4, 1), (3, 1, 2), (2, 0, 3), (40, 9, 17)])
@pytest.mark.parametrize("layout", MATRICES)
def test_a_product_is_added_however_its_factors_lie(layout, sizes, dtype, by_blas, monkeypatch):
    m, k, n = sizes
    monkeypatch.setattr(tiles, "TILE_BYTES", 400)
    if not by_blas:
        monkeypatch.setattr(reference, "add_product", lambda *_: False)
    a, b, there = values(dtype, m, k), values(dtype, k, n), values(dtype, m, n)
    for out in (there.copy(), np.pad(there, 1)[1:-1, 1:-1], there.copy("F")):
        Kernels().multiply_add(MATRICES[layout](a), MATRICES[layout](b), out)
        np.testing.assert_allclose(out, there + a @ b, **close(dtype))


def test_vectors_and_stacks_are_multiplied_and_added_too():
    a, b, out = values("float64", 4, 2, 3), values("float64", 4, 3, 5), values("float64", 4, 2, 5)
    expected = out + a @ b
    expected[0, 0] += a[0, 0] @ b[0]
    Kernels().multiply_add(a, b, out)
    Kernels().multiply_add(a[0, 0], b[0], out[0, 0])
    np.testing.assert_allclose(out, expected, rtol=1e-13)


def test_the_blas_of_numpy_is_found_and_adds_numbers_of_its_types_alone():
    one = np.ones((2, 2))
    assert add_product(one, one, one.copy())
    assert not add_product(one, one.astype(np.float32), one.copy())
    assert not add_product(one.astype(int), one.astype(int), one.astype(int))


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def values(dtype: str, *shape: int) -> Array:
    return np.random.default_rng(5).normal(size=shape).astype(dtype)


def close(dtype: str) -> dict[str, float]:
    # Either is within 2e-6 or 1e-14 of the exact slope of GELU, the largest error of all.
    return {"rtol": 0, "atol": {"float32": 1e-5, "float64": 5e-14}[dtype]}


def both(kernels: Kernels, compute: Callable[[Kernels], list[Array]], dtype: str) -> None:
    for ours, expected in zip(compute(kernels), compute(Kernels()), strict=True):
        np.testing.assert_allclose(ours, expected, **close(dtype))


@pytest.mark.parametrize("scale", [1, 50])  # a row of which one number is nearly all of the sum, too
@pytest.mark.parametrize("width", [1, WIDTH, 300])
def test_the_fused_loss_is_that_of_numpy_whole_and_in_parts(kernels, dtype, width, scale):
    y, targets = scale * values(dtype, 7, width), np.random.default_rng(3).integers(0, width, 7)
    found = []
    for each in (kernels, Kernels()):
        whole = y.copy()
        loss = each.cross_entropy(whole, targets, 0.3)
        parts, (total, chosen) = y.copy(), np.empty((2, 7), dtype)
        each.exponentials(parts, targets - 1, y.max(axis=1), total, chosen)
        each.softmax_gradient(parts, targets - 1, total, 0.3)
        found.append([np.array(loss), whole, parts, total, chosen])
    for fused_one, numpy_one in zip(*found, strict=True):
        np.testing.assert_allclose(fused_one, numpy_one, **close(dtype))
    exact = y.astype(np.float64) - y.max(axis=1, keepdims=True).astype(np.float64)
    nats = np.log(np.exp(exact).sum(axis=1)) - exact[np.arange(7), targets]
    assert found[0][0] == pytest.approx(0.3 * nats.sum(), rel=1e-6)


def test_a_logit_that_is_no_number_makes_the_fused_loss_none(kernels, dtype):
    y = values(dtype, 3, WIDTH)
    y[1, 4] = np.nan
    assert np.isnan(kernels.cross_entropy(y, np.zeros(3, np.int64), 1.0))


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("rows", [1, 37])
def test_fused_gelu_and_its_gradient_are_those_of_numpy(kernels, dtype, rows, with_bias):
    def compute(kernels: Kernels) -> list[Array]:
        x, bias = 3 * values(dtype, rows, WIDTH), values(dtype, WIDTH)
        y, grad = np.empty_like(x), np.ones_like(bias)
        kernels.bias_gelu(x, bias if with_bias else None, y, x)
        slope, dx = x.copy(), values(dtype, rows, WIDTH)
        kernels.bias_gelu_backward(dx, x, dx, grad if with_bias else None)
        return [y, slope, dx, grad / rows]

    both(kernels, compute, dtype)


@pytest.mark.parametrize("rows", [1, 37])
def test_fused_swiglu_and_its_gradient_are_those_of_numpy(kernels, dtype, rows):
    def compute(kernels: Kernels) -> list[Array]:
        x, y, dy = (
            3 * values(dtype, rows, 2 * WIDTH),
            np.empty((rows, WIDTH), dtype),
            values(dtype, rows, WIDTH),
        )
        kernels.swiglu(y, x)
        slopes = x.copy()
        kernels.swiglu_backward(dy, x)
        return [y, slopes, x]

    both(kernels, compute, dtype)


def test_fused_gelu_of_huge_inputs_is_the_input_or_nothing(kernels, dtype):
    x = np.array([[-1e4, -200, -30, 30, 200, 1e4]], dtype)
    y, slope = np.empty_like(x), np.empty_like(x)
    kernels.bias_gelu(x, np.zeros(6, dtype), y, slope)
    np.testing.assert_allclose(y, np.maximum(x, 0), atol=1e-25)
    np.testing.assert_allclose(slope, [[0, 0, 0, 1, 1, 1]], atol=1e-25)


def test_fused_kernels_pass_on_what_is_not_a_number(kernels, dtype):
    x = values(dtype, 4, WIDTH)
    x[2, 3] = np.nan
    y, slope = np.empty_like(x), np.empty_like(x)
    kernels.bias_gelu(x, np.zeros(WIDTH, dtype), y, slope)
    assert np.argwhere(np.isnan(y)).tolist() == [[2, 3]]
    mean, rstd, one = np.empty(4, dtype), np.empty(4, dtype), np.ones(WIDTH, dtype)
    kernels.layer_norm(x, one, one, y, mean, rstd, 1e-5)
    assert np.isnan(y).all(axis=1).tolist() == [False, False, True, False]
    assert np.isnan(kernels.square_norm(x.ravel()))


@pytest.mark.parametrize("rows", [1, 37])
def test_a_fused_rotation_is_that_of_numpy_and_turns_back(kernels, dtype, rows):
    angles, x = values(dtype, rows, 5), values(dtype, rows, 3 * 10 + 4)

    def compute(kernels: Kernels) -> list[Array]:
        turned = x.copy()
        kernels.rotate(turned, np.cos(angles), np.sin(angles), 3, 1)
        back = turned.copy()
        kernels.rotate(back, np.cos(angles), np.sin(angles), 3, -1)
        return [turned, back]

    both(kernels, compute, dtype)
    turned, back = compute(kernels)
    np.testing.assert_allclose(back, x, **close(dtype))
    a, b = x[:, 10:15], x[:, 15:20]  # the second head
    np.testing.assert_allclose(turned[:, 15:20], b * np.cos(angles) + a * np.sin(angles), **close(dtype))
    np.testing.assert_array_equal(turned[:, 30:], x[:, 30:])


KNOWN_ANSWERS = {  # of the authors of Philox, in Random123: counter, key and words
    ((0, 0, 0, 0), (0, 0)): "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2): "408f276d 41c83b0e a20bc7c6 6d5451fd",
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
    ): "d16cfe09 94fdcceb 5001e420 24126ea1",
}


@pytest.mark.parametrize(("counter", "key"), KNOWN_ANSWERS)
def test_random_numbers_are_those_of_philox(counter, key):
    words = " ".join(f"{int(word):08x}" for word in philox.block(counter, key))
    assert words == KNOWN_ANSWERS[counter, key]


@pytest.mark.parametrize("column", [0, 3, 257])
@pytest.mark.parametrize("width", [1, WIDTH, 700])
def test_fused_dropout_is_that_of_numpy_and_of_any_part_of_a_row(kernels, dtype, width, column):
    x, place = values(dtype, 5, width), {"sequence": 7, "site": 13, "seed": 2**32 - 1, "step": 5, "rate": 0.3}
    positions = np.array([0, 1, 5, 100, 2**18 - 1])
    both(kernels, lambda each: [dropped(each, x, positions, column=column, **place)], dtype)
    whole = dropped(kernels, values(dtype, 5, column + width) ** 2 + 1, positions, column=0, **place)
    part = dropped(kernels, np.ones_like(x), positions, column=column, **place)
    np.testing.assert_array_equal(whole[:, column:] == 0, part == 0)


def dropped(kernels: Kernels, x: Array, positions: Array, **place: float) -> Array:
    out = np.empty_like(x)
    kernels.dropout(x, out, positions, **place)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("missing", ["", "bias", "bias and mean"])
@pytest.mark.parametrize("with_skip", [True, False])
@pytest.mark.parametrize("rows", [1, 41])
def test_fused_norms_and_their_gradients_are_those_of_numpy(kernels, dtype, rows, with_skip, missing):
    def compute(kernels: Kernels) -> list[Array]:
        x, gain, bias = 5 + values(dtype, rows, WIDTH), values(dtype, WIDTH), values(dtype, WIDTH)
        y, mean, rstd = (
            np.empty_like(x),
            None if "mean" in missing else np.zeros(rows, dtype),
            np.empty(rows, dtype),
        )
        kernels.layer_norm(x, gain, None if missing else bias, y, mean, rstd, 1e-5)
        kept = [y, np.array(mean, dtype), rstd.copy()]
        grads, dy = np.ones((2, WIDTH), dtype), values(dtype, rows, WIDTH) / 2
        skip = values(dtype, rows, WIDTH) ** 2 if with_skip else None
        bias_grad = None if missing else grads[1]
        kernels.layer_norm_backward(x, mean, rstd, gain, dy, x, grads[0], bias_grad, skip)
        return [*kept, x, grads / rows]

    both(kernels, compute, dtype)


@pytest.mark.parametrize(("with_skip", "with_bias"), [(True, True), (True, False), (False, True)])
def test_fused_sums_are_those_of_numpy(kernels, dtype, with_skip, with_bias):
    def compute(kernels: Kernels) -> list[Array]:
        x, skip, bias = values(dtype, 23, WIDTH), values(dtype, 23, WIDTH) ** 2, values(dtype, WIDTH)
        kernels.add(x, skip if with_skip else None, bias if with_bias else None, x)
        return [x]

    both(kernels, compute, dtype)


@pytest.mark.parametrize("tokens", [1, 300])
def test_rows_are_added_to_those_of_a_table_that_are_there(kernels, dtype, tokens, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_BYTES", 100 * WIDTH * 8)  # equal tokens in several tiles
    rows, x = np.random.default_rng(3).integers(-2, 9, tokens), values(dtype, tokens, WIDTH)
    expected, here = np.ones((7, WIDTH)), (rows >= 0) & (rows < 7)
    np.add.at(expected, rows[here], x[here])
    for each in (kernels, Kernels()):
        table = np.ones((7, WIDTH), dtype)
        each.add_to_rows(table, rows, x)
        np.testing.assert_allclose(table, expected, **close(dtype))


ADAM = {"scale": 0.5, "beta1": 0.9, "beta2": 0.99, "rate": 0.1}
UPDATES = {  # of weights, gradients and moments, with room for two sums of squares
    "sgd": lambda of, w, g, *_: of.sgd(w, g, None, scale=0.5, momentum=0.0, rate=0.1),
    "momentum": lambda of, w, g, m, *_: of.sgd(w, g, m, scale=0.5, momentum=0.9, rate=0.1),
    **{
        f"adamw {keep}": lambda of, w, g, m, v, _, keep=keep: of.adamw(
            *(w, g, m, v), **ADAM, epsilon=1e-3, keep=keep
        )
        for keep in (1.0, 0.9)
    },
    **{
        f"lamb {decay}": lambda of, w, g, m, v, squares, decay=decay: (
            of.lamb_moments(w, g, m, v, squares, **ADAM, epsilon=1e-2, decay=decay),
            of.lamb(w, m, v, rate=0.1, epsilon=1e-2, decay=decay, step=0.3),
        )
        for decay in (0.0, 0.1)
    },
}


@pytest.mark.parametrize("size", [0, 1, 1000])
@pytest.mark.parametrize("update", UPDATES)
def test_a_fused_update_and_its_sums_are_those_of_numpy(kernels, dtype, update, size):
    def compute(kernels: Kernels) -> list[Array]:
        weight, grad, m, v = values(dtype, 4, size)
        v *= v
        squares = np.ones(2)
        UPDATES[update](kernels, weight, grad, m, v, squares)
        return [weight, m, v, squares / max(size, 1)]

    both(kernels, compute, dtype)


@pytest.mark.parametrize("rows", [1, 37])
def test_fused_steps_of_adafactor_and_their_sums_are_those_of_numpy(kernels, dtype, rows):
    def compute(kernels: Kernels) -> list[Array]:
        weight, x = values(dtype, 2, rows, WIDTH)
        of_rows, of_columns = values(dtype, rows), values(dtype, WIDTH)
        row_sums, column_sums = np.ones(rows), np.ones(WIDTH)
        kernels.square_sums(x, row_sums, column_sums)
        norm = kernels.factored_norm(x, of_rows, of_columns)
        kernels.factored_step(weight, x, of_rows, of_columns, rate=0.1, keep=0.9)
        return [weight, row_sums / WIDTH, column_sums / rows, np.array(norm / rows / WIDTH)]

    both(kernels, compute, dtype)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
@pytest.mark.parametrize("make", [Kernels, lambda: fused_kernels(2)], ids=["numpy", "fused"])
def test_the_norm_of_float32_gradients_neither_overflows_nor_vanishes(make, scale, monkeypatch):
    monkeypatch.setattr(tiles, "CHUNK", 5)
    assert make().square_norm(np.full(12, scale, np.float32)) == pytest.approx(12 * scale**2, rel=1e-6)


def meet_twice(
    kernels: Kernels,
    dtype: str,
    *,
    tokens: int,
    width: int,
    kept: bool,
    shared: bool = False,
    drops: bool = False,
    progress: Progress | None = None,
) -> list[Array]:
    """Return results of a causal piece, then one whose keys a later half of the queries sees whole.

    Rows lie apart. Where keys are `shared` with other queries, their gradients are added to what is there. If
    it `drops` probabilities, the positions of the other keys have a gap.
    """
    B, H, other = 2, 3, 70 if kept else 300
    pieces = [whole(tokens), AttentionBlock(queries=slice(tokens // 2, tokens), keys=slice(0, other))]
    apart = values(dtype, 8, B, tokens, H, 2 * width)[..., :width].transpose(0, 1, 3, 2, 4)
    q, k, v, dy, y, dq, dk, dv = apart
    more_k, more_v, more_dk, more_dv = values(dtype, 4, B, H, other, width)
    maximum, total = np.full((B, H, tokens), -np.inf, dtype), np.zeros((B, H, tokens), dtype)
    softmaxes = [
        Softmax(
            np.empty((B, H, piece.scores(kept=True)), dtype) if kept else None,
            np.empty((B, H, piece.size[0]), dtype),
            maximum[:, :, piece.queries],
            total[:, :, piece.queries],
        )
        for piece in pieces
    ]
    here, there = np.arange(other + 5, other + 5 + tokens), np.arange(other) + 3 * (np.arange(other) > 29)
    dropped = [
        DroppedScores(
            rate=0.3,
            site=9,
            key=(2**32 - 1, 4),
            sequences=np.array([6, 7]),
            heads=np.arange(3, 6),
            queries=here[piece.queries],
            keys=positions,
        )
        if drops
        else None
        for piece, positions in zip(pieces, (here, there), strict=True)
    ]
    keys, values_, key_grads, value_grads = (k, more_k), (v, more_v), (dk, more_dk), (dv, more_dv)
    for n, (piece, softmax) in enumerate(zip(pieces, softmaxes, strict=True)):
        rows = piece.queries
        inputs = q[:, :, rows], keys[n], values_[n]
        kernels.attend(
            AttentionOperands(
                block=piece,
                inputs=inputs,
                y=y[:, :, rows],
                softmax=softmax,
                dropped=dropped[n],
                first=n == 0,
                progress=progress,
            )
        )
    level = maximum + np.log(total)
    kernels.normalise(y, total)
    found = [y, level]
    for n, (piece, softmax) in enumerate(zip(pieces, softmaxes, strict=True)):
        rows = piece.queries
        if kept:
            softmax.factors[...] = np.exp(softmax.factors - maximum[:, :, rows]) / total[:, :, rows]
        else:
            softmax.factors[...] = level[:, :, rows]
        kernels.attend_backward(
            AttentionGradients(
                block=piece,
                inputs=(q[:, :, rows], keys[n], values_[n]),
                y=found[0][:, :, rows],
                dy=dy[:, :, rows],
                grads=(dq[:, :, rows], key_grads[n], value_grads[n]),
                softmax=softmax,
                dropped=dropped[n],
                first=n == 0,
                first_of_keys=not shared,
                progress=progress,
            )
        )
    return [*found, dq, dk, dv, more_dk, more_dv]


@pytest.mark.parametrize(
    ("tokens", "kept"), [(1, True), (64, True), (150, True), (1, False), (256, False), (600, False)]
)
@pytest.mark.parametrize("special", [None, "shared", "drops"])
def test_fused_attention_and_its_gradients_are_those_of_numpy(kernels, dtype, tokens, kept, special):
    sizes = {"tokens": tokens, "width": 8, "kept": kept} | ({special: True} if special else {})
    both(kernels, lambda each: meet_twice(each, dtype, **sizes), dtype)


@pytest.mark.parametrize("generation", [2, 3, 4])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("width", [1, 19, 64, 200])
def test_heads_of_every_width_are_right_on_every_generation_of_vector_units(dtype, width, kept, generation):
    kernels = fused_kernels(1)
    kernels.library.set_newest_unit(generation)
    try:
        both(kernels, lambda each: meet_twice(each, dtype, tokens=77, width=width, kept=kept), dtype)
    finally:
        kernels.library.set_newest_unit(4)


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("make", [Kernels, lambda: fused_kernels(2)], ids=["numpy", "fused"])
@pytest.mark.parametrize(("tokens", "width", "parts"), [(70, 8, 4), (400, 64, 12)])
def test_attention_lets_exchanges_go_on_in_both_directions(make, kept, tokens, width, parts):
    polls: list[int] = []
    shape = {"tokens": tokens, "width": width, "kept": kept}
    expected = meet_twice(make(), "float64", **shape)
    found = meet_twice(make(), "float64", **shape, progress=lambda: polls.append(1))
    assert len(polls) >= parts
    np.testing.assert_array_equal(
        np.concatenate([x.ravel() for x in found]), np.concatenate([x.ravel() for x in expected])
    )


def test_small_heads_are_computed_by_one_call_though_exchanges_are_under_way():
    polls: list[int] = []
    meet_twice(fused_kernels(2), "float32", tokens=70, width=8, kept=True, progress=lambda: polls.append(1))
    assert len(polls) == 4  # two blocks, forward and backward
