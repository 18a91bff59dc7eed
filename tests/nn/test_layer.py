from dataclasses import replace

import numpy as np
import pytest
from arena import Arena
from nn.differences import check, hand, param

from pscale.nn.attention import NO_DROPOUT, Attention, Rotary, ScoreDropout, turns
from pscale.nn.buffers import Array, Buffers
from pscale.nn.common_layers import BiasGelu, Draws, Dropout, LayerNorm, Linear, Positions, SwiGlu, Tokens
from pscale.nn.kernels import philox
from pscale.nn.kernels.attention_block import ROWS, TILE
from pscale.nn.kernels.tiles import TILE_BYTES
from pscale.nn.layer import Chain, Layer, Residual

TILED = TILE_BYTES // 8 // 6 + 3  # rows of width 6 that need two tiles


def linear(buffers: Buffers, inputs: int, outputs: int, *, bias: bool = True) -> Linear:
    return Linear(param(inputs, outputs), param(outputs, name="bias") if bias else None, buffers=buffers)


def norm(buffers: Buffers, width: int) -> LayerNorm:
    return LayerNorm(param(width), param(width, name="bias"), buffers=buffers)


def residual(buffers: Buffers) -> Layer:
    return Residual(norm(buffers, 6), linear(buffers, 6, 6, bias=False), bias=param(6))


def normal(*shape: int) -> Array:
    return np.random.default_rng(4).normal(size=shape)


@pytest.mark.parametrize("rows", [7, TILED])
@pytest.mark.parametrize(
    "make",
    [
        lambda buffers: linear(buffers, 6, 4),
        lambda buffers: linear(buffers, 6, 4, bias=False),
        lambda buffers: norm(buffers, 6),
        lambda buffers: LayerNorm(param(6), None, buffers=buffers),
        lambda buffers: LayerNorm(param(6), None, centred=False, buffers=buffers),
        lambda buffers: BiasGelu(param(6), buffers=buffers),
        lambda buffers: Chain(linear(buffers, 6, 5, bias=False), BiasGelu(None, buffers=buffers)),
        lambda buffers: SwiGlu(buffers=buffers),
        residual,
        lambda buffers: Residual(
            *(norm(buffers, 6), linear(buffers, 6, 6, bias=False)),
            bias=param(6),
            dropout=Dropout(0.3, 1, Draws(seed=3), runs=[slice(0, TILED)], buffers=buffers),
        ),
        lambda buffers: Chain(residual(buffers), linear(buffers, 6, 5), BiasGelu(param(5), buffers=buffers)),
    ],
    ids=[
        *("linear", "linear without bias", "norm", "norm without bias", "rmsnorm"),
        *("gelu", "gelu without bias", "swiglu", "residual", "residual with dropout", "chain"),
    ],
)
def test_gradients_are_the_slopes_and_no_memory_stays(make, rows):
    buffers = Buffers()
    check(make(buffers), normal(1, rows, 6), buffers)


def test_the_product_of_a_turned_query_and_key_depends_on_how_far_apart_they_are():
    cosine, sine = turns([slice(0, 3), slice(5000, 5003)], 8, 1e4, "float64", Buffers())
    assert (cosine[1, 0], sine[1, 0]) == (np.cos(1), np.sin(1))  # of the shortest wavelength
    q, k = np.tile(normal(6, 1, 16)[:1], (6, 1, 1)), np.tile(normal(7, 1, 16)[6:], (6, 1, 1))
    x, _ = Rotary(2, (cosine, sine)).forward(np.concatenate([q, k], axis=2).reshape(1, 6, 32))
    scores = x[0, :, :16] @ x[0, :, 16:].T
    np.testing.assert_allclose([scores[2, 1], scores[4, 3], scores[5, 4]], scores[1, 0], rtol=1e-10)
    assert abs(scores[2, 0] - scores[1, 0]) > 1e-3
    np.testing.assert_allclose(scores[5, 3], scores[2, 0], rtol=1e-10)


def test_gradients_of_a_rotation_are_the_slopes():
    buffers = Buffers()
    layer = Rotary(2, turns([slice(3, 10)], 1, 1e4, "float64", Buffers()))
    check(layer, normal(1, 7, 6), buffers)


