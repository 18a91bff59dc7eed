"""Programs of known truth: intervals contain it as often as they say, also where few digits are printed."""

import numpy as np
import pytest
from known_truth import about_zero, shares
from synthetic import Point, summary_of

from pscale.analysis.columns import row
from pscale.analysis.difference import difference
from pscale.analysis.expect import references
from pscale.analysis.stats import Estimate, Sample
from pscale.config import Workload
from pscale.config.workload import Figure

SEEDS, LAUNCHES, SCATTERS = 100, 10, (0.002, 0.01, 0.025)
TIMED = Workload(command="solver", step_time="t", figures={"t": Figure(regex="(.*)", unit="s")})


@pytest.mark.parametrize("digits", [0, 2])
@pytest.mark.figure
def test_intervals_contain_the_truth_and_equal_programs_are_not_called_different(digits):
    found = [shares(SEEDS, LAUNCHES, scatter, digits) for scatter in SCATTERS]
    mean = {name: np.mean([each[name] for each in found]) for name in found[0]}
    assert 0.92 <= mean["coverage"] <= 0.98
    assert mean["false alarms"] <= 0.05
    assert mean["5 % found"] >= (0.8 if digits else 0.95)  # of two digits the last may be 10 %


@pytest.mark.figure
def test_a_figure_about_zero_has_an_interval_and_equal_runs_meet_its_reference():
    covered, held = np.mean(
        [about_zero(np.random.default_rng(seed), LAUNCHES) for seed in range(200)], axis=0
    )
    assert 0.92 <= covered <= 0.98
    assert held >= 0.9
    assert Sample(medians=(-76.1, -76.2, -75.9)).estimate.stated == pytest.approx(
        (-76.446, -75.687), abs=1e-3
    )


def printed(value, count=5):
    return Sample(medians=(value,) * count, repeats=tuple(range(count)), resolution=0.01)


@pytest.mark.figure
def test_times_that_differ_by_their_last_digit_are_not_known_to_differ():
    found = difference(printed(0.01), printed(0.02))
    assert found.judge(found.p) == "undecided"
    assert (found.ratio.value, found.ratio.low < 1, found.ratio.high > 3.5) == (
        pytest.approx(2.0),
        True,
        True,
    )
    found = difference(
        printed(1.0, 9), printed(1.02, 9)
    )  # also where a rank test would see no scatter at all
    assert found.p < 0.05


def timed(ranks, value):
    row = {"step_s": value, "step_resolution_s": 0.01}
    return Point(ranks=ranks, scaling="strong", workload=TIMED, row=row)


@pytest.mark.figure
def test_an_efficiency_of_times_with_one_digit_is_undecided_and_a_warning_says_what_to_print(tmp_path):
    points = [timed(1, 0.02), timed(2, 0.01)]
    expect = [{"metric": "efficiency", "at_least": 0.8, "cases": [points[1].case.id]}]
    summary = summary_of(tmp_path / "run", points, expect=expect)
    (asked,) = summary.rows("expectations")
    assert (asked.answer, asked.to_decide) == ("undecided", "more digits in the program's output")
    assert asked.value.value == pytest.approx(1.0)
    assert asked.value.low < 0.52
    digits = [warning.text for warning in summary.rows("warnings") if warning.kind == "digits"]
    assert digits[0].startswith(
        "The program prints step times in units of 10 ms, so each is known to ±25.0% at best."
    )
    zero = row(
        "merits",
        case=points[1].case.id,
        figure="drift",
        value=Estimate(value=0.0),
        unit="",
        better="lower",
        launches=1,
    )
    assert "drift" not in {
        each.metric for each in references(summary.rows("cases"), [zero])
    }  # nothing is known of it
    assert "drift" in {each.metric for each in references(summary.rows("cases"), [zero._replace(launches=2)])}
