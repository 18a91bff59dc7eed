from dataclasses import replace

import numpy as np
import pytest
from synthetic import Point, write_run

from pscale.analysis.frames import load
from pscale.analysis.pairs import paired, signed_ranks
from pscale.analysis.stats import Sample
from pscale.analysis.variants import variants
from pscale.errors import UsageError

QUIET = {"launch_noise": 0.005, "noise": 0.005}


def case(random, drift, slower=1.0, between=0.01):
    """Return launches, one a round, of a machine whose speed drifts from round to round."""
    medians = slower * np.exp(drift + between * random.normal(size=len(drift)))
    return Sample(
        value=float(np.median(medians)),
        draws=None,
        launches=len(drift),
        steps=20,
        dropped=0,
        medians=tuple(medians.tolist()),
        repeats=tuple(range(len(drift))),
    )


def answers(rounds, slower, trials=100):
    random = np.random.default_rng(rounds)
    found = []
    for _ in range(trials):
        drift = 0.2 * random.normal(size=rounds)
        found.append(paired(case(random, drift), case(random, drift, slower=slower)))
    return found, [one.answer(one.p, one.detectable(1), 0.05) for one in found]


def test_p_values_are_the_share_of_signs_that_are_as_unlikely():
    values = np.array([0.3, -0.1, 0.5, 0.7, 0.2, 0.9, 1.1, -0.4])  # ranks 1 and 4 below: 10 sums are as small
    assert signed_ranks(values) == pytest.approx(2 * 10 / 256)
    tied = np.array([1.0, 1.0, -1.0, 2.0, 3.0, 0.0, 2.0])  # ranks 2, 2, -2, 4.5, 6, 4.5; the sums 0 and 2
    assert signed_ranks(tied) == pytest.approx(2 * 4 / 64)
    assert signed_ranks(np.zeros(4)) == 1.0


@pytest.mark.parametrize("rounds", [3, 6, 10])
def test_cases_that_do_not_differ_are_called_different_less_often_than_1_in_20(rounds):
    found, given = answers(rounds, 1.0, trials=200)
    assert sum(answer in ("slower", "faster") for answer in given) / 200 <= 0.065
    assert np.mean([one.ratio.low <= 1 <= one.ratio.high for one in found]) >= 0.935


def test_five_per_cent_are_found_in_ten_pairs_however_far_the_machine_drifts():
    found, given = answers(10, 1.05)
    assert given.count("slower") >= 95
    assert np.mean([one.ratio.value for one in found]) == pytest.approx(1.05, rel=0.003)
    assert {one.test for one in found} == {"signed ranks"}


def test_only_rounds_that_both_have_are_compared():
    random = np.random.default_rng(4)
    a, b = (case(random, np.zeros(5)) for _ in range(2))
    few = paired(a, replace(b, repeats=(3, 4, 5, 6, 7)))
    assert (few.launches, few.test) == ((2, 2), "paired t")
    assert few.ratio.value == pytest.approx(
        (b.medians[0] * b.medians[1] / a.medians[3] / a.medians[4]) ** 0.5
    )
    none = paired(a, replace(b, repeats=(4, 5, 6, 7, 8)))
    assert (none.p, none.ratio.low, none.answer(none.p, none.detectable(1), 0.05)) == (None, None, "unclear")


def test_variants_of_a_run_are_compared_with_its_first_series_size_by_size(tmp_path):
    points = [
        *(Point(ranks=ranks, **QUIET) for ranks in (1, 2)),
        *(Point(ranks=ranks, series="late", compute_s=0.105, **QUIET) for ranks in (1, 2, 4)),
        Point(ranks=2, series="failing", bad_repeats=range(10), reason="out of luck"),
    ]
    comparison = variants(load(write_run(tmp_path / "run", points, repeats=10)))
    assert [(one.label, one.answer, one.matched_by) for one in comparison.cases] == [
        ("late 1 ranks", "slower", "size"),
        ("late 2 ranks", "slower", "size"),
    ]
    assert {(one.label, one.run): one.reason for one in comparison.missing} == {
        ("late 4 ranks", "A"): "no case of its size in dp",
        ("failing 2 ranks", "B"): "failed: out of luck",
    }
    assert comparison.a.endswith("run: dp")
    assert any("as pairs" in note for note in comparison.notes)


def test_a_run_of_one_series_has_no_variants(tmp_path):
    with pytest.raises(UsageError, match="no variants to compare; name a second run"):
        variants(load(write_run(tmp_path / "run", [Point(ranks=1), Point(ranks=2)])))