DROPOUT = ScoreDropout(rate=0.3, site=7, draws=Draws(seed=3, step=2, first=5), first=1, heads=4)
either = pytest.mark.parametrize("keeps_scores", [True, False])


@either
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("T", [1, 5, 8, 27])
@pytest.mark.parametrize(("queries", "dropout"), [(1, NO_DROPOUT), (3, NO_DROPOUT), (3, DROPOUT)])
def test_gradients_of_attention_are_the_slopes_for_every_number_of_blocks(T, keeps_scores, queries, dropout):
    buffers = Buffers()
    given = {"keeps_scores": keeps_scores, "buffers": buffers, "dropout": dropout}
    check(Attention(2, queries, **given), normal(2, T, (queries + 2) * 6), buffers)


@either
def test_dropped_probabilities_are_left_out_and_the_others_enlarged(keeps_scores):
    B, T, H, D = 2, ROWS + 5, 2, 4
    q, k, v = normal(3, B, H, T, D)
    scores = q @ k.swapaxes(2, 3) / 2 + np.triu(np.full((T, T), -np.inf), 1)
    chances = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    left = [
        [philox.words(np.arange(T), np.arange(T)[:, None], 5 + b, (1 + h) << 16 | 7, (3, 2)) >= 0.3 * 2**32]
        for b in range(B)
        for h in range(H)
    ]
    expected = chances * np.reshape(left, (B, H, T, T)) / 0.7 @ v
    qkv = np.stack([q, k, v]).transpose(1, 3, 0, 2, 4).reshape(B, T, 3 * H * D)
    layer = Attention(H, keeps_scores=keeps_scores, buffers=Buffers(), dropout=DROPOUT)
    y, _ = layer.forward(qkv)
    np.testing.assert_allclose(y.reshape(B, T, H, D).swapaxes(1, 2), expected, rtol=1e-10, atol=1e-14)
    still = replace(DROPOUT, draws=Draws(paused=True))  # as in evaluation
    y, _ = Attention(H, keeps_scores=keeps_scores, buffers=Buffers(), dropout=still).forward(qkv)
    np.testing.assert_allclose(y.reshape(B, T, H, D).swapaxes(1, 2), chances @ v, rtol=1e-10, atol=1e-14)


@either
def test_queries_that_share_a_key_are_those_of_as_many_keys_alike(keeps_scores):
    B, T, K, G, D = 2, ROWS + 5, 2, 3, 4
    x = normal(B, T, G + 2, K, D)
    grouped, _ = Attention(K, G, keeps_scores=keeps_scores, buffers=Buffers()).forward(x.reshape(B, T, -1))
    many = np.stack(
        [x[:, :, :G].reshape(B, T, G * K, D), *(np.tile(x[:, :, -n], (1, 1, G, 1)) for n in (2, 1))], 2
    )
    alike, _ = Attention(G * K, keeps_scores=keeps_scores, buffers=Buffers()).forward(many.reshape(B, T, -1))
    by_query = grouped.reshape(B, T, K, G, D).swapaxes(2, 3)
    np.testing.assert_allclose(by_query.reshape(B, T, -1), alike, rtol=1e-12)


@pytest.mark.parametrize("T", [TILE - 1, 2 * TILE + ROWS + 3])
def test_attention_that_computes_scores_again_is_the_one_that_keeps_them(T):
    def found(keeps_scores):
        buffers = Buffers()
        layer = Attention(2, keeps_scores=keeps_scores, buffers=buffers)
        y, cache = layer.forward(hand(normal(2, T, 3 * 6), buffers))
        return y.copy(), layer.backward(hand(normal(2, T, 6), buffers), cache).copy()

    for again, kept in zip(found(keeps_scores=False), found(keeps_scores=True), strict=True):
        assert np.abs(again - kept).max() < 1e-12 * np.abs(kept).max()


