"""What cannot become cheaper does not, over grids of sizes from one traced run, whatever luck draws have."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from pscale.analysis.frames import load
from pscale.config import Plan
from pscale.predict.engine import predict
from pscale.predict.profile import Profile, case_of

GALLERY = Path(__file__).parents[2] / "reports" / "gallery"
OF_MODEL, OF_TRAIN = ("sequence", "width", "layers", "vocabulary"), ("batch",)
JITTER = 0.01  # of steps among ranks that jitter, whose lengths are between ends that are both late


@pytest.fixture(scope="module", params=["pipeline", "communication"])
def traced(request):
    run = load(GALLERY / request.param)
    profile = Profile.of_run(run)
    return case_of(run, profile.paces[0].case), profile


@pytest.mark.parametrize("size", OF_MODEL + OF_TRAIN)
def test_more_of_any_size_takes_longer(traced, size):
    case, profile = traced
    part = "model" if size in OF_MODEL else "train"
    least = getattr(getattr(case, part), size)
    sized = [
        replace(case, **{part: replace(getattr(case, part), **{size: times * least})})
        for times in (1, 2, 3, 4, 8)
    ]
    times = [predict(each, profile, draws=40).step_s.value for each in sized]
    assert all(one < two for one, two in pairwise(times)), times


@pytest.mark.parametrize("plan", [{}, {"zero": 3}], ids=str)
def test_more_ranks_that_each_do_the_same_do_not_take_less(traced, plan):
    case, profile = traced
    times = []
    for ranks in (2, 3, 5, 7, 8, 12, 32):
        train = replace(case.train, batch=4 * ranks, micro_batches=1)
        weak = replace(case, ranks=ranks, train=train, plan=Plan(dp=ranks, **plan))
        times.append(predict(weak, profile, draws=80).step_s.value)
    assert all(one < (1 + JITTER) * two for one, two in pairwise(times)), times
