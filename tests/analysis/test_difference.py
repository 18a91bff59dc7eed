import numpy as np
import pytest

from pscale.analysis.difference import difference, holm, mann_whitney, student_tails, welch
from pscale.analysis.stats import sample

STEPS = 20


def launches(random, count, *, slower=1.0, between=0.01):
    logs = between * random.normal(size=(count, 1)) + 0.02 * random.normal(size=(count, STEPS))
    return list(slower * np.exp(logs))


def compared(random, a, b, *, slower=1.0, between=0.01):
    sides = launches(random, a, between=between), launches(random, b, between=between, slower=slower)
    one = difference(
        *(sample(side, [seed]) for side, seed in zip(sides, random.integers(0, 2**31, 2), strict=True))
    )
    return one, one.answer(one.p, one.detectable(1), 0.05)


@pytest.mark.parametrize(
    ("score", "degrees", "tails"),
    [(2.3, 7.4, 0.05302914), (1, 1, 0.5), (0.2, 100, 0.84188674), (30, 4.5, 2.34397e-06), (0, 3, 1)],
)
def test_tails_of_student_are_those_of_the_tables(score, degrees, tails):
    assert student_tails(score, degrees) == pytest.approx(tails, rel=1e-4)


def test_p_values_are_those_that_scipy_gives():
    fast, slow = np.array([10.1, 10.3, 9.8, 10.0]), np.array([10.6, 10.9, 10.2])
    assert welch(fast, slow) == welch(slow, fast) == pytest.approx(0.10673095, rel=1e-5)
    tied = np.array([1, 2, 3, 4, 5, 6, 7.5, 8]), np.array([3, 5, 6, 7, 9, 10, 11, 12, 13.0])
    assert mann_whitney(*tied) == pytest.approx(0.03393416, rel=1e-6)


def test_equal_launches_are_no_evidence_and_distinct_constant_ones_are_certain():
    same = np.full(8, 2.0)
    assert mann_whitney(same, same) == welch(same, same) == 1.0
    assert welch(same, same + 1) == 0.0


def test_p_values_are_corrected_for_their_number_as_holm_does():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(("a", "b"), [(3, 3), (4, 9), (10, 10)])
def test_equal_sets_are_called_different_less_often_than_1_in_20(a, b):
    random = np.random.default_rng([a, b])
    answers = [compared(random, a, b)[1] for _ in range(150)]
    assert sum(answer in ("slower", "faster") for answer in answers) / 150 <= 0.05


@pytest.mark.parametrize(("slower", "answer"), [(1.05, "slower"), (1 / 1.05, "faster")])
def test_five_per_cent_are_found_with_ten_launches_that_scatter_by_half_of_that(slower, answer):
    random = np.random.default_rng(8)
    found = [compared(random, 10, 10, slower=slower, between=0.024) for _ in range(60)]
    assert sum(given == answer for _, given in found) >= 0.95 * 60
    assert np.mean([one.ratio.value for one, _ in found]) == pytest.approx(slower, rel=0.005)
    # Of two normal distributions that are 1.4 of their joint deviations apart.
    assert np.mean([one.effect for one, _ in found]) == pytest.approx(np.sign(slower - 1) * 0.84, abs=0.03)


def test_a_difference_called_detectable_is_detected_most_of_the_time():
    random = np.random.default_rng(9)
    size = np.median([compared(random, 10, 10)[0].detectable(1) for _ in range(30)])
    answers = [compared(random, 10, 10, slower=1 + size)[1] for _ in range(100)]
    assert answers.count("slower") / 100 >= 0.7


def test_no_difference_and_too_noisy_to_tell_are_two_answers():
    random = np.random.default_rng(3)
    assert compared(random, 10, 10)[1] == "same"
    assert compared(random, 3, 3, between=0.2)[1] == "unclear"
    one, answer = compared(random, 1, 10, slower=2.0)
    assert (answer, one.p, one.effect, one.detectable(1)) == ("unclear", None, None, None)


def test_the_more_is_tested_the_larger_a_difference_has_to_be():
    one, _ = compared(np.random.default_rng(3), 10, 10)
    assert one.detectable(20) > 1.2 * one.detectable(1)