@either
def test_attention_is_the_softmax_of_scaled_products_over_the_past(keeps_scores):
    B, T, H, D = 2, ROWS + 5, 3, 4
    qkv = normal(B, T, 3 * H * D)
    q, k, v = qkv.reshape(B, T, 3, H, D).transpose(2, 0, 3, 1, 4)
    scores = np.where(np.tri(T, dtype=bool), q @ k.swapaxes(-1, -2) / np.sqrt(D), -np.inf)
    e = np.exp(scores)
    expected = (e / e.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(B, T, H * D)
    buffers = Buffers()
    y, _ = Attention(H, keeps_scores=keeps_scores, buffers=buffers).forward(qkv)
    np.testing.assert_allclose(y, expected, rtol=1e-12)


@either
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("slope", [0, 1, -1])
def test_scores_too_large_for_exp_are_no_trouble(keeps_scores, slope):
    T, buffers = 30, Buffers()
    qkv = np.full((1, T, 3), 1e2, np.float32)
    qkv[0, :, 1] += 50 * slope * np.arange(T)  # of the keys: the highest score comes last, or first
    y, cache = Attention(1, keeps_scores=keeps_scores, buffers=buffers).forward(hand(qkv, buffers))
    np.testing.assert_allclose(y, np.full((1, T, 1), 1e2, np.float32), rtol=1e-6)
    dqkv = Attention(1, keeps_scores=keeps_scores, buffers=buffers).backward(hand(y, buffers), cache)
    assert np.isfinite(dqkv).all()


def test_gelu_is_right_far_from_zero_and_at_it():
    layer = BiasGelu(param(1), buffers=Buffers())
    Arena(layer.params, np.float32)
    x = layer.buffers.take((5, 1), np.float32)
    x[:, 0] = -100, -1, 0, 1, 100
    y, _ = layer.forward(x)
    np.testing.assert_allclose(y[:, 0], [0, -0.158808, 0, 0.841192, 100], atol=1e-6)


@pytest.mark.parametrize("tokens", [[[0, 3, 3], [3, 0, 1]], [[2, 2, 2], [2, 2, 2]]])
def test_an_embedding_adds_each_gradient_to_the_rows_of_its_token_and_position(tokens):
    buffers = Buffers()
    token, position = param(4, 2), param(5, 2, name="position")
    layer = Chain(
        Tokens(token, buffers=buffers), Positions(position, runs=[slice(0, 1), slice(1, 3)], buffers=buffers)
    )
    arena = Arena(layer.params, np.float64)
    arena.data[:] = normal(arena.data.size)
    x, dy = np.array(tokens, np.uint8), normal(2, 3, 2)
    y, cache = layer.forward(x)
    np.testing.assert_array_equal(y, token.data[x] + position.data[:3])
    expected = np.zeros((4, 2))
    np.add.at(expected, np.array(tokens), dy)
    x.fill(0)  # whoever owns the tokens may use their memory again
    arena.clear_grads()
    for times in (1, 2):
        mine = buffers.take(dy.shape, dy.dtype)
        mine[...] = dy
        if times == 2:
            _, cache = layer.forward(np.array(tokens))
        layer.backward(mine, cache)
        np.testing.assert_allclose(token.grad, times * expected, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(position.grad[:3], times * dy.sum(0), rtol=1e-13)
        np.testing.assert_array_equal(position.grad[3:], 0)


@pytest.mark.parametrize("first", [0, 2, 7])
def test_a_part_of_the_vocabulary_knows_its_own_tokens_and_nothing_of_others(first):
    buffers = Buffers()
    layer = Tokens(param(3, 2), first=first, buffers=buffers)
    arena = Arena(layer.params, np.float64)
    arena.data[:] = normal(arena.data.size)
    tokens, whole, expected = np.array([[0, 1, 4, 4], [5, 2, 3, 6]]), np.zeros((10, 2)), np.zeros((10, 2))
    whole[first : first + 3] = layer.table.data
    y, rows = layer.forward(tokens)
    np.testing.assert_array_equal(y, whole[tokens])
    np.add.at(expected, tokens, dy := normal(2, 4, 2))
    arena.clear_grads()
    layer.backward(hand(dy, buffers), rows)
    np.testing.assert_allclose(layer.table.grad, expected[first : first + 3], rtol=1e-13)
