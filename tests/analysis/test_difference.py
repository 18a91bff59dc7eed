from dataclasses import replace

import numpy as np
import pytest
from synthetic import Point, write_run

from pscale.analysis.contrasts import compare, variants
from pscale.analysis.difference import (
    ALPHA,
    at_same_pace,
    difference,
    holm,
    mann_whitney,
    of_variants,
    paced,
    paired,
)
from pscale.analysis.frames import load
from pscale.analysis.messages import compared, comparison_notes
from pscale.analysis.stats import Sample, sample
from pscale.config import Plan
from pscale.errors import UsageError

pytestmark = pytest.mark.slow

STEPS = 20
QUIET = {"launch_noise": 0.005, "noise": 0.005}


def launches(random, count, *, slower=1.0, between=0.01):
    logs = between * random.normal(size=(count, 1)) + 0.02 * random.normal(size=(count, STEPS))
    return list(slower * np.exp(logs))


def judge(random, a, b, *, slower=1.0, between=0.01):
    sides = launches(random, a, between=between), launches(random, b, between=between, slower=slower)
    one = difference(*map(sample, sides))
    return one, one.judge(one.p)


def of(*times):
    return Sample(medians=times, repeats=tuple(range(len(times))))


def test_p_values_of_two_sets_are_those_of_welch_and_two_sided():
    fast, slow = of(*np.exp([10.1, 10.3, 9.8, 10.0])), of(*np.exp([10.6, 10.9, 10.2]))
    assert difference(fast, slow).p == difference(slow, fast).p == pytest.approx(0.10673095, rel=1e-5)


def test_p_values_of_ranks_are_two_sided():
    tied = np.array([1, 2, 3, 4, 5, 6, 7.5, 8]), np.array([3, 5, 6, 7, 9, 10, 11, 12, 13.0])
    assert mann_whitney(*tied) == pytest.approx(0.03393416, rel=1e-6)


def test_p_values_and_intervals_agree():
    random = np.random.default_rng(1)
    for method, counts in ((difference, (2, 3, 6)), (paired, (5, 6, 7, 11))):
        for count in counts:
            found = [
                method(of(*random.normal(10, 1, count)), of(*random.normal(11, 1, count))) for _ in range(40)
            ]
            believed = [one.p < 0.05 for one in found]
            assert believed == [not one.ratio.low <= 1 <= one.ratio.high for one in found]
            assert any(believed)


def test_equal_launches_are_no_evidence_and_distinct_constant_ones_are_certain():
    same, other = of(*[2.0] * 8), of(*[3.0] * 8)
    for method in (difference, paired):
        assert method(same, same).p == 1.0
        assert method(same, other).p < 0.001


def test_p_values_are_corrected_for_their_number_as_holm_does():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(("a", "b"), [(3, 3), (4, 9), (10, 10)])
def test_equal_sets_are_called_different_less_often_than_1_in_20(a, b):
    random = np.random.default_rng([a, b])
    answers = [judge(random, a, b)[1] for _ in range(400)]
    assert sum(answer in ("slower", "faster") for answer in answers) / 400 <= 0.072  # 2 standard errors more


@pytest.mark.parametrize(("slower", "answer"), [(1.05, "slower"), (1 / 1.05, "faster")])
def test_five_per_cent_are_found_with_ten_launches_that_scatter_by_half_of_that(slower, answer):
    random = np.random.default_rng(8)
    found = [judge(random, 10, 10, slower=slower, between=0.024) for _ in range(100)]
    assert sum(given == answer for _, given in found) >= 0.95 * 100
    assert np.mean([one.ratio.value for one, _ in found]) == pytest.approx(slower, rel=0.005)
    # Of two normal distributions that are 1.4 of their joint deviations apart.
    assert np.mean([one.effect for one, _ in found]) == pytest.approx(np.sign(slower - 1) * 0.84, abs=0.04)


def test_a_difference_called_detectable_is_detected_most_of_the_time():
    random = np.random.default_rng(9)
    size = np.median([judge(random, 10, 10)[0].detectable_with(1) for _ in range(30)])
    answers = [judge(random, 10, 10, slower=1 + size)[1] for _ in range(100)]
    assert answers.count("slower") / 100 >= 0.7


def test_no_difference_and_undecided_are_two_answers():
    random = np.random.default_rng(3)
    assert judge(random, 10, 10)[1] == "equal"
    assert judge(random, 3, 3, between=0.2)[1] == "undecided"
    one, answer = judge(random, 1, 10, slower=2.0)
    assert (answer, one.p, one.effect, one.detectable_with(1)) == ("undecided", None, None, None)


def test_the_more_is_tested_the_larger_a_difference_has_to_be():
    one, _ = judge(np.random.default_rng(3), 10, 10)
    assert one.detectable_with(20) > 1.2 * one.detectable_with(1)


def case(random, drift, slower=1.0, between=0.01):
    """Return launches, one a round, of a machine whose speed drifts from round to round."""
    medians = slower * np.exp(drift + between * random.normal(size=len(drift)))
    return Sample(
        medians=tuple(medians.tolist()),
        repeats=tuple(range(len(drift))),
    )


