"""Compare sets of launches that were really recorded, drawn again and again.

`recorded/record.py` has recorded both files there from `launches.yaml`, on a virtual machine of two cores
whose neighbours can be heard: launches scatter by 3 to 5 %, and one in 16 of those on two ranks took twice
as long. A row is a launch: ranks, place in the run, then the step times in microseconds.
"""

import csv
from pathlib import Path

import numpy as np
import pytest

from pscale.analysis.difference import ALPHA, POWER, difference
from pscale.analysis.pairs import paired
from pscale.analysis.stats import Sample
from pscale.analysis.steady import steady_parts

RECORDED = Path(__file__).parent / "recorded"
LAUNCHES, TRIALS, BLOCK, RELEVANT = 10, 40, 5, 0.05


@pytest.fixture(scope="module", params=[(mpi, ranks) for mpi in ("mpich", "openmpi") for ranks in (1, 2)])
def launches(request):
    """Return the step times of the launches of a case, in their order."""
    mpi, ranks = request.param
    with (RECORDED / f"{mpi}.csv").open(encoding="utf-8", newline="") as file:
        rows = [[int(cell) for cell in row] for row in csv.reader(file)]
    return np.array([steps_us for its_ranks, _, *steps_us in rows if its_ranks == ranks], np.float64)


def drawn(random, launches, chosen):
    """Return the medians of the chosen launches, with as many steps as there were, drawn in blocks."""
    blocks = launches.shape[1] // BLOCK
    starts = random.integers(0, launches.shape[1] - BLOCK + 1, (len(chosen), blocks))
    places = (starts[:, :, None] + np.arange(BLOCK)).reshape(len(chosen), -1)
    steps = launches[np.array(chosen)[:, None], places]
    parts = steady_parts(steps)
    return np.array([np.median(times[part.start :]) for times, part in zip(steps, parts, strict=True)])


def two_sets(random, launches, count):
    """Draw two sets of launches from all."""
    return [drawn(random, launches, random.integers(0, len(launches), count)) for _ in "ab"]


def set_of_pairs(random, launches, count):
    """Draw pairs of launches that followed each other, and which of the two is whose."""
    firsts = 2 * random.integers(0, len(launches) // 2, count)
    turns = random.integers(0, 2, count)
    return [drawn(random, launches, firsts + (turns ^ side)) for side in (0, 1)]


def known(medians):
    return Sample(
        value=float(np.median(medians)),
        draws=None,
        launches=len(medians),
        steps=len(medians),
        dropped=0,
        medians=tuple(medians.tolist()),
        repeats=tuple(range(len(medians))),
    )


METHODS = {"in pairs": (set_of_pairs, paired), "as two sets": (two_sets, difference)}


def compared(launches, method, slower=1.0, count=LAUNCHES, trials=TRIALS):
    """Compare launches with launches of the same case that are so much slower, each time anew."""
    random = np.random.default_rng(1)
    draw, compare = METHODS[method]
    sides = (draw(random, launches, count) for _ in range(trials))
    return [compare(known(a), known(slower * b)) for a, b in sides]


def share(found, *chosen):
    return sum(one.answer(one.p, one.detectable(1), RELEVANT) in chosen for one in found) / len(found)


def test_sets_of_launches_of_one_case_are_not_called_different_19_times_in_20(launches):
    assert share(compared(launches, "as two sets"), "slower", "faster") <= ALPHA


def test_pairs_of_launches_of_one_case_are_called_different_1_time_in_20(launches):
    found = compared(launches, "in pairs", trials=200)
    assert share(found, "slower", "faster") <= 0.08  # of 5 %, two standard errors of 200 trials more


@pytest.mark.parametrize("method", METHODS)
def test_five_per_cent_that_ten_launches_miss_are_seldom_called_no_difference(launches, method):
    found = compared(launches, method, slower=1 + RELEVANT)
    assert share(found, "faster") == 0
    assert share(found, "same") <= 1 - POWER


def test_five_per_cent_are_found_19_times_in_20_by_2_and_a_half_times_the_launches_that_ten_call_for(
    launches,
):
    ten = compared(launches, "as two sets")
    count = int(2.5 * np.median([one.launches_for(RELEVANT) for one in ten]))  # of normal ones 1.7 would do
    assert share(compared(launches, "as two sets", slower=1 + RELEVANT, count=count), "slower") >= 0.95
