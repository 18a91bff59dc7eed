"""Changes of a level among noise. Seeds are fixed: every outcome is exact."""

import numpy as np
import pytest

from pscale.analysis.segments import FEWEST, Series, changes, changes_at, noise


def series(random, *, runs=40, scatter=0.03, drift=0.0, launches=5, steps=()):
    """Draw runs about levels: `steps` are runs and logarithms by which the level changes with them."""
    machine = random.normal(size=runs)
    for run in range(1, runs):
        machine[run] = 0.5 * machine[run - 1] + np.sqrt(0.75) * machine[run]
    values = drift * machine[:, None] + scatter * random.normal(size=(runs, launches))
    for run, size in steps:
        values[run:] += size
    variance = float(values.var(axis=1, ddof=1).mean() / launches) if launches > 1 else 0.0
    return Series(values=values.mean(axis=1), variance=variance, degrees=np.full(runs, launches - 1))


NOISES = {
    "scatter": {},
    "drift": {"drift": 0.03, "scatter": 0.005},
    "both": {"drift": 0.013},
    "single launches": {"drift": 0.03, "launches": 1},
}


@pytest.mark.parametrize("name", NOISES)
def test_noise_and_drift_alone_are_no_change(name):
    found = [changes(series(np.random.default_rng(seed), **NOISES[name]), [10, 20, 30]) for seed in range(60)]
    assert sum(map(bool, found)) <= 2


def test_a_change_by_five_percent_is_found_at_its_run():
    hits = 0
    for seed in range(40):
        found = changes(series(np.random.default_rng(seed), scatter=0.02, steps=[(20, 0.0488)]))
        hits += [change.at for change in found] == [20]
    assert hits >= 36


def test_two_runs_are_enough_and_one_is_not():
    random = np.random.default_rng(3)
    known = series(random, scatter=0.01, steps=[(38, 0.05)])
    assert [change.at for change in changes(known)] == [38]
    assert changes(known.part(0, 39)) == []


def test_a_single_slow_run_is_no_change_wherever_it_is():
    for place in (0, 1, 17, 38, 39):
        known = series(np.random.default_rng(4), scatter=0.01)
        known.values[place] += 0.5
        assert changes(known) == []


def test_a_level_that_came_and_went_has_two_changes():
    known = series(np.random.default_rng(5), scatter=0.01, steps=[(15, 0.1), (20, -0.1)])
    assert [change.at for change in changes(known)] == [15, 20]


def test_a_marked_place_is_believed_sooner():
    plain = marked = 0
    for seed in range(40):
        known = series(np.random.default_rng(seed), steps=[(36, 0.035)])
        plain += [change.at for change in changes(known)] == [36]
        marked += [change.at for change in changes(known, [12, 36])] == [36]
    assert plain < marked


def test_marks_beside_each_other_are_judged_too():
    known = series(np.random.default_rng(7), scatter=0.01, steps=[(20, 0.1)])
    assert [change.at for change in changes_at(known, [*range(18, 23)])] == [20]
    assert [change.at for change in changes(known, [*range(18, 23)])] == [20]


def test_without_any_noise_every_change_is_exact():
    values = np.repeat([0.0, 0.02, -0.01, 0.0], 10)
    known = Series(values=values, variance=0.0, degrees=np.zeros(40, np.int64))
    found = changes(known)
    assert [change.at for change in found] == [10, 20, 30]
    assert max(change.p for change in found) <= 0.001


def test_few_runs_say_nothing():
    known = series(np.random.default_rng(6), runs=FEWEST - 1, scatter=0.001, steps=[(3, 0.5)])
    assert changes(known) == []


def test_what_drifts_is_distinguished_from_what_scatters():
    shares = {}
    for name in ("scatter", "drift"):
        known = [noise(series(np.random.default_rng(seed), **NOISES[name]), []) for seed in range(20)]
        shares[name] = np.mean([each.share for each in known])
    assert shares["scatter"] < 0.2
    assert shares["drift"] > 0.9
    drifting = noise(series(np.random.default_rng(1), **NOISES["drift"]), [])
    assert drifting.error(2) > drifting.error(1) / np.sqrt(2), "neighbours have much in common"


def test_a_slower_level_is_found_sooner_than_a_faster_one():
    found = {
        size: sum(
            bool(changes(series(np.random.default_rng(seed), steps=[(38, size)]))) for seed in range(40)
        )
        for size in (0.0488, -0.0488)
    }
    assert found[0.0488] >= 36
    assert found[-0.0488] <= 30