def answers(rounds, slower, trials=100):
    random = np.random.default_rng(rounds)
    found = []
    for _ in range(trials):
        drift = 0.2 * random.normal(size=rounds)
        found.append(paired(case(random, drift), case(random, drift, slower=slower)))
    return found, [one.judge(one.p) for one in found]


@pytest.mark.parametrize("rounds", [3, 6, 10])
def test_cases_that_do_not_differ_are_called_different_less_often_than_1_in_20(rounds):
    found, given = answers(rounds, 1.0, trials=200)
    assert sum(answer in ("slower", "faster") for answer in given) / 200 <= 0.065
    assert np.mean([one.ratio.low <= 1 <= one.ratio.high for one in found]) >= 0.935


def test_five_per_cent_are_found_in_ten_pairs_however_far_the_machine_drifts():
    found, given = answers(10, 1.05)
    assert given.count("slower") >= 95
    assert np.mean([one.ratio.value for one in found]) == pytest.approx(1.05, rel=0.003)
    assert {one.test for one in found} == {"Yuen, pairs"}


def test_rounds_that_lack_a_launch_are_left_out_and_where_many_do_launches_are_two_sets():
    random = np.random.default_rng(4)
    a, b = (case(random, np.zeros(8)) for _ in range(2))
    most = paired(a, replace(b, repeats=(*range(2, 8), 8, 9)))
    assert (most.a_launches, most.b_launches, most.test) == (6, 6, "paired t")
    logs = np.log(np.array(b.medians[:6]) / np.array(a.medians[2:]))
    assert most.ratio.value == pytest.approx(np.exp(logs.mean()))
    few = paired(a, replace(b, repeats=range(4, 12)))
    assert (few.test, few.a_launches, few.ratio) == ("Mann-Whitney", 8, difference(a, b).ratio)
    one = paired(a, replace(b, medians=b.medians[:1], repeats=(0,)))
    assert (one.p, one.ratio.low, one.judge(one.p)) == (None, None, "undecided")


def test_variants_of_a_run_are_compared_with_the_first_of_their_size(tmp_path):
    points = [
        *(Point(ranks=ranks, **QUIET) for ranks in (1, 2)),
        *(Point(ranks=ranks, series="late", compute_s=0.105, **QUIET) for ranks in (1, 2, 4)),
        Point(ranks=2, series="failing", bad_repeats=range(10), reason="out of luck"),
    ]
    comparison = variants(load(write_run(tmp_path / "run", points, repeats=10)))
    assert [(one.label, one.answer, one.matched_by) for one in comparison.compared] == [
        ("late 1 ranks", "slower", "size"),
        ("late 2 ranks", "slower", "size"),
    ]
    assert {(one.label, one.run): one.reason for one in comparison.missing} == {
        ("late 4 ranks", "A"): "no other case of its ranks, threads and work",
        ("failing 2 ranks", "B"): "failed: out of luck",
    }
    assert comparison.a.endswith("run: dp")
    assert any("compared in pairs" in note for note in comparison_notes(comparison))


def test_variants_at_several_sizes_of_work_are_compared_at_the_same_work(tmp_path):
    def points(series, batches, compute_s):
        return [
            Point(
                ranks=2,
                series=f"{series} · batch {batch}",
                plan=Plan(**{series[:2]: 2}),
                label=f"{series} · batch {batch}",
                train={"batch": batch},
                row={"batch": batch, "tokens": batch * 256},
                compute_s=compute_s * batch,
                **QUIET,
            )
            for batch in batches
        ]

    cases = [*points("tp 2", (2, 4, 8), 0.01), *points("dp 2", (8, 4, 16), 0.012)]
    comparison = variants(load(write_run(tmp_path / "run", cases, repeats=10)))
    assert [(one.label, one.answer) for one in comparison.compared] == [
        ("dp 2 · batch 8", "slower"),
        ("dp 2 · batch 4", "slower"),
    ]
    assert [one.ratio.value for one in comparison.compared] == pytest.approx([1.2, 1.2], rel=0.03)
    assert [missing.label for missing in comparison.missing] == ["tp 2 · batch 2", "dp 2 · batch 16"]
    assert (comparison.a, comparison.b) == ("synthetic/run: tp 2", "synthetic/run: dp 2")


def test_a_run_of_one_series_has_no_variants(tmp_path):
    with pytest.raises(UsageError, match="no variants to compare; name a second run"):
        variants(load(write_run(tmp_path / "run", [Point(ranks=1), Point(ranks=2)])))


# Launches at the same pace of the machine: what is found, what is not explained away, what is refused


TRIALS = 1000


def paced_launches(random, count=10, *, slower=1.0, machine=0.0, own=0.01, lonely=0.0):
    """Return paced_launches of a machine whose speed scatters by 5 % around `machine`.

    Each scatters by `own` beside that; a share `lonely` of them takes twice as long for reasons of its own.
    """
    paces = machine + 0.05 * random.normal(size=count)
    levels = paces + own * random.normal(size=count) + np.log(2) * (random.random(count) < lonely)
    times = tuple((slower * np.exp(levels)).tolist())
    return Sample(
        medians=times,
        repeats=tuple(range(count)),
        levels=tuple(np.log(times).tolist()),
        paces=tuple((paces + own / 2 * random.normal(size=count)).tolist()),
    )


