"""Compare sets of launches that were really recorded, drawn again and again.

`recorded/record.py` has recorded both files there from `launches.yaml`, on a virtual machine of two cores
whose neighbours can be heard. A row is a launch: ranks, place in the run, the step times in microseconds,
then the pace of the machine beside each step.
"""

import csv
from pathlib import Path

import numpy as np
import pytest

from pscale.analysis.difference import ALPHA, POWER, at_same_pace, difference, paired
from pscale.analysis.stats import Sample
from pscale.runs.step_time import steady_parts

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent / "recorded"
LAUNCHES, TRIALS, BLOCK, RELEVANT = 10, 40, 5, 0.05


@pytest.fixture(scope="module", params=[(mpi, ranks) for mpi in ("mpich", "openmpi") for ranks in (1, 2)])
def launches(request):
    """Return the launches of a case in their order: step times, and the pace beside each step."""
    mpi, ranks = request.param
    with (RECORDED / f"{mpi}.csv").open(encoding="utf-8", newline="") as file:
        rows = [[int(cell) for cell in row] for row in csv.reader(file)]
    times_us = np.array([its_us for its_ranks, _, *its_us in rows if its_ranks == ranks], np.float64)
    return times_us.reshape(len(times_us), 2, -1)


def drawn(random, launches, chosen, slower=1.0):
    """Return the chosen launches, with as many steps as there were, drawn in blocks with the pace of each."""
    steps = launches.shape[2]
    starts = random.integers(0, steps - BLOCK + 1, (len(chosen), steps // BLOCK))
    places = (starts[:, :, None] + np.arange(BLOCK)).reshape(len(chosen), 1, -1)
    times, paces = np.take_along_axis(launches[chosen], places, axis=2).swapaxes(0, 1)
    kept = [slice(part.start, None) for part in steady_parts(times)]
    medians = [slower * np.median(one[part]) for one, part in zip(times, kept, strict=True)]
    return Sample(
        medians=tuple(medians),
        repeats=tuple(range(len(medians))),
        levels=tuple(np.log(slower * one[part]).mean() for one, part in zip(times, kept, strict=True)),
        paces=tuple(np.log(one[part]).mean() for one, part in zip(paces, kept, strict=True)),
    )


def two_sets(random, launches, count):
    """Draw two sets of launches from all."""
    return [random.integers(0, len(launches), count) for _ in "ab"]


def set_of_pairs(random, launches, count):
    """Draw pairs of launches that followed each other, and which of the two is whose."""
    firsts = 2 * random.integers(0, len(launches) // 2, count)
    turns = random.integers(0, 2, count)
    return [firsts + (turns ^ side) for side in (0, 1)]


METHODS = {"in pairs": (set_of_pairs, paired), "as two sets": (two_sets, difference)}


def compared(launches, method, *, slower=1.0, pace=True, count=LAUNCHES, trials=TRIALS):
    """Compare launches with launches of the same case that are so much slower, drawn afresh each time."""
    random = np.random.default_rng(1)
    draw, compare = METHODS[method]
    found = []
    for _ in range(trials):
        a, b = draw(random, launches, count)
        sides = drawn(random, launches, a), drawn(random, launches, b, slower)
        found.append(at_same_pace(compare, *sides) if pace else compare(*sides))
    return found


def share(found, *chosen):
    return sum(one.judge(one.p) in chosen for one in found) / len(found)


@pytest.mark.parametrize("method", METHODS)
def test_launches_of_one_case_are_called_different_1_time_in_20(launches, method):
    found = compared(launches, method, pace=False, trials=200)
    assert share(found, "slower", "faster") <= 0.08  # of 5 %, two standard errors of 200 trials more
    found = compared(launches, method, trials=200)
    assert share(found, "slower", "faster") <= ALPHA


@pytest.mark.parametrize("method", METHODS)
def test_five_per_cent_are_found_19_times_in_20_by_ten_launches_at_the_same_pace(launches, method):
    with_it, without = (
        share(compared(launches, method, slower=1 + RELEVANT, pace=pace), "slower") for pace in (True, False)
    )
    assert with_it >= 0.95
    assert without < with_it


@pytest.mark.parametrize("pace", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_five_per_cent_that_ten_launches_miss_are_seldom_called_no_difference(launches, method, pace):
    found = compared(launches, method, slower=1 + RELEVANT, pace=pace)
    assert share(found, "faster") == 0
    assert share(found, "equal") <= 1 - POWER


def test_five_per_cent_are_found_19_times_in_20_by_2_and_a_half_times_the_launches_that_ten_call_for(
    launches,
):
    ten = compared(launches, "as two sets", pace=False)
    count = int(2.5 * np.median([one.launches_for(RELEVANT) for one in ten]))  # of normal ones 1.7 would do
    found = compared(launches, "as two sets", slower=1 + RELEVANT, pace=False, count=count)
    assert share(found, "slower") >= 0.95
