"""A prediction of what was measured is what was measured; profiles are what they say."""

from pathlib import Path

import numpy as np
import pytest

from pscale.analysis.frames import load
from pscale.errors import UsageError
from pscale.predict.engine import predict
from pscale.predict.profile import Distribution, Profile, _pooled, _Sample, case_of
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
