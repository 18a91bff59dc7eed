import numpy as np
import pandas as pd
import pytest

from pscale.analysis.stats import estimate, ratio, sample, samples, step_times


def test_a_step_lasts_from_the_slowest_ranks_end_to_its_next():
    ends = {0: [0.10, 0.25, 0.30], 1: [0.12, 0.20, 0.40]}
    rows = [
        {"case": "a", "repeat": 0, "rank": rank, "step": step, "phase": phase, "end_s": end}
        for rank, times in ends.items()
        for step, end in enumerate(times)
        for phase in ("forward", "backward")
    ]
    assert step_times(pd.DataFrame(rows))["step_s"].tolist() == pytest.approx([0.12, 0.13, 0.15])


def test_warm_up_is_counted_and_left_out_of_the_step_time():
    found = sample([np.array([9.0, 1.0, 1.0, 1.0, 1.0]), np.ones(5)], [1])
    assert (found.value, found.dropped, found.steps, found.slowest) == (1.0, 1, 9, 1.0)


def test_no_step_after_the_warm_up_is_dropped_however_slow():
    found = sample([np.array([1.0, 1.01, 0.99, 7.0, 1.0, 1.02, 0.98, 1.0])], [1])
    assert (found.dropped, found.steps, found.slowest) == (0, 8, 7.0)


def test_the_step_time_is_the_median_over_launches_of_their_medians():
    launches = [np.array([1.0, 1.1, 1.05]), np.array([2.0, 2.1, 2.05]), np.array([9.0, 9.1, 9.05])]
    assert sample(launches, [1]).value == pytest.approx(2.05)


def test_wild_launches_give_a_wide_interval_of_possible_times():
    found = sample([np.full(9, 0.4), np.full(9, 0.4), np.full(9, 1.2)], [1])
    known = estimate(found.value, found.draws)
    assert 0 < known.low <= 0.4
    assert known.high > 1.2


@pytest.mark.parametrize("between", [0.0, 2.0])  # spread of launches over that of steps
@pytest.mark.parametrize("launches", [2, 3, 5, 10])
def test_an_interval_holds_the_truth_95_times_in_100_from_however_few_launches(launches, between):
    random = np.random.default_rng([launches, int(between)])
    held = 0
    for seed in range(150):
        logs = between * random.normal(size=(launches, 1)) + random.normal(size=(launches, 25))
        found = sample(list(100 * np.exp(0.01 * logs)), [seed])
        known = estimate(found.value, found.draws)
        held += known.low <= 100 <= known.high
    assert held / 150 >= 0.92  # of 95 %, two standard errors of 150 trials less


def test_one_launch_has_a_step_time_and_no_interval():
    found = sample([np.random.default_rng(1).normal(10, 1, 50)], [1])
    known = estimate(found.value, found.draws)
    assert found.value == pytest.approx(10, rel=0.05)
    assert (known.low, known.high) == (None, None)


def test_an_interval_narrows_with_more_launches_and_is_not_absurdly_wide():
    random = np.random.default_rng(5)
    series = [10 + random.normal() + random.normal(size=25) for _ in range(40)]
    few, many = sample(series[:10], [1]), sample(series, [1])
    known = estimate(many.value, many.draws)
    assert estimate(few.value, few.draws).half_width > 1.4 * known.half_width
    assert known.half_width * known.value == pytest.approx(1.96 * 1.25 / 40**0.5, rel=0.35)  # of a median


def test_a_ratio_is_as_uncertain_as_both_of_its_parts():
    random = np.random.default_rng(1)
    noisy = sample([4 + random.normal(size=40) for _ in range(5)], [1])
    exact = sample([np.full(40, 2.0) for _ in range(5)], [2])
    assert ratio(noisy, exact).half_width == pytest.approx(
        estimate(noisy.value, noisy.draws).half_width, rel=1e-9
    )
    both = ratio(noisy, sample([2 + random.normal(size=40) / 2 for _ in range(5)], [3]))
    assert both.half_width > 1.2 * ratio(noisy, exact).half_width


def test_a_case_against_itself_is_one_without_doubt():
    noisy = sample([np.array([1.0, 2.0, 3.0]), np.array([2.0, 3.0, 4.0])], [1])
    known = ratio(noisy, noisy)
    assert (known.value, known.low, known.high) == (1.0, 1.0, 1.0)


def test_the_draws_of_a_case_do_not_depend_on_the_other_cases():
    rows = [
        {"case": case, "repeat": repeat, "rank": 0, "step": step, "end_s": float(step**1.1 + 1 + repeat)}
        for case in ("a", "b")
        for repeat in range(3)
        for step in range(9)
    ]
    table = pd.DataFrame(rows)
    alone = samples(table[table["case"] == "b"], 7)["b"]
    assert np.array_equal(samples(table, 7)["b"].draws, alone.draws)
