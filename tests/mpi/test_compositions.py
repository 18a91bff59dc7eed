"""Any options together, under a real MPI: refused before anything starts, or the serial run."""

from collections import Counter

import pytest
from compositions import MOST_RANKS, check_draw
from warm_ranks import WarmRanks

from pscale.launch import launcher

DRAWS = {"openmpi": 20}  # elsewhere 60; `make soak` draws others


@pytest.fixture
def ranks():
    ranks = WarmRanks(MOST_RANKS)
    yield ranks
    ranks.close()


def test_suites_of_any_options_are_refused_clearly_or_are_the_serial_run(ranks, tmp_path):
    counts, draws = Counter(), DRAWS.get(launcher.find().flavour, 60)
    for number in range(draws):
        check_draw(number, ranks, tmp_path, counts)
    assert counts["not run"] < draws / 3, counts
    assert len(counts) > 4, f"refusals, and runs in numbers of every type: {counts}"
