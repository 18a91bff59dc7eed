import numpy as np
import pytest

from pscale.runs.step_time import steady, step_time, step_times


def noise(count, seed=1):
    return 1 + 0.01 * np.random.default_rng(seed).normal(size=count)


def test_a_step_lasts_from_the_slowest_ranks_end_to_its_next():
    ends = np.max([[0.10, 0.25, 0.30], [0.12, 0.20, 0.40]], axis=0)
    assert step_times(ends) == pytest.approx([0.12, 0.13, 0.15])


def test_the_step_time_of_a_launch_is_the_median_of_its_steady_steps():
    assert step_time(np.concatenate([[3.0, 2.0, 1.5], noise(41)])) == np.median(noise(41))


def test_slow_first_steps_are_warm_up():
    assert steady(np.concatenate([[3.0, 2.0, 1.5], noise(40)])).start == 3


def test_a_warm_up_no_slower_than_single_steps_is_found_where_it_lasts():
    series = np.concatenate([0.02 + noise(30), noise(70, seed=2)])
    assert steady(series).start == pytest.approx(30, abs=3)


def test_first_steps_may_also_be_too_fast():
    assert steady(np.concatenate([np.full(10, 0.9), noise(60)])).start == 10


def test_slow_steps_in_the_middle_are_no_warm_up():
    series = noise(60)
    series[[7, 20, 29, 45]] = 5.0
    assert steady(series).start == 0


@pytest.mark.parametrize("count", [24, 200, 5000])
def test_of_a_steady_series_next_to_nothing_is_left_out(count):
    parts = [steady(noise(count, seed)) for seed in range(200)]
    assert np.mean([part.start for part in parts]) < 0.025 * count
    assert np.mean([part.reached for part in parts]) >= 0.98


def test_a_series_that_is_still_changing_is_cut_in_half_and_said_not_to_be_steady():
    part = steady(np.linspace(2.0, 1.0, 60) + 0.01 * noise(60))
    assert (part.start, part.reached) == (30, False)


def test_the_shortest_series_and_equal_steps_are_steady():
    for series in ([1.0], [1.0, 1.0], [2.0] * 50):
        assert steady(np.array(series)).start == 0
        assert steady(np.array(series)).reached


@pytest.mark.parametrize(("before", "after"), [(9.0, 1.0), (1.0, 1.2)])
def test_a_change_late_in_the_series_is_no_warm_up_but_reported(before, after):
    part = steady(np.concatenate([before * noise(45), after * noise(15, seed=2)]))
    assert (part.start, part.reached) == (0, False)
