import numpy as np
import pytest
from nn.differences import slope

from pscale.nn.loss import LARGEST, SMALLEST, CrossEntropy, LossScale, MeanSquare

RANDOM = np.random.default_rng(2)
Y = RANDOM.normal(size=(2, 3, 5))


@pytest.mark.parametrize(
    ("kind", "targets"),
    [(CrossEntropy, RANDOM.integers(0, 5, (2, 3))), (MeanSquare, RANDOM.normal(size=Y.shape))],
)
def test_the_gradient_of_a_loss_is_its_slope(kind, targets):
    y, direction = Y.copy(), RANDOM.normal(size=Y.shape)
    _, dy = kind().forward(y.copy(), targets, 0.3)

    def value() -> float:
        return kind().forward(y.copy(), targets, 0.3)[0]

    assert np.vdot(dy, direction) == pytest.approx(slope(value, y, direction), rel=1e-7)


def test_equal_logits_cost_the_logarithm_of_their_number():
    loss, _ = CrossEntropy().forward(np.full((4, 6), 1e5, np.float32), np.arange(4), 1 / 4)
    assert loss == pytest.approx(np.log(6), rel=1e-6)


def test_logits_far_apart_neither_overflow_nor_lose_the_loss():
    loss, gradient = CrossEntropy().forward(np.array([[0, 1e4]], np.float32), np.array([0]), 1.0)
    assert loss == pytest.approx(1e4)
    np.testing.assert_array_equal(gradient, [[-1, 1]])


def test_a_square_is_averaged_over_the_outputs_of_a_token_and_summed_over_tokens():
    loss, _ = MeanSquare().forward(np.array([[1.0, 3], [5, 0]]), np.zeros((2, 2)), 10.0)
    assert loss == pytest.approx(10 * (10 / 2 + 25 / 2))


def scales(rule, overflows):
    found = []
    for overflowed in overflows:
        rule.update(overflowed=overflowed)
        found.append(rule.value)
    return found


def test_a_scale_grows_after_as_many_good_steps_in_a_row_and_backs_off_at_once():
    good, bad = False, True
    steps = [good, good, good, good, bad, good, good, bad, bad, good, good, good, good]
    expected = [8, 8, 16, 16, 8, 8, 8, 4, 2, 2, 2, 4, 4]
    assert scales(LossScale(8.0, interval=3), steps) == expected


def test_a_scale_stops_growing_before_its_inverse_vanishes_and_never_by_itself_shrinks():
    assert scales(LossScale(LARGEST / 2, interval=1), [False] * 3) == [LARGEST] * 3
    assert scales(LossScale(4 * LARGEST, interval=1), [False, True]) == [4 * LARGEST, 2 * LARGEST]


def test_a_scale_never_becomes_zero():
    assert scales(LossScale(2 * SMALLEST, interval=1), [True] * 3) == [SMALLEST] * 3


def test_a_scale_that_is_given_stays():
    assert scales(LossScale(1000.0), [False, True, True]) == [1000.0] * 3
