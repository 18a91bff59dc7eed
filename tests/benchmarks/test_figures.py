"""The comparison of benchmarks: worse, same, better, or too noisy to tell."""

import socket

import numpy as np
import pytest
from figures import figure, median_interval, read, verdict, write


def around(centre, spread, better="higher"):
    return figure([centre * (1 + spread * step) for step in np.linspace(-1, 1, 15)], better)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (around(1.0, 0.001), around(1.001, 0.001), "same"),
        (around(1.0, 0.001), around(0.9, 0.001), "worse"),
        (around(1.0, 0.001), around(1.1, 0.001), "better"),
        (around(1.0, 0.001), around(0.98, 0.001), "same"),  # surely lower, but by less than matters
        (around(1.0, 0.3), around(0.9, 0.3), "too noisy to tell"),
        (around(1.0, 0.3), around(1.1, 0.3), "too noisy to tell"),
        (around(2.0, 0.001, "lower"), around(2.4, 0.001, "lower"), "worse"),
        (around(2.0, 0.001, "lower"), around(1.6, 0.001, "lower"), "better"),
    ],
)
def test_a_change_is_judged_by_its_interval_and_by_what_matters(before, now, expected):
    found, (ratio, low, high) = verdict(before, now)
    assert found == expected
    assert low <= ratio <= high
    assert (ratio < 1) == ((now.value < before.value) == (now.better == "higher"))


def test_the_interval_holds_the_true_median_as_often_as_it_says():
    random = np.random.default_rng(1)
    for count in (9, 15, 40):
        hits = 0
        for _ in range(2000):
            low, high = median_interval(sorted(random.lognormal(size=count)))
            hits += low <= 1 <= high
        assert 0.95 <= hits / 2000 < 0.99


def test_of_few_rounds_the_interval_is_all_that_was_seen():
    assert median_interval([1.0, 2.0, 3.0]) == (1.0, 3.0)


def test_figures_come_back_from_their_file_and_name_neither_host_nor_path(tmp_path):
    path = tmp_path / "new" / "one.json"
    found = {"ratio": figure([1.0, 2.0, 3.0], "lower", 2.5), "import": figure([0.2, 0.3], "lower", unit="s")}
    write(path, "one", found, {"ranks": 2}, mpi="some MPI")
    content, back = read(path)
    assert back == found
    assert back["ratio"].reaches_goal
    assert content["machine"]["mpi"] == "some MPI"
    assert socket.gethostname() not in content["machine"].values()
    assert str(tmp_path) not in path.read_text()
