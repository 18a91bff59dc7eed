"""Launches at the same pace of the machine: what is found, what is not explained away, what is refused."""

import numpy as np
import pytest
from synthetic import Point, write_run

from pscale.analysis.compare import compare
from pscale.analysis.difference import ALPHA, at_same_pace, difference, of_variants, paced, paired
from pscale.analysis.frames import load
from pscale.analysis.messages import compared, comparison_notes
from pscale.analysis.stats import Sample

pytestmark = pytest.mark.slow

TRIALS = 1000
STEPS = 20


def launches(random, count=10, *, slower=1.0, machine=0.0, own=0.01, lonely=0.0):
    """Return launches of a machine whose speed scatters by 5 % around `machine`.

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


def answers(method, seed, *, trials, **b):
    random = np.random.default_rng(seed)
    lonely = b.get("lonely", 0.0)
    pairs = [(launches(random, lonely=lonely), launches(random, **b)) for _ in range(trials)]
    found = [at_same_pace(method, *sides) for sides in pairs]
    return [one.judge(one.p, one.detectable_with(1), 0.05) for one in found]


@pytest.mark.parametrize(("method", "lonely"), [(difference, 0.0), (difference, 1 / 16), (paired, 0.0)])
def test_equal_launches_are_called_different_1_time_in_20(method, lonely):
    found = answers(method, 1, trials=TRIALS, lonely=lonely)
    share = sum(one in ("slower", "faster") for one in found) / TRIALS
    assert share <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / TRIALS) ** 0.5  # two standard errors of the trials


# Pairs are spoilt by either of two launches, and ten leave no room for some that are.
@pytest.mark.parametrize(("method", "lonely"), [(difference, 0.0), (difference, 1 / 16), (paired, 0.0)])
def test_five_per_cent_are_found_with_ten_launches_that_scatter_by_five(method, lonely):
    assert answers(method, 2, trials=100, slower=1.05, lonely=lonely).count("slower") >= 95


def test_a_slower_machine_is_no_slower_program_and_a_slower_program_no_slower_machine():
    random = np.random.default_rng(3)
    base = launches(random, 200)
    found = at_same_pace(difference, base, launches(random, 200, machine=0.1))
    assert found.ratio.value == pytest.approx(1, abs=0.01)
    assert found.pace_ratio == pytest.approx(np.exp(0.1), abs=0.02)
    found = at_same_pace(difference, base, launches(random, 200, slower=1.3))
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
        found = at_same_pace(difference, launches(random), launches(random, machine=machine))
        widths[machine] = found.ratio.high / found.ratio.low
    assert widths[0.3] - 1 > 1.5 * (widths[0.0] - 1)


def test_a_pace_that_follows_the_variant_in_every_round_is_the_variants_own():
    random = np.random.default_rng(5)
    a, b = launches(random), launches(random)
    assert not of_variants(a, b)
    slowed = tuple(pace + 0.2 for pace in a.paces)
    assert of_variants(a, launches_with(b, slowed))


def launches_with(one, paces):
    wobble = 1e-3 * np.arange(len(paces))
    return Sample(**{**vars(one), "paces": tuple((np.array(paces) + wobble).tolist())})


def run_of(folder, *, beside=True, **ranks):
    """Return a run of ten launches."""
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
    assert paced(launches(random, 7), launches(random, 7))
    assert not paced(launches(random, 6), launches(random, 20))
