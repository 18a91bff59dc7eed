import numpy as np
import pytest
from arena import Arena
from nn.differences import check, hand, param, randomize

from pscale.config import Model
from pscale.nn.buffers import Array, Buffers
from pscale.nn.common_layers import BiasGelu, Linear
from pscale.nn.experts import ExpertLinear, Mixture
from pscale.nn.layer import Chain
from pscale.nn.routing import ExpertPositions, Router, RouterStats, capacity

B, T, C = 3, 7, 6


def experts_of(count: int, buffers: Buffers) -> Chain:
    return Chain(
        ExpertLinear(param(count, C, 8), buffers=buffers),
        BiasGelu(param(count, 8), buffers=buffers),
        ExpertLinear(param(count, 8, C), param(count, C), buffers=buffers),
    )


def mixture(
    buffers: Buffers, count: int, top_k: int, places: int, *, loss_weight: float = 0.0, sequence: int = T
) -> Mixture:
    stats = RouterStats(block=0, loads=np.zeros(count, np.int64))
    router = Router(
        param(C, count),
        top_k=top_k,
        capacity=places,
        sequence=sequence,
        positions=ExpertPositions(sequence),
        loss_weight=loss_weight,
        stats=stats,
        buffers=buffers,
    )
    return Mixture(router, experts_of(count, buffers), buffers=buffers)


def tokens(*shape: int) -> Array:
    return np.random.default_rng(4).normal(size=shape)


def token_by_token(layer: Mixture, x: Array) -> tuple[Array, int]:
    """Return the output and how many choices are dropped, after the text of the rule."""
    up, bias, down, last = (one.data for one in layer.experts.params)
    y, dropped = np.zeros_like(x), 0
    for sequence in range(len(x)):
        seated = [0] * layer.router.experts
        for position, token in enumerate(x[sequence]):
            p = np.exp(token @ layer.router.weight.data)
            p /= p.sum()
            chosen = np.argsort(-p, kind="stable")[: layer.router.top_k]
            gates = p[chosen] / (p[chosen].sum() if len(chosen) > 1 else 1)
            for expert, gate in zip(chosen, gates, strict=True):
                seated[expert] += 1
                if seated[expert] > layer.router.capacity:
                    dropped += 1
                    continue
                h = token @ up[expert] + bias[expert]
                h = h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
                y[sequence, position] += gate * (h @ down[expert] + last[expert])
    return y, dropped


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("places", [1, 2, T])
def test_every_token_gets_what_the_rule_says(top_k, places):
    buffers = Buffers()
    layer = mixture(buffers, 4, top_k, places)
    randomize(Arena(layer.params, np.float64))
    x = tokens(B, T, C)
    y, _ = layer.forward(hand(x, buffers))
    expected, dropped = token_by_token(layer, x)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-14)
    assert layer.router.stats.dropped == dropped
    assert layer.router.stats.loads.sum() == B * T * top_k
    assert (dropped == 0) == (places == T)


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("places", [1, 3, T])
def test_gradients_of_a_mixture_are_the_slopes_with_and_without_dropping(top_k, places):
    buffers = Buffers()
    check(mixture(buffers, 4, top_k, places), tokens(B, T, C), buffers)


def test_one_expert_with_room_for_all_is_an_mlp_times_its_gate_which_is_one():
    buffers = Buffers()
    layer = mixture(buffers, 1, 1, T)
    arena = Arena(layer.params, np.float64)
    randomize(arena)
    weight, bias, back, last = (one.data[0] for one in layer.experts.params)
    mlp = Chain(
        Linear(param(C, 8), buffers=buffers),
        BiasGelu(param(8), buffers=buffers),
        Linear(param(8, C), param(C), buffers=buffers),
    )
    Arena(mlp.params, np.float64)
    for one, values in zip(mlp.params, (weight, bias, back, last), strict=True):
        one.data[...] = values
    x, dy = tokens(B, T, C), tokens(B, T, C)[::-1]
    results = []
    for tested in (layer, mlp):
        y, cache = tested.forward(hand(x, buffers))
        results.append((y.copy(), tested.backward(hand(dy, buffers), cache).copy()))
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14)


def test_the_auxiliary_loss_is_its_weight_a_sequence_where_all_experts_are_chosen_alike():
    buffers = Buffers()
    layer = mixture(buffers, 2, 1, T, loss_weight=0.25, sequence=8)
    randomize(Arena(layer.params, np.float64))
    layer.router.weight.data[:, 1] = -layer.router.weight.data[:, 0]
    x = np.concatenate([half := tokens(B, 4, C), -half], axis=1)  # as many like the one as the other
    layer.router.forward(x)
    assert layer.router.stats.loss == pytest.approx(0.25 * B, rel=1e-12)
    np.testing.assert_array_equal(layer.router.stats.loads, [B * 4, B * 4])


def test_the_auxiliary_loss_is_that_of_first_choices_dropped_or_not():
    buffers = Buffers()
    layer = mixture(buffers, 4, 2, 1, loss_weight=0.25)
    randomize(Arena(layer.params, np.float64))
    x = tokens(B, T, C)
    layer.router.forward(x)
    p = np.exp(x @ layer.router.weight.data)
    p /= p.sum(-1, keepdims=True)
    shares = np.stack([np.bincount(best, minlength=4) / T for best in p.argmax(-1)])
    expected = 0.25 * 4 * np.sum(shares * p.mean(1))
    assert layer.router.stats.loss == pytest.approx(expected, rel=1e-12)


def test_what_a_review_chooses_counts_as_if_the_router_had():
    layer = mixture(Buffers(), 4, 2, T, loss_weight=1.0)
    randomize(Arena(layer.params, np.float64))
    x, stats = tokens(B, T, C), layer.router.stats
    own = layer.router.forward(x)

    def swap(p: Array, chosen: Array) -> None:
        np.testing.assert_array_equal(p, own.probabilities)
        chosen[...] = chosen[:, ::-1].copy()

    stats.review = swap
    other = layer.router.forward(x)
    np.testing.assert_array_equal(other.chosen, own.chosen[:, ::-1])
    np.testing.assert_array_equal(other.gates, own.gates[:, ::-1])
    firsts = [np.bincount(part[:, 0], minlength=4) for part in other.chosen.reshape(B, T, 2)]
    np.testing.assert_allclose(other.pull, np.array(firsts) * 4 / T**2)
    stats.paused = True
    np.testing.assert_array_equal(layer.router.forward(x).chosen, own.chosen)


@pytest.mark.parametrize(
    ("top_k", "factor", "sequence", "experts", "expected"),
    [
        (1, 1.25, 256, 8, 40),
        (2, 1.25, 13, 4, 9),
        (1, 1.1, 10, 1, 10),
        (2, 8.0, 13, 4, 13),
        (1, 0.01, 9, 8, 1),
    ],
)
def test_the_capacity_is_a_share_of_the_choices_rounded_up_and_at_most_the_sequence(
    top_k, factor, sequence, experts, expected
):
    model = Model(kind="moe", top_k=top_k, capacity_factor=factor, sequence=sequence, experts=experts)
    assert capacity(model) == expected  # 1.1 x 10 is 11.000000000000002