def paced_answers(method, seed, *, trials, **b):
    random = np.random.default_rng(seed)
    lonely = b.get("lonely", 0.0)
    pairs = [(paced_launches(random, lonely=lonely), paced_launches(random, **b)) for _ in range(trials)]
    found = [at_same_pace(method, *sides) for sides in pairs]
    return [one.judge(one.p) for one in found]


@pytest.mark.parametrize(("method", "lonely"), [(difference, 0.0), (difference, 1 / 16), (paired, 0.0)])
def test_equal_launches_are_called_different_1_time_in_20(method, lonely):
    found = paced_answers(method, 1, trials=TRIALS, lonely=lonely)
    share = sum(one in ("slower", "faster") for one in found) / TRIALS
    assert share <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / TRIALS) ** 0.5  # two standard errors of the trials


# Pairs are spoilt by either of two paced_launches, and ten leave no room for some that are.
@pytest.mark.parametrize(("method", "lonely"), [(difference, 0.0), (difference, 1 / 16), (paired, 0.0)])
def test_five_per_cent_are_found_with_ten_launches_that_scatter_by_five(method, lonely):
    assert paced_answers(method, 2, trials=100, slower=1.05, lonely=lonely).count("slower") >= 95


def test_a_slower_machine_is_no_slower_program_and_a_slower_program_no_slower_machine():
    random = np.random.default_rng(3)
    base = paced_launches(random, 200)
    found = at_same_pace(difference, base, paced_launches(random, 200, machine=0.1))
    assert found.ratio.value == pytest.approx(1, abs=0.01)
    assert found.pace_ratio == pytest.approx(np.exp(0.1), abs=0.02)
    found = at_same_pace(difference, base, paced_launches(random, 200, slower=1.3))
    assert found.ratio.value == pytest.approx(1.3, abs=0.01)
    assert found.pace_slope == pytest.approx(1, abs=0.05)
    assert (found.scatter, found.scatter_at_pace) == (
        pytest.approx(0.05, abs=0.01),
        pytest.approx(0.011, abs=0.002),
    )


def test_sides_whose_pace_is_far_apart_are_known_less_well():
    random = np.random.default_rng(4)
    widths = {}
    for machine in (0.0, 0.3):
        found = at_same_pace(difference, paced_launches(random), paced_launches(random, machine=machine))
        widths[machine] = found.ratio.high / found.ratio.low
    assert widths[0.3] - 1 > 1.5 * (widths[0.0] - 1)


def test_a_pace_that_follows_the_variant_in_every_round_is_the_variants_own():
    random = np.random.default_rng(5)
    a, b = paced_launches(random), paced_launches(random)
    assert not of_variants(a, b)
    slowed = tuple(pace + 0.2 for pace in a.paces)
    assert of_variants(a, launches_with(b, slowed))


def launches_with(one, paces):
    wobble = 1e-3 * np.arange(len(paces))
    return Sample(**{**vars(one), "paces": tuple((np.array(paces) + wobble).tolist())})


def run_of(folder, *, beside=True, **ranks):
    """Return a run of ten paced_launches."""
    row = {"work_quantum_s": [0.01] * STEPS} if beside else {}
    point = Point(ranks=2, launch_noise=0.02, noise=0.002, row=row, rank_row=ranks)
    return load(write_run(folder, [point], repeats=10, seed=len(folder.name)))


def test_the_pace_is_used_where_both_runs_have_it_and_compute_with_the_same_means(tmp_path):
    a, b = run_of(tmp_path / "a"), run_of(tmp_path / "bb")
    (one,) = compare(a, b).compared
    assert one.scatter is not None
    assert one.scatter_at_pace == pytest.approx(one.scatter)
    assert "corrected for the machine's pace" in compared(one, 0.05)
    for name, means, words in (
        ("ccc", {"blas": "mkl"}, "BLAS"),
        ("dddd", {"cpus": "3"}, "pinning"),
        ("eeeee", {"kernels": "numpy"}, "kernels"),
        ("ffffff", {"threads": 7}, "threads"),
    ):
        found = compare(a, run_of(tmp_path / name, **means))
        assert found.compared[0].scatter is None
        assert any(
            "of the machine was not used" in note and f"({words})" in note for note in comparison_notes(found)
        )


def test_runs_without_a_pace_are_compared_as_they_are_and_told_of_it(tmp_path):
    a, b = run_of(tmp_path / "a"), run_of(tmp_path / "bb", beside=False)
    found = compare(a, b, relevant=0.001)
    assert found.compared[0].scatter is None
    assert "timing.pace" in compared(found.compared[0], 0.001)
    assert not any("not used" in note for note in comparison_notes(found))


def test_few_launches_have_no_slope():
    random = np.random.default_rng(6)
    assert paced(paced_launches(random, 7), paced_launches(random, 7))
    assert not paced(paced_launches(random, 6), paced_launches(random, 20))
