"""Any options together, under a real MPI: refused before anything starts, or the serial run."""

from collections import Counter
from dataclasses import replace

import pytest
from compositions import MOST_RANKS, check_draw
from patience import THOROUGH
from plans import TEXT, on_plan
from warm_ranks import WarmRanks

from pscale.config import Plan

DRAWS = max(20, round(60 * THOROUGH))  # `make soak` draws others


@pytest.fixture
def ranks():
    ranks = WarmRanks(MOST_RANKS)
    yield ranks
    ranks.close()


def test_suites_of_any_options_are_refused_clearly_or_are_the_serial_run(ranks, tmp_path):
    counts = Counter()
    for number in range(DRAWS):
        check_draw(number, ranks, tmp_path, counts)
    assert counts["not run"] < DRAWS / 3, counts
    assert len(counts) > 4, f"refusals, and runs in numbers of every type: {counts}"


def test_a_rank_that_is_late_for_a_case_without_it_takes_the_next(ranks):
    case = replace(TEXT, train=replace(TEXT.train, steps=1))
    pair, alone = on_plan(case, Plan(dp=2)), on_plan(case, Plan())
    assert ranks.run(pair, "verify")[1] == ""
    last = next(process for process in ranks.processes() if rank_of(process) == str(MOST_RANKS - 1))
    last.suspend()
    assert ranks.run(alone, "verify")[1] == ""
    last.resume()
    assert ranks.run(on_plan(case, Plan(dp=MOST_RANKS)), "verify")[1] == ""


def rank_of(process):
    environment = process.environ()
    return environment.get("PMI_RANK", environment.get("OMPI_COMM_WORLD_RANK"))
