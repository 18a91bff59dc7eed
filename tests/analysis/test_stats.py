import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from pscale.analysis.stats import TRIMMED, Sample, level, ratio, sample, samples, student_quantile

pytestmark = pytest.mark.slow

TRIALS = 400
LEAST = 0.95 - 2.5 * (0.95 * 0.05 / TRIALS) ** 0.5  # of 95 %, as many standard errors of the trials less


def of(logs, repeats=None):
    count = len(logs)
    return Sample(medians=tuple(np.exp(logs).tolist()), repeats=tuple(repeats or range(count)))


def test_warm_up_is_counted_and_left_out_of_the_step_time():
    found = sample([np.array([9.0, 1.0, 1.0, 1.0, 1.0]), np.ones(5)])
    assert (found.value, found.dropped, found.steps, found.slowest) == (1.0, 1, 9, 1.0)


def test_no_step_after_the_warm_up_is_dropped_however_slow():
    found = sample([np.array([1.0, 1.01, 0.99, 7.0, 1.0, 1.02, 0.98, 1.0])])
    assert (found.dropped, found.steps, found.slowest) == (0, 8, 7.0)


def test_the_step_time_is_the_geometric_mean_of_few_launches_and_that_of_the_middle_of_many():
    launches = [np.array([1.0, 1.1, 1.05]), np.array([2.0, 2.1, 2.05]), np.array([9.0, 9.1, 9.05])]
    assert sample(launches).value == pytest.approx((1.05 * 2.05 * 9.05) ** (1 / 3))
    assert of(np.log([5, 1, 2, 3, 1e9, 4, 2])).value == pytest.approx((5 * 2 * 3 * 4 * 2) ** 0.2)


def test_students_quantile_is_right_for_fractions_of_a_degree():
    degrees = [1, 1.6, 2, 2.5, 4.7, 9, 9.9, 10, 25.5, 1000]
    assert [student_quantile(each) for each in degrees] == pytest.approx(t.ppf(0.975, degrees), rel=0.025)


def noise(random, kind, shape):
    """Return deviations of launches: normal, or with one in eight much slower, as beside other work."""
    plain = 0.01 * random.normal(size=shape)
    return plain + (random.random(shape) < 0.125) * random.exponential(0.2, shape) * (kind == "bursts")


@pytest.mark.parametrize("launches", [2, 3, 5, 6, 7, 10, 15])
def test_an_interval_of_a_step_time_holds_the_truth_95_times_in_100_from_however_few_launches(launches):
    random = np.random.default_rng(launches)
    known = [of(noise(random, "normal", launches)).estimate for _ in range(TRIALS)]
    assert LEAST <= np.mean([one.low <= 1 <= one.high for one in known]) <= 0.975


@pytest.mark.parametrize("kind", ["normal", "bursts"])
@pytest.mark.parametrize("rounds", [3, 4, 5, 6, 7, 10, 15])
@pytest.mark.parametrize("drift", [0.0, 0.1])
def test_an_interval_of_a_ratio_holds_the_truth_95_times_in_100_however_the_machine_drifts(
    rounds, drift, kind
):
    random = np.random.default_rng([rounds, int(10 * drift)])
    held, widths = [], []
    for _ in range(TRIALS):
        moods = drift * random.normal(size=rounds)
        base, case = (of(moods + noise(random, kind, rounds)) for _ in range(2))
        known = ratio(base, case, 0.9)
        held.append(known.low <= 0.9 <= known.high)
        widths.append(known.half_width)
    assert np.mean(held) >= LEAST
    if drift and rounds >= 5 and kind == "normal":
        assert np.median(widths) < drift / 4, "what the machine does cancels in pairs"
    if kind == "bursts" and rounds >= 10:
        assert np.median(widths) < 0.03, "single slow launches do not widen it"


def test_one_launch_has_a_step_time_and_no_interval():
    known = sample([np.random.default_rng(1).normal(10, 1, 50)]).estimate
    assert known.value == pytest.approx(10, rel=0.05)
    assert (known.low, known.high) == (None, None)


def test_times_of_zero_as_a_coarse_clock_reads_them_have_their_mean_and_its_interval_but_no_known_ratio():
    random = np.random.default_rng(3)
    readings = np.floor(random.random((TRIALS, TRIMMED - 1)) + 0.3)  # a time of 0.3 ticks
    values = [Sample(medians=tuple(row)).value for row in readings]
    assert np.mean(values) == pytest.approx(0.3, abs=0.02), "a median would say that it took no time"
    some = Sample(medians=(0.0, 0.0, 1.0))
    assert some.value == pytest.approx(1 / 3)
    assert some.estimate.low < 0 < some.estimate.high
    assert ratio(some, of([0.0, 0.1]), 2.0).low is None


def test_wild_launches_give_a_wide_interval_of_possible_times():
    known = of(np.log([0.4, 0.4, 1.2])).estimate
    assert 0 < known.low <= 0.4
    assert known.high > 1.2
    assert of([0.0, 500.0]).estimate.stated is None


def test_rounds_that_are_incomplete_make_launches_two_sets():
    random = np.random.default_rng(2)
    moods = random.normal(size=12)
    base, case = of(moods), of(moods + 0.01 * random.normal(size=12))
    assert ratio(case, base).half_width < 0.02
    most = of(np.log(case.medians[:6]), [0, 1, 2, 3, 4, 20])
    assert ratio(most, base).half_width < 0.05, "one launch without its partner is left out"
    few = of(np.log(case.medians[:6]), [0, 1, 2, 3, 20, 21])
    assert ratio(few, base).half_width > 0.2
    assert ratio(few, base).value == pytest.approx(few.value / base.value)


def test_a_ratio_of_two_sets_is_as_uncertain_as_both_of_its_parts():
    random = np.random.default_rng(1)
    noisy, exact = (level(logs) for logs in (0.1 * random.normal(size=5), np.zeros(5)))
    assert noisy.over(exact).estimate().half_width == pytest.approx(noisy.estimate().half_width, rel=1e-9)
    both = noisy.over(noisy)
    assert both.error == pytest.approx(2**0.5 * noisy.error)
    assert both.degrees == pytest.approx(2 * noisy.degrees)


def test_a_case_against_itself_is_one_without_doubt():
    noisy = of([0.1, 0.2, 0.4])
    known = ratio(noisy, noisy)
    assert (known.value, known.low, known.high) == (1.0, 1.0, 1.0)


def test_launches_of_a_case_do_not_depend_on_the_other_cases():
    rows = [
        {"case": case, "repeat": repeat, "step": step, "end_s": float(step**1.1 + 1 + repeat)}
        for case in ("a", "b")
        for repeat in range(3)
        for step in range(9)
    ]
    table = pd.DataFrame(rows)
    alone = samples(table[table["case"] == "b"])["b"]
    both = samples(table)["b"]
    assert (both.medians, both.repeats) == (alone.medians, (0, 1, 2))


@pytest.mark.parametrize("known_to", [0.55, 1.0, 2.0])  # over the scatter of launches
def test_launching_until_intervals_are_narrow_twice_leaves_them_right(known_to):
    random = np.random.default_rng(int(10 * known_to))
    held = []
    for _ in range(TRIALS):
        logs = 0.01 * random.normal(size=40)
        known = [level(logs[:count]).estimate() for count in range(5, 41)]
        narrow = [one.half_width <= 0.01 * known_to for one in known]
        last = next((at for at in range(1, len(known)) if narrow[at - 1] and narrow[at]), -1)
        held.append(known[last].low <= 1 <= known[last].high)
    assert 0.895 <= np.mean(held) <= 0.985  # 91.5 to 95 % in the long run
