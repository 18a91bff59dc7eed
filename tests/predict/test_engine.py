"""A prediction of what was measured is what was measured; profiles are what they say."""

import math
from pathlib import Path

import numpy as np
import pytest

from pscale.analysis.frames import load
from pscale.errors import UsageError
from pscale.predict.costs import _Calls
from pscale.predict.engine import predict
from pscale.predict.profile import CallKey, CallTimes, Distribution, Profile, _pooled, _Sample, case_of
from pscale.results.step_time import step_time, step_times

GALLERY = Path(__file__).parents[2] / "reports" / "gallery"


@pytest.fixture(scope="module", params=["pipeline", "communication"])
def run(request):
    return load(GALLERY / request.param)


def test_what_was_recorded_is_predicted_again(run):
    profile = Profile.of_run(run)
    for pace in profile.paces:
        ends = run.ends[(run.ends["case"] == pace.case) & (run.ends["repeat"] == pace.repeat)]
        measured = step_time(step_times(ends.sort_values("step")["end_s"].to_numpy()))
        found = predict(case_of(run, pace.case), profile, draws=400)
        assert found.step_s.value == pytest.approx(measured, rel=0.03)
        assert found.step_s.low < measured < found.step_s.high
        assert sum(found.losses.values()) == pytest.approx(found.step_s.value)
        assert found.notes == ()


def test_a_profile_that_was_written_predicts_what_it_did_before(run):
    profile = Profile.of_run(run)
    again = Profile.from_dict(profile.to_dict())
    assert again.hash == profile.hash
    case = case_of(run, profile.paces[0].case)
    assert predict(case, again, draws=8).draws == pytest.approx(predict(case, profile, draws=8).draws)


def test_a_run_without_events_says_how_to_get_them():
    untraced = load(GALLERY / "weak")
    with pytest.raises(UsageError, match=r"weak/data.*--set trace=true"):
        Profile.of_run(untraced)


def test_what_keeps_its_time_while_the_pace_changes_keeps_its_mean():
    paces = np.random.default_rng(1).lognormal(sigma=1.0, size=400)
    found = _pooled([_Sample(np.full(200, 3.0), part) for part in (paces[:200], paces[200:])])
    assert found.mean * paces.mean() == pytest.approx(3.0)


def test_a_distribution_keeps_the_mean_and_the_order():
    sample = np.random.default_rng(1).exponential(size=999)
    for count in (1, 2, 63, 64, 65, 999):
        found = Distribution.of(sample[:count])
        assert found.mean == pytest.approx(sample[:count].mean())
        assert (np.diff(found.values) >= -1e-12).all()


def taken(known, key):
    """Return how long a call takes, by others: `known` is how long by verb, mode, ranks and bytes."""
    measured = {
        CallKey(*one): CallTimes(last=Distribution.of(np.array([time_s])), late=None, together=0.0)
        for one, time_s in known.items()
    }
    nearest, factor = _Calls(measured).nearest(CallKey(*key))
    return nearest.after_last.mean * factor


@pytest.mark.parametrize("times", [lambda size: 2 * (size - 1) / size, lambda size: 2 * math.log2(size)])
def test_bytes_of_a_call_on_more_ranks_grow_as_they_did_on_those_measured(times):
    def takes_s(size, count):
        return 1e-3 * math.log2(size) + 1e-7 * times(size) * count

    known = {
        ("all_reduce", "call", size, each): takes_s(size, each) for size in (4, 8) for each in (8, 65536)
    }
    assert taken(known, ("all_reduce", "call", 32, 65536)) == pytest.approx(takes_s(32, 65536))


def test_a_call_is_taken_from_one_that_moves_as_many_bytes_and_from_none_that_was_over_before_its_wait():
    parts = {("all_gather", "wait", size, 81920 // size): 2e-3 * math.log2(size) for size in (2, 4, 8)}
    hidden = {("all_gather", "wait", size, 36864 // size): 0.0 for size in (2, 4, 8)}
    assert taken(parts | hidden, ("all_gather", "wait", 16, 81920 // 16)) == pytest.approx(8e-3)
