import math

import numpy as np
import pytest

from pscale.config import Train
from pscale.nn.kernels import tile
from pscale.nn.optim import decay_spans, make_optimizer
from pscale.nn.param import Arena, Param, constant

LRS, SCALES = (0.1, 0.02, 0.05), (1.0, 0.25, 0.5)
RANDOM = np.random.default_rng(3)
START = RANDOM.normal(size=26)
GRADS = RANDOM.normal(size=(3, 26))
DECAYED = [False] * 5 + [True] * 12 + [False] * 9


def arena(dtype: str = "float64") -> Arena:
    def param(size: int, *, decay: bool) -> Param:
        return Param("any", (size,), layer=0, draw=constant(0.0), decay=decay)

    made = Arena(
        [param(5, decay=False), param(8, decay=True), param(4, decay=True), param(9, decay=False)], dtype
    )
    made.data[:] = START
    return made


def trained(train: Train) -> Arena:
    made = arena()
    optimizer = make_optimizer(train, made)
    for lr, scale, grad in zip(LRS, SCALES, GRADS, strict=True):
        made.grad[:] = grad
        optimizer.update(lr, scale)
        np.testing.assert_array_equal(made.grad, grad)
    return made


def adamw_of_one_weight(weight: float, grads: list[float], train: Train, *, decay: bool) -> float:
    """Follow the algorithm as published, Loshchilov and Hutter (2019), algorithm 2."""
    m = v = 0.0
    for step, (lr, scale, grad) in enumerate(zip(LRS, SCALES, grads, strict=True), start=1):
        g = grad * scale
        m = train.beta1 * m + (1 - train.beta1) * g
        v = train.beta2 * v + (1 - train.beta2) * g * g
        corrected_m, corrected_v = m / (1 - train.beta1**step), v / (1 - train.beta2**step)
        decayed = train.weight_decay * weight if decay else 0.0
        weight -= lr * (corrected_m / (math.sqrt(corrected_v) + train.epsilon) + decayed)
    return weight


def test_adamw_follows_the_published_algorithm_one_weight_at_a_time(monkeypatch):
    monkeypatch.setattr(tile, "CHUNK", 5)
    train = Train(optimizer="adamw", beta1=0.8, beta2=0.9, epsilon=1e-2, weight_decay=0.3)
    expected = [
        adamw_of_one_weight(START[i], GRADS[:, i].tolist(), train, decay=DECAYED[i])
        for i in range(START.size)
    ]
    np.testing.assert_allclose(trained(train).data, expected, rtol=1e-13)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_moves_against_the_velocity(momentum, monkeypatch):
    monkeypatch.setattr(tile, "CHUNK", 5)
    weight, velocity = START.copy(), np.zeros_like(START)
    for lr, scale, grad in zip(LRS, SCALES, GRADS, strict=True):
        velocity = momentum * velocity + scale * grad
        weight = weight - lr * velocity
    result = trained(Train(optimizer="sgd", momentum=momentum, weight_decay=0.3))
    np.testing.assert_allclose(result.data, weight, rtol=1e-13)


def test_neighbours_that_decay_alike_are_one_span():
    spans = [(span.start, span.stop, span.decay) for span in decay_spans(arena().params)]
    assert spans == [(0, 5, False), (5, 17, True), (17, 26, False)]
